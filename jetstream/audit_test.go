package jetstream_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// recorded waits until the record has caught up with the log.
func recorded(t *testing.T, c *jetstream.Conn, facts uint64) {
	t.Helper()
	state, err := eventuallyState(t, c, facts)
	if err != nil || state.Last < facts {
		t.Fatalf("the record ends at %d of %d: %v", state.Last, facts, err)
	}
}

func eventuallyState(t *testing.T, c *jetstream.Conn, facts uint64) (state jetstream.AuditState, err error) {
	t.Helper()
	err = eventually(t, func() error {
		state, err = c.AuditState(t.Context())
		return err
	}, func(err error) bool { return err != nil || state.Last >= facts })
	return state, err
}

// theRecord reads what a query chooses; gaps are the sequences after them.
func theRecord(t *testing.T, c *jetstream.Conn, q jetstream.AuditQuery) (all []events.Record, gaps []uint64) {
	t.Helper()
	for r, err := range c.Audit(t.Context(), q) {
		switch {
		case errors.Is(err, jetstream.ErrGap):
			gaps = append(gaps, r.Seq)
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, r)
		}
	}
	return all, gaps
}

// use makes one use of a grant.
func use(t *testing.T, grant string, call events.CallID) events.Event {
	t.Helper()
	p := ns.GrantUse(grant, call)
	e := events.Event{
		ID: events.NewID(time.Now()), Type: events.TypeOf[events.GrantUsed](), Source: "/weir/default/test", Subject: p.Run,
		Place: p, Data: []byte("{}"),
	}
	var err error
	if e.Payload, err = events.Encode(e); err != nil {
		t.Fatal(err)
	}
	return e
}

func subjectsOf(records []events.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, r.Subject)
	}
	return all
}

func startAudited(t *testing.T) (*embedded.Server, *jetstream.Conn) {
	t.Helper()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{Audit: true})
	return srv, c
}

// TestB8_29_RecordKeepsFacts reads facts of every place back from the folded stream: with their subjects, their sequences
// in the log, their bytes and their signatures.
func TestB8_29_RecordKeepsFacts(t *testing.T) {
	t.Parallel()
	_, c := startAudited(t)
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var want []events.Record
	for i, p := range append(everyPlace("r"), ns.GrantUse("g", call("r"))) {
		e := use(t, "g", call("r"))
		if p.Kind != events.KindUse {
			p.Run = fmt.Sprint("r", i)
			e = fact(t, p)
		}
		e.Carried = i%2 == 0
		if p.Kind == events.KindAnswer {
			e.Signature = events.Sign(key, events.DomainAnswer, p.Subject(), e.Payload)
		}
		e = stored(t, c, events.First(p), e)
		want = append(want, events.Record{
			Seq: uint64(i + 1), LogSeq: e.Seq, Subject: p.Subject(), Event: e.Payload, Carried: e.Carried,
			Key: e.Signature.Key, Sig: e.Signature.Sig,
		})
	}
	recorded(t, c, uint64(len(want)))
	got, gaps := theRecord(t, c, jetstream.AuditQuery{})
	if len(gaps) > 0 {
		t.Errorf("gaps before %v", gaps)
	}
	for i := range got {
		if got[i].Time.IsZero() {
			t.Errorf("%s has no time", got[i].Subject)
		}
		got[i].Time = time.Time{}
		e, err := got[i].Decode()
		if err != nil || e.Place.Subject() != got[i].Subject || e.Seq != got[i].LogSeq {
			t.Errorf("decode %s: %+v, %v", got[i].Subject, e.Place, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAuditChooses reads from a sequence, from a time, and one run with what is below it.
func TestAuditChooses(t *testing.T) {
	t.Parallel()
	_, c := startAudited(t)
	run := events.NewID(time.Now())
	child := run + "=1-1"
	old := events.NewID(time.Now().Add(48 * time.Hour)) // its clock was wrong by more than anybody expects
	put := func(g events.Guard, e events.Event) events.Event { return stored(t, c, g, e) }
	first := func(p events.Place) events.Event { return put(events.First(p), fact(t, p)) }
	first(ns.Start("other"))
	step := put(events.After(first(ns.Start(run))), fact(t, ns.Step(run, 1)))
	first(ns.Start(old))
	first(ns.Start(child))
	put(events.First(ns.GrantUse("g", call(child))), use(t, "g", call(child)))
	put(events.First(ns.GrantUse("h", call("other"))), use(t, "h", call("other")))
	first(ns.Start(run + "x"))
	put(events.After(step), fact(t, ns.End(run)))
	recorded(t, c, 9)
	all, _ := theRecord(t, c, jetstream.AuditQuery{})
	of := func(places ...events.Place) (subjects []string) {
		for _, p := range places {
			subjects = append(subjects, p.Subject())
		}
		return subjects
	}
	for name, row := range map[string]struct {
		query jetstream.AuditQuery
		want  []string
	}{
		"from a sequence":       {jetstream.AuditQuery{From: 9}, subjectsOf(all)[8:]},
		"from after the end":    {jetstream.AuditQuery{From: 10}, nil},
		"from a time":           {jetstream.AuditQuery{Since: all[4].Time}, subjectsOf(all)[4:]},
		"from a time to come":   {jetstream.AuditQuery{Since: time.Now().Add(time.Hour)}, nil},
		"from before all times": {jetstream.AuditQuery{Since: time.Unix(0, 0)}, subjectsOf(all)},
		"a run": {jetstream.AuditQuery{Run: run}, of(ns.Start(run), ns.Step(run, 1), ns.Start(child), ns.GrantUse("g", call(child)),
			ns.End(run))},
		"a run below":              {jetstream.AuditQuery{Run: child}, of(ns.Start(child), ns.GrantUse("g", call(child)))},
		"a run of a wrong clock":   {jetstream.AuditQuery{Run: old}, of(ns.Start(old))},
		"a run with an own id":     {jetstream.AuditQuery{Run: "other"}, of(ns.Start("other"), ns.GrantUse("h", call("other")))},
		"a run from a sequence":    {jetstream.AuditQuery{Run: run, From: 4}, of(ns.Start(child), ns.GrantUse("g", call(child)), ns.End(run))},
		"a run that is not there":  {jetstream.AuditQuery{Run: events.NewID(time.Now())}, nil},
		"a run that nobody can be": {jetstream.AuditQuery{Run: "*"}, nil},
	} {
		got, gaps := theRecord(t, c, row.query)
		if diff := cmp.Diff(row.want, subjectsOf(got)); diff != "" || len(gaps) > 0 {
			t.Errorf("%s: %s, gaps %v", name, diff, gaps)
		}
	}
}

// TestAuditOfMany needs more than one read, and tells of what has aged out.
func TestAuditOfMany(t *testing.T) {
	t.Parallel()
	srv, c := startAudited(t)
	const facts = 700
	for i := range facts {
		p := ns.Start(fmt.Sprint("r", i))
		stored(t, c, events.First(p), fact(t, p))
	}
	recorded(t, c, facts)
	all, gaps := theRecord(t, c, jetstream.AuditQuery{})
	if len(all) != facts || len(gaps) > 0 || !slices.IsSortedFunc(all, func(a, b events.Record) int { return int(a.Seq) - int(b.Seq) }) {
		t.Errorf("%d of %d facts, gaps before %v", len(all), facts, gaps)
	}
	for r, err := range c.Audit(t.Context(), jetstream.AuditQuery{}) {
		if err != nil || r.Seq != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		break // the caller may stop
	}

	stream, err := rawJS(t, srv).Stream(t.Context(), ns.Store(events.StreamAudit))
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgs = 100
	if _, err := rawJS(t, srv).UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	all, gaps = theRecord(t, c, jetstream.AuditQuery{From: 2})
	if len(all) != 100 || !slices.Equal(gaps, []uint64{601}) {
		t.Errorf("from what has aged out: %d facts, gaps before %v", len(all), gaps)
	}
	if all, gaps = theRecord(t, c, jetstream.AuditQuery{}); len(all) != 100 || len(gaps) > 0 {
		t.Errorf("from the oldest: %d facts, gaps before %v", len(all), gaps)
	}
}

func TestAuditWithoutStream(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{Retry: 100 * time.Millisecond})
	for _, err := range c.Audit(t.Context(), jetstream.AuditQuery{}) {
		if !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("without a record: %v", err)
		}
	}
}

// TestAuditOfForeign slips messages past the services: the record has what is stored, and nobody says of it that it is
// something else than it is.
func TestAuditOfForeign(t *testing.T) {
	t.Parallel()
	srv, c := startAudited(t)
	put := "weir.default.put.run.r.main."
	jetstreamtest.Slip(t, srv, put+"start", nats.Header{"weir-key": {"a"}, "Weir-Key": {"b"}}, "\xff not an event")
	jetstreamtest.Slip(t, srv, put+"odd.place", nil, "{}")
	nc := rawConn(t, srv)
	reply, err := nc.RequestMsgWithContext(t.Context(), &nats.Msg{
		Subject: put + "end",
		Header:  nats.Header{"Nats-Stream-Source": {"weir_default_runs 1 > > weir.default.run.s.main.end"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a forged origin: %s", reply.Data)
	recorded(t, c, 2)
	got, _ := theRecord(t, c, jetstream.AuditQuery{Run: "r"})
	want := []string{"weir.default.run.r.main.start", "weir.default.run.r.main.odd.place"}
	if diff := cmp.Diff(want, subjectsOf(got)[:2]); diff != "" {
		t.Error(diff)
	}
	if string(got[0].Event) != "\xff not an event" || got[0].Key != "a,b" {
		t.Errorf("%+v", got[0])
	}
	for _, r := range got {
		if _, err := r.Decode(); err == nil {
			t.Errorf("%s is taken for a fact", r.Subject)
		}
	}
}

// auditor has the rights with which an operator reads the record, and no other.
const auditor = `
accounts {
  SVC {
    jetstream: enabled
    users: [
      { user: provisioner, password: p }
      { user: operator, password: p, permissions: { subscribe: ["_INBOX_operator.>"], publish: [
        "$JS.API.STREAM.INFO.weir_default_runs", "$JS.API.STREAM.INFO.weir_default_audit", "$JS.API.DIRECT.GET.weir_default_audit" ] } }
    ]
  }
}
`

// TestAuditAsOperator reads the record without a consumer, which operators may not make: SECURITY.md 3.
func TestAuditAsOperator(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(auditor), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	all := login(t, srv, "provisioner", "_INBOX")
	ensure(t, all, jetstream.Settings{Audit: true})
	for i := range 300 {
		p := ns.Start(fmt.Sprint("r", i))
		stored(t, all, events.First(p), fact(t, p))
	}
	operator := login(t, srv, "operator", "_INBOX_operator")
	if err := operator.AwaitAudit(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	records, gaps := theRecord(t, operator, jetstream.AuditQuery{})
	if len(records) != 300 || len(gaps) > 0 {
		t.Errorf("%d records, gaps before %v", len(records), gaps)
	}
	if v := operator.Violations(); len(v) > 0 {
		t.Errorf("violations %v", v)
	}
}
