//nolint:thelper // subtests, not helpers: a failure is reported where it is
package modeltest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// simple is a request that any provider takes.
func simple() agent.ModelRequest {
	return agent.ModelRequest{
		Model: "test-1", Instructions: "Be brief.", Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")},
		Tools: []agent.ModelTool{weather(), {Name: "now", Description: "The time"}},
	}
}

func weather() agent.ModelTool {
	return agent.ModelTool{
		Name: "get_weather", Description: "The weather of a city",
		InputSchema: []byte(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
	}
}

func ask(t *testing.T, p Provider, replies ...Reply) Turn {
	t.Helper()
	return Collect(t, p.Serve(t, &Log{}, replies...).Stream(t.Context(), simple()))
}

func testText(t *testing.T, p Provider) {
	got := ask(t, p, Reply{Text: []string{"Hel", "lo, ", "wörld <&>."}, Usage: events.Usage{InputTokens: 9, OutputTokens: 4, TotalTokens: 13}})
	if got.Err != nil || got.Text != "Hello, wörld <&>." || got.Reason != agent.FinishStop || len(got.Calls) > 0 {
		t.Errorf("got %+v", got)
	}
	if got.Usage.InputTokens == 0 || got.Usage.TotalTokens != got.Usage.InputTokens+got.Usage.OutputTokens {
		t.Errorf("usage = %+v", got.Usage)
	}
}

func testReasoning(t *testing.T, p Provider) {
	got := ask(t, p, Reply{Reasoning: []string{"They ", "greet."}, Text: []string{"Hello."}})
	if got.Err != nil || got.Reasoning != "They greet." || got.Text != "Hello." {
		t.Errorf("got %+v", got)
	}
}

// parallel are calls of one tool and another, with arguments that must keep every digit and character.
func parallel(ids ...string) []Call {
	calls := []Call{
		{Name: "get_weather", Args: []string{`{"ci`, `ty":"Zü`, `rich","n":9007199254740993}`}},
		{Name: "get_weather", Args: []string{`{"city":"<Rome> & \"Ostia\""}`}},
		{Name: "now", Args: []string{"{", "}"}},
	}
	for i := range calls {
		calls[i].ID = ids[i]
	}
	return calls
}

func testCalls(t *testing.T, p Provider) {
	calls := parallel("call_a", "call_b", "call_c")
	got := ask(t, p, Reply{Text: []string{"Let me see."}, Calls: calls})
	if got.Err != nil || got.Reason != agent.FinishToolCalls || got.Text != "Let me see." {
		t.Errorf("got %+v", got)
	}
	checkCalls(t, got, calls)
	for i, c := range got.Calls {
		if c.ProviderID != calls[i].ID {
			t.Errorf("call %d has the provider's id %q, want %q", i, c.ProviderID, calls[i].ID)
		}
	}
}

func testProviderIDs(t *testing.T, p Provider) {
	for _, ids := range [][]string{{"", "", ""}, {"same", "same", "same"}, {"", "x", ""}} {
		calls := parallel(ids...)
		got := ask(t, p, Reply{Calls: calls})
		if got.Err != nil {
			t.Fatalf("ids %q: %v", ids, got.Err)
		}
		checkCalls(t, got, calls)
	}
}

// checkCalls compares the calls of a turn with those of a reply. All must have ended.
func checkCalls(t *testing.T, got Turn, want []Call) {
	t.Helper()
	type call struct{ Name, Args string }
	var g, w []call
	for _, c := range got.Calls {
		g = append(g, call{c.Name, c.Args})
		if !c.Ended {
			t.Errorf("call %s %s has no end", c.ID, c.Name)
		}
	}
	for _, c := range want {
		w = append(w, call{c.Name, c.args()})
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func testNoArgs(t *testing.T, p Provider) {
	got := ask(t, p, Reply{Calls: []Call{{ID: "call_a", Name: "now"}, {ID: "call_b", Name: "now"}}})
	if got.Err != nil || len(got.Calls) != 2 {
		t.Fatalf("got %+v", got)
	}
	for _, c := range got.Calls {
		if a := strings.TrimSpace(c.Args); !c.Ended || a != "" && a != "{}" {
			t.Errorf("call = %+v", c)
		}
	}
}

func testLimit(t *testing.T, p Provider) {
	calls := parallel("call_a", "call_b", "call_c")
	calls[2] = Call{ID: "call_c", Name: "get_weather", Args: []string{`{"city":"Ber`}}
	got := ask(t, p, Reply{Calls: calls, Finish: agent.FinishLength, End: EndLimit})
	if got.Err != nil || got.Reason != agent.FinishLength || len(got.Calls) != 3 {
		t.Fatalf("got %+v", got)
	}
	for i, c := range got.Calls {
		if cut := i == 2; c.Ended == cut {
			t.Errorf("call %d: ended = %v, want %v", i, c.Ended, !cut)
		}
	}
}

func testLost(t *testing.T, p Provider) {
	cut := []Call{{ID: "call_a", Name: "get_weather", Args: []string{`{"city":"Ber`}}}
	for _, r := range []Reply{
		{End: EndLost},
		{Text: []string{"Hello, "}, End: EndLost},
		{Calls: cut, End: EndLost},
		{Calls: parallel("call_a", "call_b", "call_c"), End: EndLost},
	} {
		got := ask(t, p, r)
		e := modelError(t, got)
		if !e.Retryable {
			t.Errorf("%+v: the error %v is not retryable", r, e)
		}
		if n := len(got.Calls); n > 0 && got.Calls[n-1].Ended {
			t.Errorf("%+v: the last call has an end", r)
		}
	}
}

func modelError(t *testing.T, got Turn) *agent.ModelError {
	t.Helper()
	var e *agent.ModelError
	if !errors.As(got.Err, &e) {
		t.Fatalf("the turn ended in %v, want a ModelError", got.Err)
	}
	return e
}

func testRefusals(t *testing.T, p Provider) {
	for status, retryable := range map[int]bool{
		400: false, 401: false, 403: false, 404: false, 413: false, 422: false,
		408: true, 429: true, 500: true, 502: true, 503: true, 504: true, 529: true,
	} {
		if p.NoRequests && status == http.StatusRequestTimeout {
			continue
		}
		got := ask(t, p, Reply{Status: status, Message: "because of reasons", RetryAfter: 7 * time.Second})
		e := modelError(t, got)
		if e.Retryable != retryable || e.Status != status || e.After != 7*time.Second {
			t.Errorf("status %d gives %+v", status, e)
		}
		if !strings.Contains(e.Error(), "because of reasons") {
			t.Errorf("status %d: the error %q does not say why", status, e)
		}
	}
}

func testStop(t *testing.T, p Provider) {
	m := p.Serve(t, &Log{}, Reply{Text: []string{"one ", "two ", "three"}})
	n := 0
	for _, err := range m.Stream(t.Context(), simple()) {
		if n++; err != nil || n > 1 {
			t.Fatalf("part %d: %v", n, err)
		}
		break
	}
}

func testCancel(t *testing.T, p Provider) {
	m := p.Serve(t, &Log{}, Reply{Text: []string{"one ", "two ", "three ", "four"}})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("the run was cancelled")
	var last error
	for part, err := range m.Stream(ctx, simple()) {
		if last = err; part.Type == agent.PartTextDelta {
			cancel(why)
		}
	}
	if last != nil && !errors.Is(last, why) {
		t.Errorf("a cancelled turn ended in %v", last)
	}
}

func testSilence(t *testing.T, p Provider) {
	for _, r := range []Reply{
		{End: EndSilent},
		{Text: []string{"Hello, "}, End: EndSilent},
		{Calls: []Call{{ID: "call_a", Name: "get_weather", Args: []string{`{"ci`}}}, End: EndSilent},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			got := ask(t, p, r)
			if e := modelError(t, got); !e.Retryable {
				t.Errorf("the error %v is not retryable", e)
			}
			if waited := time.Since(start); waited < 30*time.Second || waited > 2*time.Minute {
				t.Errorf("gave up after %v of silence, want about a minute", waited)
			}
			if len(got.Calls) > 0 && got.Calls[0].Ended {
				t.Error("half a call has an end")
			}
		})
	}
}

func testSecrets(t *testing.T, p Provider) {
	for _, r := range []Reply{
		{Status: http.StatusUnauthorized, Message: "Incorrect API key provided: " + p.Secret},
		{Status: http.StatusInternalServerError, Message: "header Authorization: Bearer " + p.Secret},
		{End: EndLost},
	} {
		got := ask(t, p, r)
		if e := modelError(t, got); p.Secret == "" || strings.Contains(e.Error(), p.Secret) {
			t.Errorf("the error shows the key %q: %v", p.Secret, e)
		}
	}
}
