package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func newAuditShowCommand(a *app) *cobra.Command {
	var o showOptions
	cmd := &cobra.Command{
		Use: "show --run RUN [FILE…]", Short: "Read what was decided in a run: by whom, about what, and what came of it",
		Long: `Read what was decided about the calls of a run and of those below it, from the record, or from the files of an export:
who decided, when, how that was verified, what was shown, what ran then, and how it ended. Calls that no person decided are
listed too, with the rule or the grant that let them run. Files are proven before anything of them is shown; --prev is the
hash that they follow.

Columns: toolCallId, tool, decision, by whom, when, how verified, digest of the arguments that were shown, what ran (same: the
very bytes that were shown), outcome. A decision that did not count has its code as outcome.

JSON: {"runId", "decisions": [{"seq", "toolCallId", "runId", "round", "toolName", "kind", "decision", "vote", "principal",
"at", "how", "reason", "why", "code", "shown": {"at", "fingerprint", "argsDigest", "argsSize", "preview", "approvers", "quorum"}, "ran":
{"at", "tool", "version", "pool", "argsDigest", "asShown", "rule", "grant", "workers"}, "outcome", "started", "endedAt"}]}. why
is the rule that held the call; runId is there when a decision met no single call, and vote when it was one of several.`,
		Example: `  weir audit show --run order-1042
  weir audit show --run order-1042 march.ndjson --gate-keys U… -o json`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.showAudit(cmd.Context(), args, o) },
	}
	o.keys.define(cmd)
	cmd.Flags().StringVar(&o.run, "run", "", "the run")
	cmd.Flags().StringVar(&o.since, "since", "", "look from this time on only, when the record is long: 24h, or a time of RFC 3339")
	cmd.Flags().StringVar(&o.prev, "prev", "", "of files: hash that the first record must follow")
	_ = cmd.MarkFlagRequired("run") // the flag was just made
	return cmd
}

type showOptions struct {
	keys             keyFlags
	run, since, prev string
}

// shownDecision is a decision about a call, with what it was about and what came of it.
type shownDecision struct {
	Seq        uint64          `json:"seq"`
	ToolCallID string          `json:"toolCallId"`
	RunID      string          `json:"runId,omitempty"` // where the decision met no single call
	Round      int             `json:"round"`
	ToolName   string          `json:"toolName,omitempty"`
	Kind       events.AskKind  `json:"kind,omitempty"`
	Decision   events.Decision `json:"decision,omitempty"` // empty: a rule or a grant let the call run
	Vote       bool            `json:"vote,omitempty"`
	Principal  string          `json:"principal,omitempty"`
	At         time.Time       `json:"at"`
	How        string          `json:"how,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	Why        string          `json:"why,omitempty"`
	Code       events.Code     `json:"code,omitempty"`
	Shown      *shownAsk       `json:"shown,omitempty"`
	Ran        *shownRelease   `json:"ran,omitempty"`
	Outcome    events.Outcome  `json:"outcome,omitempty"`
	Started    bool            `json:"started,omitempty"`
	EndedAt    *time.Time      `json:"endedAt,omitempty"`
}

// shownAsk is what people had before them.
type shownAsk struct {
	At          time.Time       `json:"at"`
	Fingerprint string          `json:"fingerprint"`
	ArgsDigest  string          `json:"argsDigest"`
	ArgsSize    int             `json:"argsSize"`
	Preview     json.RawMessage `json:"preview,omitempty"`
	Approvers   []string        `json:"approvers,omitempty"`
	Quorum      *events.Quorum  `json:"quorum,omitempty"`
}

// shownRelease is what ran.
type shownRelease struct {
	At         time.Time `json:"at"`
	Tool       string    `json:"tool"`
	Version    string    `json:"version"`
	Pool       string    `json:"pool"`
	ArgsDigest string    `json:"argsDigest"`
	AsShown    bool      `json:"asShown"` // the very bytes that the ask of this decision showed
	Rule       string    `json:"rule,omitempty"`
	Grant      string    `json:"grant,omitempty"`
	Workers    []string  `json:"workers,omitempty"` // that started it, once for each start
}

func (a *app) showAudit(ctx context.Context, files []string, o showOptions) error {
	since, err := sinceOf(o.since, time.Now())
	if err != nil {
		return err
	}
	keys, err := a.auditKeys(ctx, o.keys)
	if err != nil {
		return err
	}
	h := auditHistory{run: o.run, keys: keys, votes: auditVotes{}, calls: map[string]*callHistory{}}
	if len(files) > 0 {
		err = a.historyFromFiles(&h, files, cmp.Or(o.prev, events.NoRecord))
	} else {
		err = a.historyFromBus(ctx, &h, jetstream.AuditQuery{Run: o.run, Since: since})
	}
	if err != nil {
		return err
	}
	if !h.found {
		return &exit{exitNotFound, fmt.Errorf("the record has nothing of run %s", o.run)}
	}
	for _, text := range h.doubts {
		a.note("%s", text)
	}
	out := struct {
		RunID     string          `json:"runId"`
		Decisions []shownDecision `json:"decisions"`
	}{o.run, h.list()}
	return a.print(out, func(io.Writer) { a.tellHistory(out.Decisions) })
}

func (a *app) historyFromFiles(h *auditHistory, names []string, prev string) error {
	files, clean, err := a.recordFiles(names)
	if err != nil {
		return err
	}
	defer clean()
	_, err = verifyChain(files, prev, "", func(_ place, r events.Record) {
		if namespaceIn(r.Subject).FactOf(h.run, r.Subject) {
			h.add(r)
		}
	})
	if err != nil {
		return &exit{exitFailed, err}
	}
	return nil
}

// namespaceIn is the namespace of a stored subject.
func namespaceIn(subject string) events.Namespace {
	part := strings.Split(subject, ".")
	return events.Namespace(part[min(1, len(part)-1)])
}

func (a *app) historyFromBus(ctx context.Context, h *auditHistory, q jetstream.AuditQuery) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if err := conn.AwaitAudit(ctx, auditPatience); err != nil {
		return noRecord(err)
	}
	for r, err := range conn.Audit(ctx, q) {
		if err != nil && !errors.Is(err, jetstream.ErrGap) {
			return noRecord(err)
		}
		if err == nil {
			h.add(r)
		}
	}
	return nil
}

// auditHistory tells the decisions of a run from its facts.
type auditHistory struct {
	run    string
	keys   auditKeys
	votes  auditVotes
	found  bool
	calls  map[string]*callHistory
	all    []*shownDecision
	doubts []string // facts that cannot be believed
}

// callHistory is what is known of a call so far.
type callHistory struct {
	grant *events.Grant // that lets it run
	how   string        // who gave it is verified
	name  string
	ask   *events.CallHeld
	shown *shownAsk
	last  *shownDecision // that lets it run, or ends it
}

// add takes the next fact of the run. What is not to be believed is told, and does not count.
func (h *auditHistory) add(r events.Record) {
	h.found = true
	e, err := h.keys.fact(r)
	if err == nil && !e.Carried {
		err = h.take(r, e)
	}
	if err != nil {
		h.doubts = append(h.doubts, fmt.Sprintf("record %d (%s) does not count: %v", r.Seq, oneLine(r.Subject), err))
	}
}

func (h *auditHistory) take(r events.Record, e events.Event) error {
	if e.Place.Kind == events.KindStep {
		step, err := events.Data[events.StepFinished](e)
		for _, planned := range step.Calls {
			h.call(planned.ToolCallID).name = planned.ToolName
		}
		return err
	}
	if e.Place.Call == "" {
		return nil
	}
	call := h.call(e.Place.CallID().String())
	switch e.Place.Kind {
	case events.KindAsk:
		return call.held(e)
	case events.KindAnswer, events.KindVote, events.KindRefused:
		return h.decided(call, r, e)
	case events.KindUse:
		return h.granted(call, e)
	case events.KindGo:
		return h.released(call, r, e)
	case events.KindClaim:
		claim, err := events.Data[events.CallClaimed](e)
		if call.last != nil && call.last.Ran != nil {
			call.last.Ran.Workers = append(call.last.Ran.Workers, claim.Worker)
		}
		return err
	case events.KindResult:
		return call.ended(e)
	default:
		return nil
	}
}

func (h *auditHistory) call(id string) *callHistory {
	if h.calls[id] == nil {
		h.calls[id] = &callHistory{}
	}
	return h.calls[id]
}

func (c *callHistory) held(e events.Event) error {
	ask, err := events.Data[events.CallHeld](e)
	if err != nil {
		return err
	}
	c.ask, c.name = &ask, ask.ToolName
	c.shown = &shownAsk{
		At: ask.AskedAt, Fingerprint: ask.Fingerprint, ArgsDigest: cmp.Or(ask.ArgsDigest, events.Digest(ask.Args)),
		ArgsSize: cmp.Or(ask.ArgsSize, len(ask.Args)), Preview: ask.Preview, Approvers: ask.Approvers, Quorum: ask.Quorum,
	}
	return nil
}

// decided adds an answer, a vote or a decision that did not count.
func (h *auditHistory) decided(call *callHistory, r events.Record, e events.Event) error {
	row, d, err := decisionIn(e)
	if err != nil {
		return err
	}
	row.Seq = r.Seq
	how, err := h.votes.decision(h.keys, row, d, e.Place.Namespace)
	if err != nil {
		if row.Fact != events.KindRefused {
			return err
		}
		how = err.Error()
	}
	s := &shownDecision{
		Seq: r.Seq, ToolCallID: row.ToolCallID, RunID: row.RunID, ToolName: call.name, Decision: row.Decision,
		Vote: row.Fact == events.KindVote, Principal: row.Principal, At: row.At, How: how, Code: row.Code, Shown: call.shown,
	}
	var said struct {
		Round  int    `json:"round"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(e.Data, &said); err != nil {
		return err
	}
	s.Round, s.Reason = said.Round, said.Reason
	if call.ask != nil {
		s.Kind, s.Why = call.ask.Kind, cmp.Or(call.ask.Reason.Rule, call.ask.Reason.Text)
	}
	if row.Fact == events.KindAnswer {
		call.last = s
	}
	h.all = append(h.all, s)
	return nil
}

// granted keeps by whose standing approval a call is about to be released.
func (h *auditHistory) granted(call *callHistory, e events.Event) error {
	_, d, err := decisionIn(e)
	if err == nil {
		call.how, err = h.keys.decision(e.Place.Namespace, d)
	}
	if err == nil {
		call.grant = d.grant
	}
	return err
}

// released adds what may run to the answer that let it, or as something that no person decided.
func (h *auditHistory) released(call *callHistory, r events.Record, e events.Event) error {
	d, err := events.Data[events.CallReleased](e)
	if err != nil {
		return err
	}
	frozen := events.Frozen{
		Namespace: d.Namespace, RunID: d.RunID, ToolCallID: d.ToolCallID, Round: d.Round, ToolID: d.ToolID,
		ToolVersion: d.ToolVersion, InputSchemaDigest: d.InputSchemaDigest, Args: []byte(d.Args),
	}
	if frozen.Fingerprint() != d.Fingerprint {
		return errors.New("its fingerprint is not that of what it releases")
	}
	if d.AllowedBy.Answer == 0 || call.last == nil {
		call.last = &shownDecision{Seq: r.Seq, ToolCallID: d.ToolCallID, Round: d.Round, ToolName: d.ToolName, At: e.Time}
		if g := call.grant; g != nil && g.ID == d.AllowedBy.Grant {
			call.last.Principal, call.last.Reason, call.last.How = g.GrantedBy, g.Reason, "grant "+g.ID+": "+call.how
		}
		h.all = append(h.all, call.last)
	}
	ran := &shownRelease{
		At: e.Time, Tool: d.ToolID, Version: d.ToolVersion, Pool: d.Pool, ArgsDigest: events.Digest([]byte(d.Args)),
		Rule: d.AllowedBy.Rule, Grant: d.AllowedBy.Grant,
	}
	if s := call.last.Shown; s != nil {
		ran.AsShown = s.Fingerprint == d.Fingerprint // which is made of the arguments too
	}
	call.last.Ran = ran
	return nil
}

func (c *callHistory) ended(e events.Event) error {
	d, err := events.Data[events.CallFinished](e)
	if err != nil || c.last == nil { // nobody was asked, and nothing ran
		return err
	}
	c.last.Outcome, c.last.Started, c.last.EndedAt = d.Outcome, d.Started, &e.Time
	return nil
}

func (h *auditHistory) list() []shownDecision {
	list := make([]shownDecision, len(h.all))
	for i, d := range h.all {
		list[i] = *d
	}
	slices.SortStableFunc(list, func(a, b shownDecision) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

func (a *app) tellHistory(list []shownDecision) {
	if len(list) == 0 {
		a.note("nothing was decided")
		return
	}
	rows := make([][]string, len(list))
	for i, d := range list {
		rows[i] = []string{
			callText(d.ToolCallID, d.RunID), d.ToolName, d.what(), cmp.Or(d.Principal, "the gate"), d.At.UTC().Format(time.RFC3339),
			cmp.Or(d.How, d.Ran.allowed()), d.digest(), d.Ran.text(), d.end(),
		}
	}
	a.table([]string{"CALL", "TOOL", "DECISION", "BY", "WHEN", "VERIFIED", "SHOWN", "RAN", "OUTCOME"}, rows)
}

func (d shownDecision) what() string {
	what := string(d.Decision)
	switch {
	case d.Vote:
		what += " (vote)"
	case d.Decision == "" && d.Code != "":
		what = "not readable"
	case d.Decision == "":
		what = "released"
	}
	if d.Round > 0 {
		what += ", round " + strconv.Itoa(d.Round)
	}
	return what
}

func (d shownDecision) digest() string {
	if d.Shown == nil {
		return ""
	}
	return d.Shown.ArgsDigest
}

func (d shownDecision) end() string {
	switch {
	case d.Code != "":
		return "refused: " + string(d.Code)
	case d.Vote:
		return ""
	case d.EndedAt == nil:
		return "open"
	}
	return string(d.Outcome)
}

// allowed is what let a call run that nobody decided.
func (r *shownRelease) allowed() string {
	switch {
	case r == nil:
		return ""
	case r.Grant != "":
		return "grant " + r.Grant
	case r.Rule != "":
		return "rule " + r.Rule
	}
	return "no rule wanted a person"
}

func (r *shownRelease) text() string {
	if r == nil {
		return ""
	}
	text := r.Tool + " " + r.Version
	if r.AsShown {
		return text + ", same"
	}
	return text + ", " + strings.TrimSpace(r.ArgsDigest)
}
