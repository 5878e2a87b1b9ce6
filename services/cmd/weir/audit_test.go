package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// auditServer is a server that keeps a record, and whoever writes facts into its log.
type auditServer struct {
	t      *testing.T
	srv    *embedded.Server
	conn   *jetstream.Conn
	origin events.Origin
	gate   events.Key
	facts  int
}

func startAuditServer(t *testing.T) *auditServer {
	t.Helper()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	s := &auditServer{t: t, srv: jetstreamtest.StartListening(t), gate: key}
	s.origin = events.Origin{Namespace: events.DefaultNamespace, Service: "approval", Key: &key}
	s.connect()
	if err := s.conn.Ensure(t.Context(), jetstream.Settings{Audit: true}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *auditServer) connect() {
	s.t.Helper()
	conn, err := jetstream.Connect(s.t.Context(), jetstream.Options{URL: s.srv.ClientURL()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	s.conn = conn
}

func (s *auditServer) restart() {
	s.t.Helper()
	_ = s.conn.Close()
	s.srv = jetstreamtest.Restart(s.t, s.srv)
	s.connect()
}

// store appends the first fact of its chain.
func (s *auditServer) store(p events.Place, data any) events.Event {
	s.t.Helper()
	e, err := s.origin.Fact(p, data, events.Event{})
	if err != nil {
		s.t.Fatal(err)
	}
	done, err := s.conn.Append(s.t.Context(), events.First(p), e)
	if err != nil || done.Outcome != jetstream.Stored {
		s.t.Fatalf("store %s: %v, %v", p.Subject(), done.Outcome, err)
	}
	s.facts++
	return done.Last
}

// more stores some answers.
func (s *auditServer) more(n int) {
	s.t.Helper()
	for range n {
		call := events.CallID{Run: fmt.Sprint("r", s.facts), Step: 1, Index: 1}
		s.store(s.origin.Namespace.Call(call, events.KindAnswer), events.CallAnswered{
			ToolCallID: call.String(), RunID: call.Run, Decision: events.Decline, Fingerprint: events.Digest(nil), Principal: "alice",
			AuthType: events.AuthSubject, At: time.Now().UTC(), EventID: events.NewID(time.Now()),
		})
	}
}

// weir calls the program.
func (s *auditServer) weir(code int, args ...string) (out, errs string) {
	s.t.Helper()
	return callWeir(s.t, s.srv.ClientURL(), code, args...)
}

func callWeir(t *testing.T, url string, code int, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	got := run(t.Context(), args, stdio{
		in: strings.NewReader(""), out: &o, err: &e,
		lookup: lookupIn(map[string]string{"NATS_URL": url, "WEIR_PRINCIPAL": "alice", "XDG_CONFIG_HOME": t.TempDir()}),
	})
	if got != code {
		t.Fatalf("weir %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, o.String(), e.String())
	}
	return o.String(), e.String()
}

// TestB8_33_ExportInPartsIsOneExport exports what there is, in one file that grows and in files that follow each other,
// across a restart of the server and a crash of the exporter, and compares it with one export of everything.
func TestB8_33_ExportInPartsIsOneExport(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t)
	dir := t.TempDir()
	grown := filepath.Join(dir, "grown.ndjson")
	s.more(5)
	s.weir(0, "audit", "export", "--out", grown)
	first, _ := s.weir(0, "audit", "export")
	s.restart()
	s.more(7)

	// The exporter is killed in the middle of a line.
	cut, err := os.ReadFile(grown)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(grown, append(cut, `{"seq":6,"logSeq":6,"ti`...), 0o600); err != nil {
		t.Fatal(err)
	}
	told, _ := s.weir(0, "audit", "export", "--out", grown)
	if !strings.Contains(told, "7 records, numbers 6 to 12, last hash ") {
		t.Errorf("told %q", told)
	}
	last := recordOf(t, []byte(lastOf(first)))
	second, _ := s.weir(0, "audit", "export", "--from", fmt.Sprint(last.Seq+1), "--prev", last.Hash)
	whole, _ := s.weir(0, "audit", "export")
	if first+second != whole {
		t.Errorf("two exports are not one:\n%s\n%s", first+second, whole)
	}
	if got, err := os.ReadFile(grown); err != nil || string(got) != whole {
		t.Errorf("the file that grew is not one export: %v\n%s\n%s", err, got, whole)
	}
	parts := []string{filepath.Join(dir, "1"), filepath.Join(dir, "2")}
	for i, content := range []string{first, second} {
		if err := os.WriteFile(parts[i], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	end := recordOf(t, []byte(lastOf(whole))).Hash
	s.weir(0, "audit", "verify", parts[0], parts[1], "--gate-keys", s.gate.Public, "--last", end)
	s.weir(0, "audit", "verify", parts[1], "--prev", last.Hash)
	_, errs := s.weir(1, "audit", "verify", parts[1])
	if !strings.Contains(errs, "2:1: record 6 is the first, and follows one with the hash "+last.Hash) {
		t.Errorf("the second part alone: %s", errs)
	}
}

func lastOf(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// TestB8_33_EventsForOthersGoOn exports CloudEvents into a file in two goes.
func TestB8_33_EventsForOthersGoOn(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t)
	if err := s.conn.SelfTest(t.Context(), "approval"); err != nil { // what nobody wants to read there
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "events.ndjson")
	s.more(2)
	s.weir(0, "audit", "export", "--format", "cloudevents", "--out", file)
	s.more(1)
	s.weir(0, "audit", "export", "--format", "cloudevents", "--out", file)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var seqs []any
	for line := range strings.Lines(string(raw)) {
		e, err := events.Decode([]byte(strings.TrimSpace(line)))
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, e.Extensions["auditseq"])
	}
	if got := fmt.Sprint(seqs); got != "[3 4 5]" {
		t.Errorf("events of records %s", got)
	}
	_, errs := s.weir(1, "audit", "export", "--out", file)
	if !strings.Contains(errs, "none of an export of this format") {
		t.Errorf("records into a file of events: %s", errs)
	}
}

// TestB8_33_ExportOfWhatHasAgedOut stops instead of leaving a hole in the chain.
func TestB8_33_ExportOfWhatHasAgedOut(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t)
	file := filepath.Join(t.TempDir(), "record.ndjson")
	s.more(2)
	s.weir(0, "audit", "export", "--out", file)
	s.more(4)
	if err := s.conn.AwaitAudit(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := s.conn.Ensure(t.Context(), jetstream.Settings{Audit: true, MaxBytes: map[string]int64{events.StreamAudit: 2000}}); err != nil {
		t.Fatal(err)
	}
	_, errs := s.weir(1, "audit", "export", "--out", file)
	if !strings.Contains(errs, "what was before has aged out: begin with --from ") {
		t.Errorf("said %s", errs)
	}
	s.weir(0, "audit", "verify", file)
	s.weir(0, "audit", "export") // from the oldest that is there
}

func TestAuditIsNotKept(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartListening(t)
	conn, err := jetstream.Connect(t.Context(), jetstream.Options{URL: srv.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Ensure(t.Context(), jetstream.Settings{}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"audit", "export"}, {"audit", "show", "--run", "r"}} {
		_, errs := callWeir(t, srv.ClientURL(), exitNotFound, args...)
		if !strings.Contains(errs, "weir stream provision --audit") {
			t.Errorf("weir %v: %s", args, errs)
		}
	}
}

// TestB8_29_B8_33_SignaturesOfTheRecord puts decisions into the record with every kind of proof, and some that prove
// nothing, and verifies them: SECURITY.md 4.
func TestB8_29_B8_33_SignaturesOfTheRecord(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t)
	alice, gateway := newTestKey(t), newTestKey(t)
	file := filepath.Join(t.TempDir(), "record.ndjson")
	ns := s.origin.Namespace
	n := 0
	answer := func(auth string, change func(*events.CallAnswered)) {
		n++
		call := events.CallID{Run: fmt.Sprint("r", n), Step: 1, Index: 1}
		key := alice
		if auth == events.AuthGateway {
			key = gateway
		}
		a := events.CallAnswered{
			ToolCallID: call.String(), RunID: call.Run, Decision: events.Approve, Fingerprint: events.Digest(nil), Principal: "alice",
			AuthType: auth, At: time.Now().UTC(), EventID: "d1", Signed: signedDecision(t, key, call, events.Approve),
		}
		if change != nil {
			change(&a)
		}
		s.store(ns.Call(call, events.KindAnswer), a)
	}
	verify := func(code int, args ...string) (out verdict, errs string) {
		t.Helper()
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		s.weir(0, "audit", "export", "--out", file)
		text, errs := s.weir(code, append([]string{"audit", "verify", file, "-o", "json"}, args...)...)
		if code == 0 {
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
		}
		return out, errs
	}
	answer(events.AuthKey, nil)
	answer(events.AuthGateway, nil)
	answer(events.AuthTimer, func(a *events.CallAnswered) {
		a.Signed, a.Principal, a.EventID, a.Decision = nil, "", "", events.Expired
	})
	late := events.CallID{Run: "late", Step: 1, Index: 1}
	s.store(ns.Beside(late, events.KindRefused, "d1"), events.DecisionRefused{
		ToolCallID: late.String(), RunID: late.Run, EventID: "d1", Principal: "alice", Decision: events.Decline, At: time.Now().UTC(),
		Signed: signedDecision(t, alice, late, events.Decline), Error: *events.Errorf(events.CodeAlreadyDecided, "too late"),
	})
	grant := func(id string, call events.CallID, signed *events.Signed) {
		s.store(ns.GrantUse(id, call), events.GrantUsed{ID: id, ToolCallID: call.String(), Number: 1, At: time.Now().UTC(), Grant: events.Grant{
			V: 1, ID: id, AgentID: "clerk", ToolID: "refund", Terms: events.GrantTerms{Scope: events.ScopeThread}, GrantedBy: "alice",
			AuthType: events.AuthKey, GrantedAt: time.Now().UTC(), ExpiresAt: time.Now().UTC(), ToolCallID: late.String(), Signed: signed,
		}})
	}
	grant("g1", late, signedBy(t, alice, ns.InDecide("alice", late), late.Run, events.DecisionRequested{
		Decision: events.Approve, ToolCallID: late.String(), Grant: &events.GrantTerms{Scope: events.ScopeThread},
	}))
	grant("g2", late, signedBy(t, alice, ns.InGrant("alice", "g2"), late.Run, events.GrantRequested{
		ID: "g2", AgentID: "clerk", ToolID: "refund", ThreadID: "t", Terms: events.GrantTerms{Scope: events.ScopeThread},
	}))
	start := func(run, request string) {
		s.store(ns.Start(run), events.RunStarted{
			RunID: run, RootRunID: run, Path: []events.PathEntry{{AgentID: "clerk", RunID: run}}, AgentID: "clerk", Requester: "alice",
			RequestID: request, Request: events.RunRequested{AgentID: "clerk"}, Definitions: events.Definitions{Agent: events.Digest(nil), Tools: map[string]string{}},
			Signed: signedIn(t, signer{alice, events.DomainStart}, ns.InStart("alice", "clerk"), run, events.RunRequested{AgentID: "clerk"}),
		})
	}
	start("s1", "d1")
	known := []string{"--gate-keys", s.gate.Public, "--gateway-keys", gateway.Public, "--principal-key", "alice=" + alice.Public}
	want := []string{
		"signed by its own key, " + alice.Public, "signed by a gateway, " + gateway.Public, "the gate itself, at the deadline",
		"signed by its own key, " + alice.Public, "signed by its own key, " + alice.Public, "signed by its own key, " + alice.Public,
	}
	out, _ := verify(0, known...)
	for i, how := range want {
		if len(out.Decisions) != len(want) || out.Decisions[i].How != how {
			t.Fatalf("decisions %+v, want %q", out.Decisions, want)
		}
	}
	if out.Starts != 1 {
		t.Errorf("%d signed starts", out.Starts)
	}
	if out, _ = verify(0); out.Decisions[0].How != "signed by "+alice.Public+", which was not compared with a known key" {
		t.Errorf("without known keys: %+v", out.Decisions[0])
	}
	_, errs := verify(1, "--principal-key", "alice="+gateway.Public)
	if !strings.Contains(errs, "record 1 (") || !strings.Contains(errs, "is not among the known ones") {
		t.Errorf("with another key of alice: %s", errs)
	}
	def, err := events.Marshal(events.PrincipalDef{ID: "alice", Auth: events.AuthKey, Key: alice.Public})
	if err == nil {
		err = s.conn.PutNamed(t.Context(), events.RegistryPrincipal, "alice", def)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, _ = verify(0, "--keys-from", "registry"); out.Decisions[0].How != want[0] {
		t.Errorf("with the registry's keys: %+v", out.Decisions[0])
	}

	// From here on something is wrong, and each is told.
	answer(events.AuthKey, func(a *events.CallAnswered) { a.Decision = events.Decline })
	answer(events.AuthKey, func(a *events.CallAnswered) { a.Principal = "bob" })
	answer(events.AuthKey, func(a *events.CallAnswered) { a.Signed = nil })
	answer(events.AuthKey, func(a *events.CallAnswered) { a.Signed.Payload += " " })
	start("s2", "d2")
	grant("g3", late, signedDecision(t, alice, late, events.Approve))
	s.origin.Key = &alice // who is no gate
	answer(events.AuthSubject, func(a *events.CallAnswered) { a.Signed = nil })
	_, errs = verify(1, known...)
	for i, words := range []string{
		"has signed is another decision: decision approve, not decline", "has signed is another decision: principal alice, not bob",
		"and its signature is not there", "signature of the decision of alice: signature does not verify",
		"what alice has signed is another request: d1 of alice", "what alice has signed is an approval without a grant", "the gate's signature: it was made with a key",
	} {
		if !strings.Contains(errs, fmt.Sprintf("record %d (", 8+i)) || !strings.Contains(errs, words) {
			t.Errorf("record %d: not told %q:\n%s", 8+i, words, errs)
		}
	}
}

// TestB8_29_B8_33_RefusedBesideARun verifies decisions that met no single call: what proves them is told as of any other, and
// the run stands where a call would.
func TestB8_29_B8_33_RefusedBesideARun(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t)
	alice := newTestKey(t)
	ns := s.origin.Namespace
	refused := func(run string, code events.Code, d events.DecisionRefused) {
		d.RunID, d.EventID, d.At, d.Error = run, "d1", time.Now().UTC(), *events.Errorf(code, "not this")
		s.store(ns.BesideRun(run, d.EventID), d)
	}
	unnamed := func(subject, run string) *events.Signed {
		return signedBy(t, alice, subject, run, events.DecisionRequested{Decision: events.Approve})
	}
	refused("r1", events.CodeAmbiguous, events.DecisionRefused{
		Principal: "alice", Decision: events.Approve, Signed: unnamed(ns.InDecideRun("alice", "r1"), "r1"),
	})
	refused("r2", events.CodeNotFound, events.DecisionRefused{
		Principal: "alice", Decision: events.Approve, Signed: unnamed(ns.InDecideRun("alice", "r3"), "r3"),
	})
	refused("r4", events.CodeInvalidRequest, events.DecisionRefused{Principal: "bob"})
	refused("r5", events.CodeInvalidRequest, events.DecisionRefused{
		Principal: "alice", Decision: events.Approve, Signed: signedDecision(t, alice, events.CallID{Run: "r5", Step: 1, Index: 1}, events.Approve),
	})
	file := filepath.Join(t.TempDir(), "record.ndjson")
	s.weir(0, "audit", "export", "--out", file)
	text, _ := s.weir(0, "audit", "verify", file, "-o", "json", "--principal-key", "alice="+alice.Public)
	var out verdict
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	want := []string{
		"signed by its own key, " + alice.Public,
		"what alice has signed is another decision: subject weir.default.in.decide.alice.r3.=run, not weir.default.in.decide.alice.r2.=run",
		"not signed",
		"what alice has signed is another decision: subject weir.default.in.decide.alice.r5.1-1, not weir.default.in.decide.alice.r5.=run",
	}
	if len(out.Decisions) != len(want) {
		t.Fatalf("decisions %+v", out.Decisions)
	}
	for i, d := range out.Decisions {
		if d.How != want[i] || d.ToolCallID != "" || d.RunID == "" {
			t.Errorf("decision %+v, want %q", d, want[i])
		}
	}
	text, _ = s.weir(0, "audit", "verify", file)
	if !strings.Contains(text, "r1, no single call") || strings.Contains(text, "malformed id") {
		t.Errorf("verify:\n%s", text)
	}
	text, _ = s.weir(0, "audit", "show", "--run", "r1", file, "--principal-key", "alice="+alice.Public)
	if !strings.Contains(text, "r1, no single call") || !strings.Contains(text, "refused: ambiguous") || !strings.Contains(text, want[0]) {
		t.Errorf("show:\n%s", text)
	}
	text, _ = s.weir(0, "audit", "show", "--run", "r4", file)
	if !strings.Contains(text, "not readable") {
		t.Errorf("show of what is no decision:\n%s", text)
	}
}

// TestB8_23_B8_33_QuorumByItsVotes verifies answers of a quorum that leave to the vote what proves it.
func TestB8_23_B8_33_QuorumByItsVotes(t *testing.T) {
	t.Parallel()
	s := startAuditServer(t)
	alice := newTestKey(t)
	ns := s.origin.Namespace
	at := time.Now().UTC()
	vote := func(call events.CallID) {
		s.store(ns.Beside(call, events.KindVote, "alice"), events.VoteCast{
			ToolCallID: call.String(), RunID: call.Run, Decision: events.Approve, Fingerprint: events.Digest(nil), Principal: "alice",
			AuthType: events.AuthKey, At: at, EventID: "d1", InboxSeq: 1, Signed: signedDecision(t, alice, call, events.Approve),
		})
	}
	answer := func(call events.CallID, eventID string) {
		s.store(ns.Call(call, events.KindAnswer), events.CallAnswered{
			ToolCallID: call.String(), RunID: call.Run, Decision: events.Approve, Fingerprint: events.Digest(nil), Principal: "alice",
			AuthType: events.AuthKey, At: at, EventID: eventID,
			Votes: []events.VoteBrief{{Principal: "bob", Decision: events.Approve, At: at}, {Principal: "alice", Decision: events.Approve, At: at}},
		})
	}
	r := func(run string) events.CallID { return events.CallID{Run: run, Step: 1, Index: 1} }
	vote(r("r1"))
	answer(r("r1"), "d1")
	answer(r("r2"), "d1") // its vote is older than the record
	file := filepath.Join(t.TempDir(), "record.ndjson")
	s.weir(0, "audit", "export", "--out", file)
	known := []string{"--principal-key", "alice=" + alice.Public}
	text, _ := s.weir(0, append([]string{"audit", "verify", file, "-o", "json"}, known...)...)
	var out verdict
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for i, how := range []string{
		"signed by its own key, " + alice.Public, "by the signature in its vote, record 1",
		"by the signature in its vote, which these records do not hold",
	} {
		if len(out.Decisions) != 3 || out.Decisions[i].How != how {
			t.Fatalf("decisions %+v: want %q", out.Decisions, how)
		}
	}
	text, _ = s.weir(0, append([]string{"audit", "show", "--run", "r1", file}, known...)...)
	if !strings.Contains(text, "by the signature in its vote, record 1") {
		t.Errorf("show:\n%s", text)
	}
	vote(r("r3"))
	answer(r("r3"), "d2")
	s.weir(0, "audit", "export", "--out", file+"2")
	if _, errs := s.weir(1, append([]string{"audit", "verify", file + "2"}, known...)...); !strings.Contains(errs, "the vote of alice, record 4, is another decision") {
		t.Errorf("an answer by another decision than the vote: %s", errs)
	}
}

func newTestKey(t *testing.T) events.Key {
	t.Helper()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// signedDecision is a decision of alice as the gate keeps it.
func signedDecision(t *testing.T, key events.Key, call events.CallID, d events.Decision) *events.Signed {
	t.Helper()
	subject := events.DefaultNamespace.InDecide("alice", call)
	return signedBy(t, key, subject, call.Run, events.DecisionRequested{Decision: d, ToolCallID: call.String()})
}

// signedBy is a request of alice as the gate keeps it.
func signedBy(t *testing.T, key events.Key, subject, run string, data any) *events.Signed {
	t.Helper()
	return signedIn(t, signer{key, events.DomainDecision}, subject, run, data)
}

// signer signs in a domain.
type signer struct {
	key    events.Key
	domain string
}

func signedIn(t *testing.T, by signer, subject, run string, data any) *events.Signed {
	t.Helper()
	origin := events.Origin{Namespace: events.DefaultNamespace, Service: "client"}
	e, err := origin.RequestBy(subject, run, "alice", data)
	if err == nil {
		e.ID = "d1"
		e.Payload, err = events.Encode(e)
	}
	if err != nil {
		t.Fatal(err)
	}
	sig := events.Sign(by.key, by.domain, subject, e.Payload)
	return &events.Signed{Payload: string(e.Payload), Subject: subject, Key: sig.Key, Sig: sig.Sig}
}

// TestB8_29_RecordOfARun runs a run with a refused decision and looks at its record: every fact, in order, each of which
// names who wrote it, when, and what led to it.
func TestB8_29_RecordOfARun(t *testing.T) {
	t.Parallel()
	url, gate := startStoryServer(t)
	callWeir(t, url, exitSuspended, "run", "clerk", "pay two", "--run-id", "two")
	callWeir(t, url, exitRefused, "approvals", "approve", "two=1-1", "--fingerprint", "sha256:00")
	callWeir(t, url, 0, "approvals", "approve", "two=1-1", "--reason", "known customer")
	callWeir(t, url, 0, "approvals", "decline", "two=1-2", "--reason", "wrong order", "-w")
	out, _ := callWeir(t, url, 0, "audit", "export", "--run", "two")
	var kinds []string
	keys, err := publicKeys(gate)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		r := recordOf(t, []byte(strings.TrimSuffix(line, "\n")))
		e, err := auditKeys{gates: keys}.fact(r)
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, string(e.Place.Kind)+" "+e.Place.Call)
		if e.Source == "" || e.Time.IsZero() || r.Time.IsZero() || e.CausationID == "" {
			t.Errorf("%s does not say who, when or why: %s", r.Subject, r.Event)
		}
		if row, _, err := decisionIn(e); err != nil || row != nil && (row.Principal != "alice" || row.At.IsZero()) {
			t.Errorf("%s: %+v, %v", r.Subject, row, err)
		}
	}
	for _, chain := range []string{
		"start , step , end ", "ask 1-1, refused 1-1, answer 1-1, go 1-1, claim 1-1, result 1-1",
		"ask 1-2, answer 1-2, result 1-2",
	} {
		var got []string
		for _, kind := range kinds {
			if strings.HasSuffix(kind, chain[strings.LastIndexByte(chain, ' '):]) {
				got = append(got, kind)
			}
		}
		if text := strings.Join(got, ", "); text != chain {
			t.Errorf("the record has %s, want %s", text, chain)
		}
	}
}
