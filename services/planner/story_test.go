package planner

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/story"
)

// TestStories tells stories of the pure loop: the facts of a run go in, what it does next comes out, and, when a model
// says something, what that commits.
//
// agent.json is the agent's definition, tools.json the manifests by key, turn.json what the model says. facts has one
// fact a line: its kind, a call where there is one, and its data, of which everything that goes without saying is left
// out. The kind answers is the step in which a run looks for answers in its message.
func TestStories(t *testing.T) {
	t.Parallel()
	story.Run(t, "testdata/*.txtar", func(t *testing.T, s story.Story) string {
		t.Helper()
		n := newNarrator(t, s)
		n.facts(s.File("facts"))
		return n.tell(s)
	})
}

const storyRun = "R"

// began is when every story begins; each fact comes a second after the one before.
var began = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

// narrator tells one story.
type narrator struct {
	t   *testing.T
	def definition
	st  *events.State
	seq uint64
	out strings.Builder
}

func newNarrator(t *testing.T, s story.Story) *narrator {
	t.Helper()
	n := &narrator{t: t, def: definition{tools: map[string]events.Manifest{}}}
	n.def.agent = events.AgentDef{ID: "support", Model: "scripted/story"}
	n.read(s.File("agent.json"), &n.def.agent)
	n.read(s.File("tools.json"), &n.def.tools)
	for key, m := range n.def.tools {
		m.ID = cmp.Or(m.ID, key)
		n.def.tools[key] = agent.Complete(m)
	}
	return n
}

// read reads JSON strictly: a story that misspells a field would not tell what it says.
func (n *narrator) read(raw []byte, into any) {
	n.t.Helper()
	if len(raw) == 0 {
		return
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		n.t.Fatalf("%s: %v", raw, err)
	}
}

func (n *narrator) facts(lines []byte) {
	n.t.Helper()
	for line := range bytes.Lines(lines) {
		kind, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		switch events.Kind(kind) {
		case "":
		case events.KindStart:
			n.start(rest)
		case events.KindStep:
			n.step(rest)
		case "answers":
			n.answers(rest)
		case events.KindResult:
			call, data, _ := bytes.Cut(rest, []byte(" "))
			n.result(string(call), data)
		case events.KindEnd:
			d := endOf(n.st, events.RunCancelled)
			n.read(rest, d)
			n.apply(events.DefaultNamespace.End(storyRun), *d)
		default:
			n.t.Fatalf("a story has no fact of kind %q", kind)
		}
	}
}

func (n *narrator) event(p events.Place, data any) events.Event {
	n.t.Helper()
	n.seq++
	at := began.Add(time.Duration(n.seq) * time.Second)
	o := &events.Origin{Namespace: events.DefaultNamespace, Service: Name, Now: func() time.Time { return at }}
	e, err := o.Fact(p, data, events.Event{})
	if err != nil {
		n.t.Fatal(err)
	}
	e.ID, e.Seq, e.Stored = fmt.Sprintf("e%d", n.seq), n.seq, at
	return e
}

func (n *narrator) apply(p events.Place, data any) {
	n.t.Helper()
	if err := n.st.Apply(n.event(p, data)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *narrator) start(raw []byte) {
	n.t.Helper()
	d := events.RunStarted{
		RunID: storyRun, RootRunID: storyRun, AgentID: "support", Requester: "bob", RequestID: "q1", InboxSeq: 1,
		Path:    []events.PathEntry{{AgentID: "support", RunID: storyRun}},
		Request: events.RunRequested{AgentID: "support"}, Definitions: events.Definitions{Agent: "sha256:0", Tools: map[string]string{}},
	}
	n.read(raw, &d.Request)
	if d.Request.ToolID != "" { // in place of the agent
		d.Request.AgentID, d.AgentID, d.Definitions.Agent = "", agentOf(d.Request), ""
	}
	st, err := events.NewState(n.event(events.DefaultNamespace.Start(storyRun), d))
	if err != nil {
		n.t.Fatal(err)
	}
	n.st = st
}

// step commits a turn as the loop would.
func (n *narrator) step(raw []byte) {
	n.t.Helper()
	step, end := commit(n.st, n.said(raw), n.limits())
	if end != nil {
		n.t.Fatalf("step %s ends the run", raw)
	}
	n.apply(events.DefaultNamespace.Step(storyRun, step.Step), *step)
}

// answers is the step in which a run finds out whether its message answers what suspended tools wait for.
func (n *narrator) answers(raw []byte) {
	n.t.Helper()
	d := events.StepFinished{
		RunID: storyRun, Step: 1, Attempt: 1, MessageID: "m1", Message: events.Message{Role: events.RoleAssistant, Parts: []events.Part{}},
		Calls: []events.CallPlanned{}, Usage: events.Usage{TotalTokens: 7}, FinishReason: reasonStop, AutoResume: &events.AutoResume{},
	}
	n.read(raw, d.AutoResume)
	n.apply(events.DefaultNamespace.Step(storyRun, 1), d)
}

func (n *narrator) result(token string, raw []byte) {
	n.t.Helper()
	call, err := events.CallOf(storyRun, token)
	if err != nil {
		n.t.Fatal(err)
	}
	d := events.CallFinished{ToolCallID: call.String(), RunID: storyRun, Outcome: events.OutcomeOK}
	n.read(raw, &d)
	n.apply(events.DefaultNamespace.Call(call, events.KindResult), d)
}

// speech is what a model says in a story.
type speech struct {
	Text   string               `json:"text"`
	Calls  []events.CallPlanned `json:"calls"`
	Tokens int                  `json:"tokens"`
	Reason string               `json:"reason"`
	Active events.Duration      `json:"active"`
	Empty  bool                 `json:"empty"`
}

func (n *narrator) said(raw []byte) turn {
	n.t.Helper()
	var sp speech
	n.read(raw, &sp)
	id := fmt.Sprintf("m%d", n.st.Step+1)
	t := turn{
		attempt: 1, messageID: id, calls: sp.Calls, reason: sp.Reason, model: n.def.agent.Model,
		active: time.Duration(sp.Active), empty: sp.Empty, usage: events.Usage{TotalTokens: sp.Tokens},
		message: events.Message{ID: id, Role: events.RoleAssistant, Parts: []events.Part{}},
	}
	if sp.Text != "" {
		t.message.Parts = append(t.message.Parts, events.Part{Type: events.PartText, Text: sp.Text})
	}
	return t
}

func (n *narrator) limits() events.Limits { return limitsOf(n.def.agent.Limits, n.st.Options.Limits) }

// tell says what the loop does with the run as it stands, and what the model's turn commits.
func (n *narrator) tell(s story.Story) string {
	n.t.Helper()
	if seq := n.st.LastResult(); seq > 0 && n.st.Settled() {
		n.say("the result of sequence %d goes on", seq)
	}
	switch act := next(n.st, n.limits()); {
	case act.wait:
		n.say("wait for %s", cmp.Or(strings.Join(n.st.Open(), " "), "nothing"))
	case act.end != nil:
		n.show("end", act.end)
	case act.call:
		n.say("call, without a model")
		t := n.said(nil)
		t.calls, t.model = plannedCalls(n.st), ""
		step, end := commit(n.st, t, n.limits())
		n.show("step", step)
		if end != nil {
			n.show("end", end)
		}
	case openingOf(n.st, &n.def) == opensByAsking:
		n.say("ask whether %q answers what suspended tools of the thread wait for", saidIn(n.st))
	case openingOf(n.st, &n.def) == opensByWaiting:
		n.say("wait for what the gate makes of the answers")
		n.show("end, if one counts:", resumedEnd(n.st, resumedRuns(n.st.AutoResume.Answers)))
	case act.turn:
		n.turn(s.File("turn.json"))
	}
	return n.out.String()
}

func (n *narrator) turn(said []byte) {
	n.t.Helper()
	n.say("turn %d", n.st.Step+1)
	p, broken := promptOf(n.t.Context(), n.st, &n.def, "story", n.st.Transcript())
	if broken != nil {
		n.show("broken", broken)
		return
	}
	n.prompt(p)
	if said == nil {
		return
	}
	t := n.said(said)
	for i := range t.calls {
		t.calls[i].ToolName = p.key(t.calls[i].ToolName)
	}
	step, end := commit(n.st, t, n.limits())
	if step != nil {
		n.show("step", step)
	}
	if end != nil {
		n.show("end", end)
	}
}

// prompt shows what the model is asked, a message a line.
func (n *narrator) prompt(p prompt) {
	n.t.Helper()
	r := p.request
	if r.Instructions != "" {
		n.say("instructions: %s", r.Instructions)
	}
	n.say("tool choice: %s", r.ToolChoice)
	for _, tool := range r.Tools {
		n.say("tool %s, key %s", tool.Name, p.key(tool.Name))
	}
	for _, m := range r.Messages {
		for _, part := range m.Parts {
			raw, err := events.Marshal(part)
			if err != nil {
				n.t.Fatal(err)
			}
			n.say("%s %s", m.Role, raw)
		}
	}
}

func (n *narrator) say(format string, args ...any) { fmt.Fprintf(&n.out, format+"\n", args...) }

func (n *narrator) show(what string, v any) {
	n.t.Helper()
	raw, err := events.Marshal(v)
	if err != nil {
		n.t.Fatal(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, raw, "", "  "); err != nil {
		n.t.Fatal(err)
	}
	n.say("%s %s", what, pretty.String())
}
