package planner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/story"
)

// TestAnswerStories tells stories of messages that may answer what suspended tools wait for: what the model is shown, and
// what its answer is worth.
//
// asks has one ask a line, message what the user says, said what the model makes of it.
func TestAnswerStories(t *testing.T) {
	t.Parallel()
	story.Run(t, "testdata/answers/*.txtar", func(t *testing.T, s story.Story) string {
		t.Helper()
		n := newNarrator(t, s)
		raw, err := events.Marshal(strings.TrimSpace(string(s.File("message"))))
		if err != nil {
			t.Fatal(err)
		}
		n.start([]byte(`{"messages":` + string(raw) + `}`))
		waiting := n.asks(s.File("asks"))
		if len(waiting) == 0 {
			n.say("the model is not asked")
			return n.out.String()
		}
		req, err := questionOf(n.st, &n.def, "story", waiting)
		if err != nil || len(req.Tools) != 0 {
			t.Fatalf("%+v, %v", req, err)
		}
		n.say("the model is shown %s", req.Messages[0].Text())
		found, reason := answersIn(string(s.File("said")), saidIn(n.st), waiting)
		if reason != "" {
			n.say("no answer: %s", reason)
		}
		for _, a := range found {
			n.say("answer to %s, round %d: %s", a.ToolCallID, a.Round, a.ResumeData)
		}
		return n.out.String()
	})
}

// asks reads asks of which everything that goes without saying is left out.
func (n *narrator) asks(lines []byte) []suspension {
	n.t.Helper()
	var waiting []suspension
	i := 0
	for line := range bytes.Lines(lines) {
		i++
		ask := events.CallHeld{
			ToolCallID: fmt.Sprintf("A=1-%d", i), RunID: "A", Kind: events.AskSuspended, Round: 1, ToolName: "weather",
			Allowed: events.AskSuspended.Allowed(), Args: json.RawMessage(`{}`), Fingerprint: "sha256:f",
		}
		n.read(line, &ask)
		if w, ok := suspensionOf(ask); ok {
			waiting = append(waiting, w)
		}
	}
	return waiting
}
