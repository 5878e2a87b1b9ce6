package modeltest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// TestTakeFindsBreaches shows that the rules of parts can be broken: a suite that lets everything pass proves nothing.
func TestTakeFindsBreaches(t *testing.T) {
	t.Parallel()
	start := func(id string) agent.ModelPart { return agent.ModelPart{Type: agent.PartToolInputStart, ID: id} }
	delta := func(id string) agent.ModelPart {
		return agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: "{"}
	}
	end := func(id string) agent.ModelPart { return agent.ModelPart{Type: agent.PartToolInputEnd, ID: id} }
	for name, parts := range map[string][]agent.ModelPart{
		"an end without a start":   {end("a")},
		"a delta without a start":  {start("a"), delta("b")},
		"a delta after the end":    {start("a"), end("a"), delta("a")},
		"two ends":                 {start("a"), end("a"), end("a")},
		"one id for two calls":     {start("a"), start("a")},
		"a call without an id":     {start("")},
		"a text without an id":     {{Type: agent.PartTextDelta, Text: "x"}},
		"an empty delta":           {{Type: agent.PartReasoningDelta, ID: "r"}},
		"a finish without reason":  {{Type: agent.PartFinish}},
		"a warning without a text": {{Type: agent.PartWarning}},
		"an unknown type":          {start("a"), {Type: "shrug", ID: "a"}},
	} {
		var turn Turn
		breach := ""
		for _, p := range parts {
			breach = turn.take(p)
		}
		if breach == "" {
			t.Errorf("%s passes", name)
		}
	}
}

func TestPairing(t *testing.T) {
	t.Parallel()
	user := Message{Role: events.RoleUser}
	calls := func(ids ...string) Message {
		m := Message{Role: events.RoleAssistant}
		for _, id := range ids {
			m.Calls = append(m.Calls, AskedCall{ID: id})
		}
		return m
	}
	result := func(id string) Message { return Message{Role: events.RoleTool, Result: id} }
	for name, test := range map[string]struct {
		messages []Message
		ok       bool
	}{
		"paired":          {[]Message{user, calls("a", "b"), result("a"), result("b"), calls("c"), result("c"), user}, true},
		"nothing":         {nil, true},
		"another order":   {[]Message{calls("a", "b"), result("b"), result("a")}, false},
		"too few":         {[]Message{calls("a", "b"), result("a"), user}, false},
		"none at the end": {[]Message{calls("a")}, false},
		"too many":        {[]Message{calls("a"), result("a"), result("a")}, false},
		"no call":         {[]Message{user, result("a")}, false},
		"equal ids":       {[]Message{calls("a", "a"), result("a"), result("a")}, false},
	} {
		if err := Pairing(test.messages); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	get := func(ctx context.Context, h http.HandlerFunc) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://in.process/", nil)
		if err != nil {
			return nil, err
		}
		return (&http.Client{Transport: Transport(h)}).Do(req)
	}
	synctest.Test(t, func(t *testing.T) {
		resp, err := get(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "whole")
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != "whole" || err != nil || resp.StatusCode != http.StatusTeapot {
			t.Errorf("got %q, %v, %d", got, err, resp.StatusCode)
		}
		_ = resp.Body.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		resp, err := get(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %q, %v", got, err)
		}
		_ = resp.Body.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		resp, err := get(t.Context(), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		if err == nil {
			_ = resp.Body.Close()
			t.Error("a lost connection gives an answer")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		resp, err := get(ctx, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "canceled") {
			t.Errorf("got %v", err)
		}
	})
}
