package client_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// The main job: a lookup runs at once, a refund waits for a person, and the run ends after the approval.
func TestB19_1_B19_2RefundFromStartToEnd(t *testing.T) {
	t.Parallel()
	conn := start(t)
	keys := serve(t, conn)
	c := clientWith(t, conn, client.Config{Principal: "bob", GateKeys: keys})

	run, err := c.Start(t.Context(), client.Request{Agent: "support", Prompt: "Refund order 1042"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantSuspended(t, out, run.ID)
	got, err := c.Approve(t.Context(), run.ID, &client.DecisionOptions{Reason: "known customer"})
	if err != nil {
		t.Fatal(err)
	}
	if !got.Accepted || got.State != client.StateReleased || got.Answer.Principal != "bob" {
		t.Errorf("outcome = %+v", got)
	}
	// Another process, which knows nothing but the id.
	out, err = newClient(t, conn, "carol").Run(run.ID).Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out.FinishReason != "stop" || len(out.Asks) != 0 || !strings.HasSuffix(out.Text, "Order 1042 was refunded: 612.5.") {
		t.Errorf("output = %+v", out)
	}
	var steps []string
	for _, s := range out.Steps {
		steps = append(steps, s.StepType+" "+s.FinishReason+": "+s.Text)
	}
	if diff := cmp.Diff([]string{
		"initial tool-calls: Let me look up order 1042.",
		"tool-result tool-calls: I found it. Now the refund.",
		"tool-result stop: Order 1042 was refunded: 612.5.",
	}, steps); diff != "" {
		t.Error(diff)
	}
	if len(out.ToolCalls) != 2 || len(out.ToolResults) != 2 {
		t.Errorf("%d calls, %d results, want two of each", len(out.ToolCalls), len(out.ToolResults))
	}
}

// B19.2: what a suspended output says.
func wantSuspended(t *testing.T, out *client.Output, run string) {
	t.Helper()
	if out.RunID != run || out.FinishReason != "suspended" || out.Text != "" {
		t.Errorf("output = %+v", out)
	}
	p := out.SuspendPayload
	if p == nil || p.ToolName != "issue_refund" || p.ToolCallID != run+"=2-1" ||
		string(p.Args) != `{"amount":612.5,"orderId":"1042"}` || !strings.Contains(out.ResumeSchema, "approved") {
		t.Errorf("suspendPayload = %+v", p)
	}
	if len(out.Asks) != 1 || out.Asks[0].Ask.Fingerprint == "" || len(out.ToolCalls) != 1 || len(out.Steps) != 1 {
		t.Errorf("asks = %+v, calls = %+v", out.Asks, out.ToolCalls)
	}
}

func TestB8_8DeclineTellsTheModelWhy(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	run, err := c.Start(t.Context(), client.Request{Agent: "support", Prompt: "Refund order 1042"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := c.Decline(t.Context(), run.ID, "wrong order", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != client.StateFinished || got.Answer.Reason != "wrong order" {
		t.Errorf("outcome = %+v", got)
	}
	out, err := run.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.Text, "The reason I was given: wrong order") {
		t.Errorf("text = %q", out.Text)
	}
	if r := out.ToolResults[1]; r.Outcome != events.OutcomeDeclined || r.Started {
		t.Errorf("result = %+v", r)
	}
}

func TestB8_19OneOfSeveralMustBeNamed(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out := held(t, c, "pay two")
	_, err := c.Approve(t.Context(), out.RunID, nil)
	e := refusal(t, err, events.CodeAmbiguous)
	if diff := cmp.Diff([]string{out.RunID + "=1-1", out.RunID + "=1-2"}, e.Asks); diff != "" {
		t.Error(diff)
	}
	if _, err := c.Approve(t.Context(), e.Asks[1], nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Approve(t.Context(), out.RunID, nil); err != nil { // now one is left
		t.Fatal(err)
	}
	if out, err = c.Run(out.RunID).Wait(t.Context()); err != nil || out.Text != "Two refunds.Done." {
		t.Errorf("output = %+v, %v", out, err)
	}
	_, err = c.Approve(t.Context(), out.RunID, nil)
	wantCode(t, err, events.CodeRunEnded)
	_, err = c.Approve(t.Context(), "no-such-run", nil)
	wantCode(t, err, events.CodeNotFound)
	_, err = c.Approve(t.Context(), "no-such-run=1-1", nil)
	wantCode(t, err, events.CodeNotFound)
}

func TestB8_16SecondDecisionIsToldWhoWon(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	alice, bob := newClient(t, conn, "alice"), newClient(t, conn, "bob")
	id := held(t, bob, "pay").Asks[0].ToolCallID
	type said struct {
		who *client.Client
		out *client.Outcome
		err error
	}
	results := make(chan said, 2)
	for _, c := range []*client.Client{alice, bob} {
		go func() {
			out, err := c.Approve(t.Context(), id, nil)
			results <- said{c, out, err}
		}()
	}
	first, second := <-results, <-results
	if first.err != nil {
		first, second = second, first
	}
	if first.err != nil || !first.out.Accepted {
		t.Fatalf("nobody won: %v, %v", first.err, second.err)
	}
	e := refusal(t, second.err, events.CodeAlreadyDecided)
	if e.Answer == nil || e.Answer.Principal != first.out.Answer.Principal || e.Answer.Decision != events.Approve {
		t.Errorf("answer = %+v, want that of %s", e.Answer, first.out.Answer.Principal)
	}
	_, err := bob.Ask(t.Context(), id)
	wantCode(t, err, events.CodeAlreadyDecided)
}

// Kinds, rounds, fingerprints and data are judged by the gate, and the sender is told what was wrong.
func TestB8_13RefusedDecisionsSayWhy(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	id := held(t, c, "pay").Asks[0].ToolCallID
	later := 7
	refusals := []struct {
		name string
		d    client.Decision
		code events.Code
	}{
		{"resume of an approval", client.Decision{Decision: events.ResumeD, ResumeData: json.RawMessage(`1`)}, events.CodeWrongKind},
		{"another fingerprint", client.Decision{Decision: events.Approve, Fingerprint: "sha256:00"}, events.CodeChanged},
		{"another round", client.Decision{Decision: events.Approve, Round: &later}, events.CodeChanged},
		{"edit without fingerprint", client.Decision{Decision: events.Edit, Args: json.RawMessage(`{}`)}, events.CodeChanged},
	}
	for _, test := range refusals {
		test.d.ToolCallID = id
		if _, err := c.Decide(t.Context(), test.d); events.CodeOf(err) != test.code {
			t.Errorf("%s: error = %v, want %s", test.name, err, test.code)
		}
	}
	ask, err := c.Ask(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	shown := &client.DecisionOptions{Fingerprint: ask.Fingerprint}
	_, err = c.Edit(t.Context(), id, json.RawMessage(`{"orderId":"1","amount":"lots"}`), shown)
	if e := refusal(t, err, events.CodeInvalidData); len(e.Issues) == 0 {
		t.Errorf("error = %+v, want it to name the field", e)
	}
	out, err := c.Edit(t.Context(), id, json.RawMessage(`{"orderId":"1","amount":0.5}`), shown)
	if err != nil {
		t.Fatal(err)
	}
	if out.State != client.StateHeld || out.Round != 1 {
		t.Errorf("outcome = %+v, want it to be asked again in round 1", out)
	}
	if _, err = c.Approve(t.Context(), id, nil); events.CodeOf(err) != events.CodeChanged {
		t.Errorf("error = %v, want changed: after round 0 a round is needed", err)
	}
	if _, err := c.Approve(t.Context(), id, &client.DecisionOptions{Round: &out.Round}); err != nil {
		t.Fatal(err)
	}
	end, err := c.Run(ask.RunID).Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := string(end.ToolResults[0].Args); got != `{"amount":0.5,"orderId":"1"}` {
		t.Errorf("the tool ran with %s", got)
	}
}

func TestB8_11RespondIsTheResult(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out := held(t, c, "pay")
	if _, err := c.Respond(t.Context(), out.RunID, json.RawMessage(`{"refundId":"cash","amount":1}`), nil); err != nil {
		t.Fatal(err)
	}
	out, err := c.Run(out.RunID).Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r := out.ToolResults[0]; r.Outcome != events.OutcomeResponded || !strings.Contains(string(r.Result), "cash") {
		t.Errorf("result = %+v", r)
	}
}

func TestB9_4ResumeDataIsChecked(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out := held(t, c, "city")
	if p := out.SuspendPayload; string(p.SuspendPayload) != `{"question":"Which city?"}` {
		t.Errorf("suspendPayload = %s", p.SuspendPayload)
	}
	round := &client.DecisionOptions{Round: &out.Asks[0].Ask.Round}
	_, err := c.Resume(t.Context(), out.RunID, json.RawMessage(`{"name":7}`), round)
	wantCode(t, err, events.CodeInvalidData)
	if _, err := c.Resume(t.Context(), out.RunID, json.RawMessage(`{"name":"Rome"}`), round); err != nil {
		t.Fatal(err)
	}
	out, err = c.Run(out.RunID).Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out.ToolResults[0].Result); got != `{"name":"Rome"}` {
		t.Errorf("result = %s", got)
	}
}

func TestRefusedStartEndsTheFollowing(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	_, err := c.Generate(t.Context(), client.Request{Agent: "nobody", Prompt: "hello"})
	if e := refusal(t, err, events.CodeNotFound); e.What != "agent" {
		t.Errorf("error = %+v", e)
	}
	first := client.Request{Agent: "clerk", Prompt: "hello", RunID: "mine"}
	for range 2 { // the same request means the same run
		out, err := c.Generate(t.Context(), first)
		if err != nil || out.RunID != "mine" || out.Text != "Done." {
			t.Fatalf("output = %+v, %v", out, err)
		}
	}
	second := first
	second.Prompt = "pay"
	run, err := c.Start(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	for ch, err := range run.Follow(t.Context(), 0, nil) {
		if err == nil {
			t.Fatalf("a chunk of the other run was shown: %+v", ch)
		}
		wantCode(t, err, events.CodeRunExists)
	}
}

func TestRequestsAreCheckedBeforeTheyAreSent(t *testing.T) {
	t.Parallel()
	conn := start(t)
	c := newClient(t, conn, "bob")
	for _, req := range []client.Request{
		{Prompt: "hello"},
		{Agent: "support"},
		{Agent: "support", Prompt: "hello", RunID: "no.dots"},
		{Agent: "support", Prompt: "hello", Messages: []events.Message{events.TextMessage(events.RoleUser, "x")}},
		{Agent: "support", Prompt: "hello", Context: json.RawMessage(`[1]`)},
	} {
		_, err := c.Start(t.Context(), req)
		wantCode(t, err, events.CodeInvalidRequest)
	}
	_, err := client.New(conn, client.Config{}).Start(t.Context(), client.Request{Agent: "support", Prompt: "hello"})
	wantCode(t, err, events.CodeInvalidRequest)
}

func TestB21_1_B21_5CancelEndsASuspendedRun(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out := held(t, c, "pay")
	outcome, err := c.Cancel(t.Context(), out.RunID, "not needed")
	if err != nil || outcome != events.RunCancelled {
		t.Fatalf("outcome = %s, %v", outcome, err)
	}
	_, err = c.Cancel(t.Context(), out.RunID, "again")
	wantCode(t, err, events.CodeRunEnded)
	out, err = c.Run(out.RunID).Wait(t.Context())
	if err != nil || out.FinishReason != client.FinishCancelled || len(out.Asks) != 0 {
		t.Errorf("output = %+v, %v", out, err)
	}
	var last events.Chunk
	for ch, err := range c.Run(out.RunID).Follow(t.Context(), 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		last = ch
	}
	if last.Type != events.ChunkAbort {
		t.Errorf("the stream ends with %s, want abort", last.Type)
	}
	info, err := c.Info(t.Context(), out.RunID)
	if err != nil {
		t.Fatal(err)
	}
	if info.Status != client.StatusEnded || info.Outcome != events.RunCancelled || info.Cancel.Reason != "not needed" {
		t.Errorf("info = %+v", info)
	}
}

func TestFailedRunGivesItsError(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	out, err := newClient(t, conn, "bob").Generate(t.Context(), client.Request{Agent: "clerk", Prompt: "fail"})
	wantCode(t, err, events.CodeModelFailed)
	if out == nil || out.FinishReason != "error" || out.Error == nil {
		t.Errorf("output = %+v", out)
	}
}

func TestB10_1To3_B10_12SuspendedRunsArePagedAndFiltered(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	before := time.Now()
	var ids []string
	for _, thread := range []string{"t1", "t1", "t.2 *"} {
		run, err := c.Start(t.Context(), client.Request{Agent: "clerk", Prompt: "pay", ThreadID: thread, ResourceID: "r>"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, run.ID)
	}
	list := func(f client.Filter) []string {
		t.Helper()
		page, err := c.Suspended(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, r := range page.Runs {
			got = append(got, r.RunID)
		}
		return got
	}
	slices.Reverse(ids) // the latest first
	for name, test := range map[string]struct {
		f    client.Filter
		want []string
	}{
		"all":           {client.Filter{}, ids},
		"agent":         {client.Filter{Agent: "clerk"}, ids},
		"another agent": {client.Filter{Agent: "support"}, []string{}},
		"thread":        {client.Filter{Thread: "t.2 *"}, ids[:1]},
		"resource":      {client.Filter{Resource: "r>", Thread: "t1"}, ids[1:]},
		"run":           {client.Filter{Run: ids[1]}, ids[1:2]},
		"tool":          {client.Filter{Tool: "ask_city"}, []string{}},
		"kind":          {client.Filter{Kind: events.AskApproval}, ids},
		"from":          {client.Filter{From: before}, ids},
		"to":            {client.Filter{To: before}, []string{}},
		"first page":    {client.Filter{PerPage: 2}, ids[:2]},
		"second page":   {client.Filter{PerPage: 2, Page: 1}, ids[2:]},
		"beyond":        {client.Filter{PerPage: 2, Page: 9}, []string{}},
	} {
		if diff := cmp.Diff(test.want, list(test.f)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	page, err := c.Suspended(t.Context(), client.Filter{PerPage: 1})
	if err != nil || page.Total != 3 || !page.Runs[0].ToolCalls[0].RequiresApproval {
		t.Errorf("page = %+v, %v", page, err)
	}
	call := page.Runs[0].ToolCalls[0]
	if string(call.Args) != `{"amount":1,"orderId":"1"}` || call.Ask.Fingerprint == "" || len(call.SuspendPayload) != 0 || page.Runs[0].ResourceID != "r>" {
		t.Errorf("the held call is listed as %+v", call)
	}
	held(t, c, "city")
	asked, err := c.Suspended(t.Context(), client.Filter{Kind: events.AskSuspended})
	if err != nil || len(asked.Runs) != 1 || asked.Runs[0].ToolCalls[0].RequiresApproval ||
		string(asked.Runs[0].ToolCalls[0].SuspendPayload) != `{"question":"Which city?"}` || asked.Runs[0].ToolCalls[0].ResumeSchema == "" {
		t.Errorf("the suspended call is listed as %+v, %v", asked, err)
	}
	asks, total, err := c.Asks(t.Context(), client.Filter{PerPage: 2, Kind: events.AskApproval})
	if err != nil || total != 3 || len(asks) != 2 || asks[0].RunID != ids[2] {
		t.Errorf("asks = %+v of %d, %v", asks, total, err)
	}
	for field, f := range map[string]client.Filter{"page": {Page: -1}, "perPage": {PerPage: -1}} {
		_, err = c.Suspended(t.Context(), f)
		if e := refusal(t, err, events.CodeInvalidRequest); len(e.Issues) != 1 || e.Issues[0].Field != field {
			t.Errorf("%s is refused as %+v", field, e)
		}
	}
}

func TestRunsListsWhatTheLogHolds(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	done, err := c.Generate(t.Context(), client.Request{Agent: "clerk", Prompt: "hello", RunID: "by-name"})
	if err != nil {
		t.Fatal(err)
	}
	waits := held(t, c, "pay two")
	list, more, err := c.Runs(t.Context(), client.RunsFilter{})
	if err != nil || more || len(list) != 2 {
		t.Fatalf("runs = %+v, more %v, %v", list, more, err)
	}
	if list[0].RunID != waits.RunID || list[0].Status != client.StatusSuspended || len(list[0].Asks) != 2 {
		t.Errorf("first = %+v", list[0])
	}
	if list[1].RunID != done.RunID || list[1].Outcome != events.RunCompleted || list[1].Text != "Done." {
		t.Errorf("second = %+v", list[1])
	}
	list, more, err = c.Runs(t.Context(), client.RunsFilter{Limit: 1})
	if err != nil || !more || len(list) != 1 {
		t.Errorf("runs = %+v, more %v, %v", list, more, err)
	}
	list, _, err = c.Runs(t.Context(), client.RunsFilter{Agent: "clerk", Status: client.StatusEnded})
	if err != nil || len(list) != 1 || list[0].RunID != "by-name" {
		t.Errorf("runs = %+v, %v", list, err)
	}
	_, err = c.Info(t.Context(), "nothing")
	wantCode(t, err, events.CodeNotFound)
}

func TestWatchAsksHearsQuestionsAndAnswers(t *testing.T) {
	t.Parallel()
	conn := start(t)
	keys := serve(t, conn)
	c := clientWith(t, conn, client.Config{Principal: "bob", GateKeys: keys, LiveOnly: true})
	news, err := c.WatchAsks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bob := newClient(t, conn, "bob")
	id := held(t, bob, "pay").Asks[0].ToolCallID
	if _, err := bob.Approve(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	var got []string
	for n := range news {
		if n.Ask != nil {
			got = append(got, "ask "+n.Ask.ToolCallID)
			continue
		}
		got = append(got, "answer "+n.Answer.ToolCallID)
		break
	}
	if diff := cmp.Diff([]string{"ask " + id, "answer " + id}, got); diff != "" {
		t.Error(diff)
	}
}

// A rule or a principal may demand signatures: the client's key makes them.
func TestB8_22DecisionsAreSignedWithTheKey(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	def, err := events.Marshal(events.PrincipalDef{ID: "alice", Auth: events.AuthKey, Key: key.Public})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.PutNamed(t.Context(), events.RegistryPrincipal, "alice", def); err != nil {
		t.Fatal(err)
	}
	id := held(t, newClient(t, conn, "bob"), "pay").Asks[0].ToolCallID
	_, err = newClient(t, conn, "alice").Approve(t.Context(), id, nil)
	wantCode(t, err, events.CodeUnauthenticated)
	out, err := clientWith(t, conn, client.Config{Principal: "alice", Key: &key}).Approve(t.Context(), id, nil)
	if err != nil || out.Answer.Principal != "alice" {
		t.Errorf("outcome = %+v, %v", out, err)
	}
	call, err := events.ParseCallID(id)
	if err != nil {
		t.Fatal(err)
	}
	fact, err := conn.Fact(t.Context(), ns.Call(call, events.KindAnswer))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := events.Data[events.CallAnswered](fact)
	if err != nil || answer.Signed == nil || answer.Signed.Key != key.Public {
		t.Errorf("answer = %+v, %v: want the signature kept", answer, err)
	}
}

// A refused decision is in the record as it was sent, so that what its sender had signed can be proven later.
func TestB8_29RefusedDecisionsAreKeptAsTheyWereSent(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	id := held(t, newClient(t, conn, "bob"), "pay").Asks[0].ToolCallID
	call, err := events.ParseCallID(id)
	if err != nil {
		t.Fatal(err)
	}
	alice := clientWith(t, conn, client.Config{Principal: "alice", Key: &key})
	_, err = alice.Approve(t.Context(), id, &client.DecisionOptions{Fingerprint: events.Digest(nil)})
	wantCode(t, err, events.CodeChanged)
	subjects, err := conn.Subjects(t.Context(), ns.EveryBeside(events.KindRefused))
	if err != nil || len(subjects) != 1 {
		t.Fatalf("refusals %v, %v", subjects, err)
	}
	place, err := events.ParsePlace(subjects[0])
	if err != nil {
		t.Fatal(err)
	}
	fact, err := conn.Fact(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	refused, err := events.Data[events.DecisionRefused](fact)
	if err != nil || refused.Signed == nil {
		t.Fatalf("refused = %+v, %v: want the decision as it was sent", refused, err)
	}
	kept := *refused.Signed
	public, err := jetstream.ParsePublic(key.Public)
	if err != nil {
		t.Fatal(err)
	}
	sig := events.Signature{Key: kept.Key, Sig: kept.Sig}
	if err := (events.Keys{key.Public: public}).Verify(events.DomainDecision, kept.Subject, []byte(kept.Payload), sig); err != nil {
		t.Errorf("%+v: %v", kept, err)
	}
	if want := ns.InDecide("alice", call); kept.Subject != want {
		t.Errorf("subject %s, want %s", kept.Subject, want)
	}
}

// Following from a cursor gives the rest, and stops where the caller says.
func TestB14_24FollowFromACursor(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	out, err := c.Generate(t.Context(), client.Request{Agent: "support", Prompt: "Where is order 7?"})
	if err != nil {
		t.Fatal(err)
	}
	var all []events.Chunk
	for ch, err := range c.Run(out.RunID).Follow(t.Context(), 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ch)
	}
	if len(all) < 8 || all[0].Type != events.ChunkStart || all[len(all)-1].Type != events.ChunkFinish {
		t.Fatalf("%d chunks from %s to %s", len(all), all[0].Type, all[len(all)-1].Type)
	}
	var rest []events.Chunk
	for ch, err := range c.Run(out.RunID).Follow(t.Context(), all[3].Cursor, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if rest = append(rest, ch); len(rest) == 2 {
			break
		}
	}
	if rest[0].Cursor != all[4].Cursor || rest[1].Cursor != all[5].Cursor {
		t.Errorf("rest = %+v", rest)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := newClient(t, start(t), "bob")
	ended := errors.New("enough")
	ctx, cancel := contextWithCause(t)
	cancel(ended)
	var got []error
	for _, err := range c.Run("r1").Follow(ctx, 0, nil) {
		got = append(got, err)
	}
	if len(got) != 1 || !errors.Is(got[0], ended) {
		t.Errorf("errors = %v, want the cause of the end", got)
	}
}
