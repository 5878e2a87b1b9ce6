package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
)

// maxFindings bounds the findings that are listed.
const maxFindings = 20

func newAuditVerifyCommand(a *app) *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use: "verify FILE…", Short: "Prove an export: its chain of hashes, and every signature", Args: cobra.MinimumNArgs(1),
		Long: `Prove an export, without a connection. Several files are the parts of one, in order; - is the standard input.

The chain: each record is what its hash was made of, and follows the one before. The first that is missing, was added or was
changed is named, and the exit code is 1. That nothing is missing at the end can be proven only with --last, the last hash
as you have kept it elsewhere; that nothing is missing at the beginning, by a first record that follows nothing, or --prev.

The signatures: asks, answers, votes, releases and uses of grants are signed by gates, and what was decided by who decided it,
where its principal has a key or came through a gateway. With --gate-keys, --gateway-keys and --principal-key they must be of these
keys; a principal's may be given several times, as keys change. Without, each is held against the key that it names, which
proves that nothing was changed and not whose it is. What planners and executors write (turns, claims, results) is not
signed.

JSON: {"records", "from", "to", "hash", "signed": facts signed by gates, "starts": requests that are signed, "gates": [their
keys], "decisions": [{"seq", "fact": "answer|vote|refused|use", "toolCallId", "runId": of one that met no single call,
"decision", "principal", "at", "how", "code": of a refused one}]}.`,
		Example: `  weir audit verify march.ndjson april.ndjson --gate-keys U… --last 1f4c…
  weir audit verify march.ndjson --principal-key alice=U… --principal-key bob=U…
  weir audit verify march.ndjson --keys-from registry                the keys that principals have now`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.verifyAudit(cmd.Context(), args, o) },
	}
	o.keys.define(cmd)
	cmd.Flags().StringVar(&o.prev, "prev", "", "hash that the first record must follow; default: it is the first of all")
	cmd.Flags().StringVar(&o.last, "last", "", "hash that the last record must have")
	return cmd
}

func (f *keyFlags) define(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringArrayVar(&f.principals, "principal-key", nil, "NAME=U…: a public key of a principal; may be repeated")
	set.StringVar(&f.gateways, "gateway-keys", "", "public keys of gateways, with commas")
	set.StringVar(&f.from, "keys-from", "", "registry: take the keys that principals have now from the bus")
}

type verifyOptions struct {
	keys       keyFlags
	prev, last string
}

// provenDecision is a decision in the record, and what proves it.
type provenDecision struct {
	Seq        uint64          `json:"seq"`
	Fact       events.Kind     `json:"fact"`
	ToolCallID string          `json:"toolCallId"`
	RunID      string          `json:"runId,omitempty"` // where the decision met no single call
	Decision   events.Decision `json:"decision,omitempty"`
	Principal  string          `json:"principal,omitempty"`
	At         time.Time       `json:"at"`
	How        string          `json:"how"`
	Code       events.Code     `json:"code,omitempty"`
}

// verdict is what was proven.
type verdict struct {
	Records   int              `json:"records"`
	From      uint64           `json:"from,omitempty"`
	To        uint64           `json:"to,omitempty"`
	Hash      string           `json:"hash"`
	Signed    int              `json:"signed"`
	Starts    int              `json:"starts"`
	Gates     []string         `json:"gates"`
	Decisions []provenDecision `json:"decisions"`
}

func (a *app) verifyAudit(ctx context.Context, names []string, o verifyOptions) error {
	for flag, hash := range map[string]string{"--prev": o.prev, "--last": o.last} {
		if hash != "" && !isHash(hash) {
			return usagef("%s is no hash of a record: 64 digits and letters a to f", flag)
		}
	}
	keys, err := a.auditKeys(ctx, o.keys)
	if err != nil {
		return err
	}
	if o.prev == "" {
		o.prev = events.NoRecord
	}
	p := auditProver{keys: keys, votes: auditVotes{}, found: verdict{Gates: []string{}, Decisions: []provenDecision{}}}
	files, clean, err := a.recordFiles(names)
	if err != nil {
		return err
	}
	defer clean()
	chain, err := verifyChain(files, o.prev, o.last, p.take)
	if err != nil {
		return &exit{exitFailed, err}
	}
	p.found.Records, p.found.From, p.found.To, p.found.Hash = chain.count, chain.first, chain.last.Seq, chain.prev
	if len(p.findings) > 0 {
		return &exit{exitFailed, p.findingsError()}
	}
	return a.print(p.found, func(w io.Writer) { a.tellVerdict(w, p) })
}

// recordFiles are files by name; - is the standard input, which becomes a file, because it may have to be read again.
func (a *app) recordFiles(names []string) (files []recordFile, clean func(), err error) {
	clean = func() {}
	for _, name := range names {
		file := recordFile{name, func() (io.ReadCloser, error) { return os.Open(name) }} //nolint:gosec // the user names it
		if name == "-" {
			path, err := spool(a.in)
			if err != nil {
				return nil, clean, err
			}
			clean = func() { _ = os.Remove(path) }                                                      // a file of the system's temporary ones
			file = recordFile{"standard input", func() (io.ReadCloser, error) { return os.Open(path) }} //nolint:gosec // just made
		}
		files = append(files, file)
	}
	return files, clean, nil
}

// spool writes what is read to a temporary file.
func spool(in io.Reader) (path string, err error) {
	file, err := os.CreateTemp("", "weir-audit-*")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(file, in)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(file.Name()) // err says more
	}
	return file.Name(), err
}

// auditProver proves what the records of a chain hold.
type auditProver struct {
	keys     auditKeys
	votes    auditVotes
	found    verdict
	findings []string
	more     int // findings that are not listed
}

// take proves one record. What is wrong with it is kept, so that all of it is told.
func (p *auditProver) take(at place, r events.Record) {
	e, err := p.keys.fact(r)
	if err == nil {
		err = p.decisions(r, e)
	}
	switch {
	case err == nil:
	case len(p.findings) < maxFindings:
		p.findings = append(p.findings, fmt.Sprintf("%s: record %d (%s): %v", at, r.Seq, oneLine(r.Subject), err))
	default:
		p.more++
	}
}

func (p *auditProver) findingsError() error {
	errs := make([]error, len(p.findings))
	for i, text := range p.findings {
		errs[i] = errors.New(text)
	}
	if p.more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", p.more))
	}
	return errors.Join(errs...)
}

// decisions proves the decisions in a fact whose own signature is proven.
func (p *auditProver) decisions(r events.Record, e events.Event) error {
	if domainOf(e) != "" {
		p.found.Signed++
		p.found.Gates = addOnce(p.found.Gates, r.Key)
	}
	if e.Place.Kind == events.KindStart && !e.Carried {
		signed, err := p.keys.start(e)
		if signed && err == nil {
			p.found.Starts++
		}
		return err
	}
	row, d, err := decisionIn(e)
	if err != nil || row == nil {
		return err
	}
	row.Seq = r.Seq
	if row.How, err = p.votes.decision(p.keys, row, d, e.Place.Namespace); err != nil {
		if row.Fact != events.KindRefused {
			return err
		}
		row.How = err.Error() // it did not count, perhaps for this very reason
	}
	p.found.Decisions = append(p.found.Decisions, *row)
	return nil
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// decisionIn reads the decision that a fact holds; nothing when it holds none. A copy of a fact that was there before holds
// none of its own.
func decisionIn(e events.Event) (row *provenDecision, d decided, err error) {
	if e.Carried {
		return nil, d, nil
	}
	row = &provenDecision{Fact: e.Place.Kind}
	switch row.Fact {
	case events.KindAnswer:
		var a events.CallAnswered
		a, err = events.Data[events.CallAnswered](e)
		row.ToolCallID, row.At = a.ToolCallID, a.At
		d = decided{principal: a.Principal, authType: a.AuthType, eventID: a.EventID, decision: a.Decision, signed: a.Signed}
		d.quorum, d.vote = len(a.Votes) > 0, auditVote{a.ToolCallID, a.Principal, a.Round}
	case events.KindVote:
		var v events.VoteCast
		v, err = events.Data[events.VoteCast](e)
		row.ToolCallID, row.At = v.ToolCallID, v.At
		d = decided{principal: v.Principal, authType: v.AuthType, eventID: v.EventID, decision: v.Decision, signed: v.Signed}
		d.vote = auditVote{v.ToolCallID, v.Principal, v.Round}
	case events.KindRefused:
		var r events.DecisionRefused
		r, err = events.Data[events.DecisionRefused](e)
		row.ToolCallID, row.At, row.Code = r.ToolCallID, r.At, r.Code
		d = decided{principal: r.Principal, eventID: r.EventID, decision: r.Decision, signed: r.Signed, run: r.RunID}
		if r.ToolCallID == "" {
			row.RunID = r.RunID
		}
	case events.KindUse: // somebody has approved it beforehand
		var u events.GrantUsed
		u, err = events.Data[events.GrantUsed](e)
		g := u.Grant
		row.ToolCallID, row.At = u.ToolCallID, u.At
		d = decided{principal: g.GrantedBy, authType: g.AuthType, decision: events.Approve, grant: &g, signed: g.Signed}
	default:
		return nil, d, nil
	}
	row.Principal, row.Decision, d.toolCallID = d.principal, d.decision, row.ToolCallID
	if d.grant != nil {
		d.toolCallID = d.grant.ToolCallID // whose approval brought it, not the one that it was used for
	}
	return row, d, err
}

// callText names a call, or the run of a decision that met no single call.
func callText(call, run string) string {
	if call != "" {
		return call
	}
	return oneLine(run) + ", no single call"
}

func (a *app) tellVerdict(w io.Writer, p auditProver) {
	v := p.found
	if len(v.Decisions) > 0 {
		rows := make([][]string, len(v.Decisions))
		for i, d := range v.Decisions {
			what := string(d.Fact)
			if d.Code != "" {
				what += ": " + string(d.Code)
			}
			rows[i] = []string{
				strconv.FormatUint(d.Seq, 10), callText(d.ToolCallID, d.RunID), string(d.Decision), what, d.Principal,
				d.At.UTC().Format(time.RFC3339), d.How,
			}
		}
		a.table([]string{"RECORD", "CALL", "DECISION", "AS", "BY", "WHEN", "VERIFIED"}, rows)
	}
	_, _ = fmt.Fprintf(w, "%s in one chain", counted(v.Records, "record"))
	if v.Records > 0 {
		_, _ = fmt.Fprintf(w, ", numbers %d to %d", v.From, v.To)
	}
	_, _ = fmt.Fprintf(w, ", last hash %s; %s, %s signed by gates\n", v.Hash, counted(len(v.Decisions), "decision"),
		counted(v.Signed, "fact"))
	if p.keys.gates == nil && len(v.Gates) > 0 {
		_, _ = fmt.Fprintf(w, "the gates' keys were not compared with known ones (--gate-keys): %s\n", oneLine(fmt.Sprint(v.Gates)))
	}
}
