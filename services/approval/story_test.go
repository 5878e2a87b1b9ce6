package approval

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
	"github.com/weirkeeper/weir/services/internal/story"
)

// TestStories tells stories of the pure gate: what the definitions, the rules and the model say goes in, the ruling
// on each call comes out; and, where a call is held, what becomes of the decisions that people send.
//
// tools.json are the manifests by key, agent.json the agent, request.json the start, requester who sent it, rules.json the
// rule sets. calls has one call a line. decisions has one decision a line, all about the first call that is held; ask.json changes what
// that ask says, for kinds and rounds to which the way is long. "=" stands for the ask's own fingerprint.
func TestStories(t *testing.T) {
	t.Parallel()
	story.Run(t, "testdata/*.txtar", func(t *testing.T, s story.Story) string {
		t.Helper()
		n := newNarrator(t, s)
		n.calls(s.File("calls"))
		n.change(s.File("ask.json"))
		n.decisions(s.File("decisions"))
		return strings.ReplaceAll(n.out.String(), n.rules.Digest(), "sha256:rules")
	})
}

const storyRun = "R"

// began is when every story begins.
var began = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

// narrator tells one story.
type narrator struct {
	t     *testing.T
	run   *run
	rules *judge.Rules
	judge *rule.Evaluator
	held  *events.CallHeld // the first call that is held
	out   strings.Builder
}

func newNarrator(t *testing.T, s story.Story) *narrator {
	t.Helper()
	n := &narrator{t: t, judge: rule.NewEvaluator(rule.NewCache(16))}
	n.run = &run{agent: events.AgentDef{ID: "support"}, tools: map[string]*tool{}}
	n.read(s.File("agent.json"), &n.run.agent)
	var tools map[string]events.Manifest
	n.read(s.File("tools.json"), &tools)
	for key, m := range tools {
		n.tool(key, m)
	}
	var sets []events.RuleSet
	n.read(s.File("rules.json"), &sets)
	named := map[string][]byte{}
	for _, set := range sets {
		raw, err := events.Marshal(set)
		n.must(err)
		named[set.Name] = raw
	}
	var err error
	n.rules, err = judge.Read(named)
	n.must(err)
	n.start(s.File("request.json"), events.Token(cmp.Or(strings.TrimSpace(string(s.File("requester"))), "bob")))
	return n
}

func (n *narrator) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
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

func (n *narrator) tool(key string, m events.Manifest) {
	n.t.Helper()
	m.ID = cmp.Or(m.ID, key)
	t := &tool{Manifest: agent.Complete(m), digest: "sha256:" + key}
	var err error
	t.input, err = events.CompileSchema(t.InputSchema)
	n.must(err)
	if len(t.RequestContextSchema) > 0 {
		t.context, err = events.CompileSchema(t.RequestContextSchema)
		n.must(err)
	}
	n.run.tools[key] = t
}

func (n *narrator) start(raw []byte, requester string) {
	n.t.Helper()
	d := events.RunStarted{
		RunID: storyRun, RootRunID: storyRun, AgentID: n.run.agent.ID, Requester: requester, RequestID: "q1", InboxSeq: 1,
		Path:    []events.PathEntry{{AgentID: n.run.agent.ID, RunID: storyRun}},
		Request: events.RunRequested{AgentID: n.run.agent.ID, Messages: events.Prompt{events.TextMessage(events.RoleUser, "Hi")}},
	}
	n.read(raw, &d.Request)
	o := &events.Origin{Namespace: events.DefaultNamespace, Service: "planner"}
	e, err := o.Fact(events.DefaultNamespace.Start(storyRun), d, events.Event{})
	n.must(err)
	n.run.start, err = events.NewState(e)
	n.must(err)
}

func (n *narrator) question(index, round int, planned events.CallPlanned) question {
	return question{
		ns: events.DefaultNamespace, call: events.CallID{Run: storyRun, Step: 1, Index: index}, round: round,
		planned: planned, run: n.run, rules: n.rules,
		judge: n.judge, expires: 168 * time.Hour, now: began,
	}
}

func (n *narrator) calls(lines []byte) {
	n.t.Helper()
	index := 0
	for line := range bytes.Lines(lines) {
		var planned events.CallPlanned
		n.read(line, &planned)
		index++
		v := n.question(index, 0, planned).decide(n.t.Context())
		n.say("%d-%d %s", 1, index, planned.ToolName)
		n.ruling(v)
		if v.held != nil && n.held == nil {
			n.held = v.held
		}
	}
}

func (n *narrator) say(format string, args ...any) { fmt.Fprintf(&n.out, format+"\n", args...) }

// ruling shows what follows; exactly one of the three must.
func (n *narrator) ruling(v ruling) {
	n.t.Helper()
	count := 0
	if d := v.finished; d != nil {
		count++
		n.result(*d)
	}
	if d := v.released; d != nil {
		count++
		n.say("  go to %s, tool %s version %s, round %d: %s", d.Pool, d.ToolID, d.ToolVersion, d.Round, d.Args)
		n.say("  allowed by %s, start by +%v", n.json(d.AllowedBy), d.StartBy.Sub(began))
	}
	if d := v.held; d != nil {
		count++
		n.say("  ask %s, round %d: %s", d.Kind, d.Round, d.Args)
		n.say("  because %s", n.json(d.Reason))
		n.say("  expires +%v, then %s", d.ExpiresAt.Sub(began), d.OnExpiry)
		if len(d.Approvers) > 0 || d.NotRequester || d.Signed {
			n.say("  approvers %q, not the requester: %v, signed: %v", d.Approvers, d.NotRequester, d.Signed)
		}
		n.demands(*d)
	}
	if count != 1 {
		n.t.Errorf("a call has %d rulings", count)
	}
}

// demands shows what else rules want of an ask.
func (n *narrator) demands(d events.CallHeld) {
	n.t.Helper()
	if !slices.Equal(d.Allowed, d.Kind.Allowed()) {
		n.say("  takes %v", d.Allowed)
	}
	if d.Quorum != nil {
		n.say("  needs %d approvals", d.Quorum.Need)
	}
	if d.NoGrant {
		n.say("  no grant stands for it")
	}
	for _, s := range d.Escalate {
		n.say("  at +%v also to %q, then %s on expiry", s.At.Sub(began), s.To, cmp.Or(s.OnExpiry, "the same"))
	}
	if d.Wait > 0 {
		n.say("  waits %v from one deadline to the next", time.Duration(d.Wait))
	}
	if d.Remind > 0 {
		n.say("  reminds every %v", time.Duration(d.Remind))
	}
}

func (n *narrator) result(d events.CallFinished) {
	n.t.Helper()
	n.say("  result %s, started: %v, round %d", d.Outcome, d.Started, d.Round)
	for _, part := range []struct {
		name string
		v    any
		have bool
	}{
		{"reason", d.Reason, d.Reason != ""},
		{"by", d.Principal, d.Principal != ""},
		{"error", d.Error, d.Error != nil},
		{"result", d.Result, d.Result != nil},
		{"args", d.Args, d.Args != nil},
	} {
		if part.have {
			n.say("  %s: %s", part.name, n.json(part.v))
		}
	}
}

func (n *narrator) json(v any) string {
	n.t.Helper()
	raw, err := events.Marshal(v)
	n.must(err)
	return string(raw)
}

// change makes the ask of the story another one.
func (n *narrator) change(raw []byte) {
	n.t.Helper()
	if len(raw) == 0 {
		return
	}
	n.read(raw, n.held)
	if !bytes.Contains(raw, []byte(`"allowed"`)) {
		n.held.Allowed = n.held.Kind.Allowed()
	}
	n.say("the ask: kind %s, round %d, takes %v", n.held.Kind, n.held.Round, n.held.Allowed)
}

// sent is a decision as somebody sends it.
type sent struct {
	By       string                   `json:"by"`
	Auth     string                   `json:"auth"`
	Groups   []string                 `json:"groups"`
	Signed   bool                     `json:"signed"`
	After    events.Duration          `json:"after"` // its server's time stamp, after the ask
	Carried  bool                     `json:"carried"`
	Decision events.DecisionRequested `json:"decision"`
}

func (n *narrator) decisions(lines []byte) {
	n.t.Helper()
	for line := range bytes.Lines(lines) {
		d := sent{By: "alice", Auth: events.AuthKey, After: events.Duration(time.Second)}
		n.read(line, &d)
		if d.Decision.Fingerprint == "=" {
			d.Decision.Fingerprint = n.held.Fingerprint
		}
		n.decide(d, string(bytes.TrimSpace(line)))
	}
}

func (n *narrator) decide(d sent, line string) {
	n.t.Helper()
	n.say("%s", line)
	call, err := events.ParseCallID(n.held.ToolCallID)
	n.must(err)
	m := meeting{
		call: call, req: d.Decision, who: proof{principal: d.By, authType: d.Auth, groups: d.Groups}, ask: *n.held,
		run: n.run, fact: events.Event{Seq: 7, Stored: began, Carried: d.Carried},
	}
	if d.Signed {
		m.who.signed = &events.Signed{Key: "U"}
	}
	a, refusal := m.judge(events.Event{ID: "d1", Seq: 9, Stored: began.Add(time.Duration(d.After))})
	if refusal != nil {
		n.refused(refusal)
		return
	}
	if m.ask.Votes(a.Decision) {
		v := voteOf(a)
		n.say("  vote %s by %s (%s), round %d, at +%v, reason %q", v.Decision, v.Principal, v.AuthType, v.Round, v.At.Sub(began), v.Reason)
		return
	}
	n.say("  answer %s by %s (%s), round %d, at +%v, reason %q", a.Decision, a.Principal, a.AuthType, a.Round, a.At.Sub(began), a.Reason)
	if a.Grant != nil {
		n.say("  grant %s", n.json(a.Grant))
	}
	switch {
	case a.Decision == events.Edit:
		q := n.question(call.Index, n.held.Round+1, events.CallPlanned{ToolName: n.held.ToolName})
		q.edited, q.follows = a.Args, 10
		n.ruling(q.decide(n.t.Context()))
	case a.Decision.Releases():
		n.say("  go, the bytes of the ask, resume data: %s", n.json(a.Resume))
	default:
		n.result(*resultOf(answered{call: call, ask: *n.held, data: a}, n.held.Attempt > 0))
	}
}

func (n *narrator) refused(e *events.Error) {
	n.t.Helper()
	n.say("  refused: %s: %s", e.Code, e.Message)
	for _, issue := range e.Issues {
		n.say("    %s: %s", cmp.Or(issue.Field, "(whole)"), issue.Message)
	}
	if e.Rule != "" {
		n.say("    rule %s", e.Rule)
	}
	if e.Ask != nil {
		n.say("    the pending ask is told: round %d", e.Ask.Round)
	}
	if e.Allowed != nil {
		n.say("    takes %v", e.Allowed)
	}
}

// TestB8_6Kinds holds every decision against every kind of ask: what an ask does not take is wrong_kind, whatever else it
// brings, and the call stays as it is.
func TestB8_6Kinds(t *testing.T) {
	t.Parallel()
	takes := map[events.AskKind][]events.Decision{
		events.AskApproval:  {events.Approve, events.Decline, events.Edit, events.Respond},
		events.AskSuspended: {events.ResumeD, events.Decline, events.Respond},
		events.AskInDoubt:   {events.Retry, events.Decline, events.Respond},
		events.AskClient:    {events.Respond, events.Decline},
		events.AskEvent:     {events.Respond},
		events.AskWait:      {},
	}
	n := newNarrator(t, story.Parse([]byte("-- tools.json --\n{\"pay\": {\"description\": \"Pay\"}}\n")))
	for _, kind := range slices.Sorted(maps.Keys(takes)) {
		for _, d := range []events.Decision{events.Approve, events.Decline, events.Edit, events.Respond, events.ResumeD, events.Retry, events.Expired} {
			ask := events.CallHeld{
				ToolCallID: "R=1-1", Kind: kind, Round: 1, ToolName: "pay", Fingerprint: "sha256:1",
				Allowed: kind.Allowed(), ExpiresAt: began.Add(time.Hour),
			}
			m := meeting{
				run: n.run, ask: ask, who: proof{principal: "bob"}, fact: events.Event{Stored: began},
				req: events.DecisionRequested{Decision: d, Fingerprint: "sha256:1", Args: []byte(`{}`), Result: []byte(`1`), ResumeData: []byte(`1`)},
			}
			_, refusal := m.judge(events.Event{Stored: began.Add(time.Second)})
			switch {
			case slices.Contains(takes[kind], d) && refusal != nil:
				t.Errorf("%s on %s is refused: %v", d, kind, refusal)
			case !slices.Contains(takes[kind], d) && (refusal == nil || refusal.Code != events.CodeWrongKind):
				t.Errorf("%s on %s: %v, want wrong_kind", d, kind, refusal)
			}
		}
	}
}
