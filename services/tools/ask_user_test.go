package tools_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/internal/sim"
	"github.com/weirkeeper/weir/services/tools"
)

const colours = `"options":[{"label":"red"},{"label":"blue","description":"as the sky"}]`

// TestB15_1_B15_2_B15_4AskUser: what ask_user takes, what it shows, and what it tells the model.
func TestB15_1_B15_2_B15_4AskUser(t *testing.T) {
	t.Parallel()
	const q = `"question":"Which?"`
	for _, test := range []struct{ name, args, resume, want string }{
		{"free text", `{` + q + `}`, ``, `suspended with {` + q + `}`},
		{"options", `{` + q + `,` + colours + `}`, ``, `suspended with {` + q + `,` + colours + `,"selectionMode":"single_select"}`},
		{
			"several", `{` + q + `,` + colours + `,"selectionMode":"multi_select"}`, ``,
			`suspended with {` + q + `,` + colours + `,"selectionMode":"multi_select"}`,
		},
		{"no options", `{` + q + `,"options":[]}`, ``, `suspended with {` + q + `}`},
		{"answered", `{` + q + `}`, `"a, b and <c>"`, `{"content":"User answered: a, b and <c>","isError":false}`},
		{
			"several answers", `{` + q + `,` + colours + `,"selectionMode":"multi_select"}`, `["red","blue"]`,
			`{"content":"User answered: red, blue","isError":false}`,
		},
		{
			"mode alone", `{` + q + `,"selectionMode":"single_select"}`, ``,
			`{"content":"Failed to ask user: selectionMode requires options.","isError":true}`,
		},
		{
			"mode of no options", `{` + q + `,"options":[],"selectionMode":"multi_select"}`, ``,
			`{"content":"Failed to ask user: selectionMode requires options.","isError":true}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := outcome(agenttest.Run(t, tools.AskUser, test.args, inAgent(test.resume))); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
	for _, args := range []string{
		`{}`, `{"question":""}`, `{"question":"?","options":[{"description":"no label"}]}`, `{"question":"?",` + colours + `,"selectionMode":"some"}`,
	} {
		if r := agenttest.Run(t, tools.AskUser, args, inAgent("")); r.Outcome != events.OutcomeInvalid || r.Started {
			t.Errorf("%s: %s, want invalid", args, outcome(r))
		}
	}
}

// TestB15_4OutsideAnAgent: where no agent made the call, nobody goes on with an answer, and the question is the result.
func TestB15_4OutsideAnAgent(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		`{"question":"Who?"}`: `{"content":"[Question for user]: Who?","isError":false}`,
		`{"question":"Which?",` + colours + `}`: `{"content":"[Question for user]: Which?\nOptions: red, blue\n` +
			`Selection mode: single_select","isError":false}`,
	} {
		for _, by := range []string{"", events.TokenTool} {
			o := &agenttest.RunOptions{Call: agent.CallInfo{AgentID: by}}
			if got := outcome(agenttest.Run(t, tools.AskUser, args, o)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
	}
}

// TestB15_3AnswersAmongTheOptions: an answer that is not among the options, or several where one is asked for, does not
// count, and the call stays held.
func TestB15_3AnswersAmongTheOptions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, args string
		wrong      []string
		right      string
		want       string
	}{
		{
			"one", `{"question":"Which?",` + colours + `}`,
			[]string{`"green"`, `"Red"`, `["red","blue"]`, `[]`, `["green"]`, `null`, `{"label":"red"}`, `1`},
			`["red"]`, "red",
		},
		{
			"several", `{"question":"Which?",` + colours + `,"selectionMode":"multi_select"}`,
			[]string{`"green"`, `["red","green"]`, `[["red"]]`},
			`["blue","red"]`, "blue, red",
		},
		{"free text", `{"question":"Which?"}`, []string{`7`, `[7]`, `null`}, `"whatever"`, "whatever"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, _ := scripted(t, tools.AskUser, test.args, agenttest.Say("thanks"))
				w := sim.New(t, o)
				w.StartAll()
				inThread(w, "r1", "Ask me")
				ask := w.AwaitAsk(callOf("r1"), soon)
				codes := refusals(w, "alice")
				for _, data := range test.wrong {
					resume(w, ask, data)
					if code := <-codes; code != events.CodeInvalidData {
						t.Errorf("%s: refused as %s", data, code)
					}
				}
				resume(w, ask, test.right)
				want := `{"content":"User answered: ` + test.want + `","isError":false}`
				if r := resultOf(w, "r1"); string(r.Result) != want {
					t.Errorf("result %s, want %s", r.Result, want)
				}
				if end := w.AwaitEnd("r1", soon); end.Outcome != events.RunCompleted {
					t.Errorf("the run ended as %s", end.Outcome)
				}
				w.Check(true)
			})
		})
	}
}

// refusals are the codes of the decisions of a principal that do not count.
func refusals(w *sim.World, principal string) <-chan events.Code {
	w.T.Helper()
	codes := make(chan events.Code, 16)
	stop, err := w.Conn().Notes(w.T.Context(), principal, func(e events.Event) {
		if d, err := events.Data[events.DecisionRefused](e); err == nil && d.Code != "" {
			codes <- d.Code
		}
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(stop)
	return codes
}

// TestB15_5NextMessageAnswers: where an agent resumes suspended tools automatically, what the user says next is the answer.
func TestB15_5NextMessageAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, model := scripted(t, tools.AskUser, `{"question":"Which colour?",`+colours+`}`,
			agenttest.Say(`{"answers":[{"toolCallId":"r1=1-1","resumeData":"blue"}]}`), agenttest.Say("Blue it is."))
		w := sim.New(t, o)
		w.StartAll()
		inThread(w, "r1", "Paint it")
		w.AwaitAsk(callOf("r1"), soon)
		time.Sleep(time.Microsecond) // fake: what follows is later
		inThread(w, "r2", "blue, please")
		first, second := w.AwaitEnd("r1", soon), w.AwaitEnd("r2", soon)
		if first.Outcome != events.RunCompleted || second.FinishReason != "resumed" {
			t.Errorf("ends %+v and %+v", first, second)
		}
		if r := resultOf(w, "r1"); string(r.Result) != `{"content":"User answered: blue","isError":false}` {
			t.Errorf("result %s", r.Result)
		}
		asked := model.Requests()[1].Messages[0].Text()
		var about struct {
			Calls []struct{ Asks, ResumeSchema json.RawMessage }
		}
		if err := json.Unmarshal([]byte(asked), &about); err != nil || len(about.Calls) != 1 ||
			!strings.Contains(string(about.Calls[0].Asks), "Which colour?") || !strings.Contains(string(about.Calls[0].ResumeSchema), `"enum"`) {
			t.Errorf("the model was shown %s (%v)", asked, err)
		}
		time.Sleep(2 * time.Second) // fake
		w.Check(true)
	})
}
