package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// chosen are settings that leave nothing open, so that Verify compares everything.
var chosen = jetstream.Settings{
	Retention: time.Hour, AuditRetention: 2 * time.Hour, ChunkRetention: 30 * time.Minute, Replicas: 1,
	Pools: []string{"default", "billing team"}, Audit: true,
	MaxBytes: map[string]int64{events.StreamRuns: 1 << 30, events.StreamChunks: 1 << 28},
}

func TestEnsureTwice(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstreamtest.StartServer(t), jetstream.Options{})
	missing, err := c.Verify(t.Context(), chosen)
	if err != nil {
		t.Fatal(err)
	}
	plan := jetstream.Topology(ns, chosen)
	want := 0
	for _, s := range plan.Stores {
		want += 1 + len(s.Consumers)
	}
	if len(missing) != want || !strings.HasSuffix(missing[0].String(), "is missing") {
		t.Errorf("an empty server misses %d things, want %d: %v", len(missing), want, missing)
	}
	for range 2 {
		ensure(t, c, chosen)
		if drifts, err := c.Verify(t.Context(), chosen); err != nil || len(drifts) > 0 {
			t.Errorf("drifts %v, %v", drifts, err)
		}
	}
	// Who chooses nothing takes what is there.
	ensure(t, c, jetstream.Settings{})
	if drifts, err := c.Verify(t.Context(), jetstream.Settings{}); err != nil || len(drifts) > 0 {
		t.Errorf("with defaults: %v, %v", drifts, err)
	}
	if drifts, err := c.Verify(t.Context(), chosen); err != nil || len(drifts) > 0 {
		t.Errorf("defaults have changed what was chosen: %v, %v", drifts, err)
	}
}

// TestSettings holds the plan against what security and reliability rest on, written here once more by hand.
func TestSettings(t *testing.T) {
	t.Parallel()
	type must struct {
		Discard                                     natsjs.DiscardPolicy
		Direct, Rollup, TTL, Schedules, Purge, Aged bool
	}
	oldest, refuse := natsjs.DiscardOld, natsjs.DiscardNew
	bucket := must{Discard: refuse, TTL: true, Purge: true}
	want := map[string]must{
		events.StreamInbox:     {Discard: refuse},
		events.StreamRuns:      {Discard: refuse, Aged: true},
		events.StreamChunks:    {Discard: oldest, Direct: true, Aged: true},
		events.StreamTimers:    {Discard: oldest, Rollup: true, TTL: true, Schedules: true, Purge: true},
		events.StreamThreads:   {Discard: refuse, Direct: true, Purge: true},
		events.StreamAudit:     {Discard: oldest, Direct: true, Aged: true},
		events.StreamDead:      {Discard: refuse, Direct: true},
		events.BucketBlobs:     {Discard: refuse, Direct: true, Purge: true},
		events.BucketSuspended: bucket, events.BucketRegistry: bucket, events.BucketTasks: bucket,
		events.BucketGrants: bucket,
	}
	got := map[string]must{}
	for _, s := range jetstream.Topology(ns, chosen).Stores {
		c := s.Config
		got[s.Name] = must{
			Discard: c.Discard, Direct: c.AllowDirect, Rollup: c.AllowRollup, TTL: c.AllowMsgTTL,
			Schedules: c.AllowMsgSchedules, Purge: !c.DenyPurge, Aged: c.MaxAge > 0,
		}
		if c.AllowAtomicPublish || c.AllowBatchPublish || c.AllowMsgCounter || c.SubjectDeleteMarkerTTL > 0 ||
			c.DenyDelete == c.AllowMsgSchedules || c.Duplicates != 100*time.Millisecond || c.Storage != natsjs.FileStorage {
			t.Errorf("%s: %+v", s.Name, c)
		}
		for _, d := range s.Consumers {
			if d.MaxDeliver != -1 || d.AckWait == 0 || d.MaxAckPending <= 0 || d.AckPolicy != natsjs.AckExplicitPolicy {
				t.Errorf("%s of %s: %+v", d.Durable, s.Name, d)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestDurables lists what each durable takes, by stored names: one written by an ingest name never delivers.
func TestDurables(t *testing.T) {
	t.Parallel()
	got := map[string][]string{}
	for _, s := range jetstream.Topology(ns, chosen).Stores {
		for _, d := range s.Consumers {
			filters := d.FilterSubjects
			if d.FilterSubject != "" {
				filters = []string{d.FilterSubject}
			}
			got[s.Name+"/"+d.Durable] = filters
		}
	}
	want := map[string][]string{
		"inbox/planner":  {"weir.default.in.start.*.*", "weir.default.in.thread.*.*.*"},
		"inbox/approval": {"weir.default.in.cancel.*.*", "weir.default.in.decide.*.*.*", "weir.default.in.grant.*.*"},
		"runs/planner": {
			"weir.default.run.*.main.start", "weir.default.run.*.call.*.result",
			"weir.default.run.*.call.*.go.=agent.>",
		},
		"runs/approval": {
			"weir.default.run.*.main.step.*", "weir.default.run.*.main.end",
			"weir.default.run.*.call.*.suspend", "weir.default.run.*.late.*.*",
		},
		"runs/pool-default":                {"weir.default.run.*.call.*.go.default.>"},
		"runs/pool-=bmjuwy3djnztsa5dfmfwq": {"weir.default.run.*.call.*.go.=bmjuwy3djnztsa5dfmfwq.>"},
		"timers/approval":                  {"weir.default.timer.fire.*"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// spoilt is a value for each setting that is not the one of any plan.
var spoilt = map[string]any{
	"subjects": []string{"elsewhere.>"}, "retention": "interest", "max_consumers": 7, "max_msgs": 7, "max_bytes": 7777,
	"discard_new_per_subject": true, "max_age": 7 * time.Hour, "max_msgs_per_subject": 7, "max_msg_size": 777,
	"storage": "memory", "num_replicas": 5, "no_ack": true, "duplicate_window": time.Minute,
	"mirror": map[string]any{"name": "x"}, "sources": []any{map[string]any{"name": "x"}}, "sealed": true,
	"subject_transform": map[string]any{"src": "a", "dest": "b"}, "republish": map[string]any{"src": "a", "dest": "b"},
	"mirror_direct": true, "subject_delete_marker_ttl": time.Hour, "allow_msg_counter": true, "allow_atomic": true,
	"allow_batched": true, "persist_mode": "async",
	"deliver_policy": "new", "opt_start_seq": 7, "opt_start_time": "2026-01-01T00:00:00Z", "ack_policy": "none",
	"ack_wait": time.Hour, "max_deliver": 7, "backoff": []time.Duration{1}, "filter_subject": "x", "filter_subjects": []string{"x"},
	"replay_policy": "original", "rate_limit_bps": 7, "max_ack_pending": 7, "headers_only": true, "max_batch": 7,
	"max_expires": time.Hour, "inactive_threshold": time.Hour, "mem_storage": true, "deliver_subject": "x",
	"deliver_group": "x", "pause_until": "2036-01-01T00:00:00Z", "priority_policy": "overflow",
}

// flipped are settings that are on in one store and off in another.
var flipped = []string{
	"deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_direct", "allow_msg_ttl",
	"allow_msg_schedules", "discard",
}

// TestEverySettingIsCompared changes each setting of each store and each durable, in what the server would tell.
func TestEverySettingIsCompared(t *testing.T) {
	t.Parallel()
	tampered := 0
	spoil := func(t *testing.T, plan any, fields []string) {
		t.Helper()
		for _, field := range fields {
			got := asMap(t, plan)
			switch was := got[field].(type) {
			case bool:
				got[field] = !was
			default:
				got[field] = spoilt[field]
				if field == "discard" {
					got[field] = map[any]string{"old": "new", "new": "old"}[was]
				} else if slices.Contains(flipped, field) {
					got[field] = true
				}
			}
			if got[field] == nil {
				t.Fatalf("no value to spoil %s with", field)
			}
			drifts := jetstream.Differences(t, plan, got, fields)
			if len(drifts) != 1 || drifts[0].Field != field {
				t.Errorf("%s spoilt: %v", field, drifts)
			}
			tampered++
		}
	}
	for _, s := range jetstream.Topology(ns, chosen).Stores {
		spoil(t, s.Config, jetstream.StreamFields)
		for _, d := range s.Consumers {
			spoil(t, d, jetstream.ConsumerFields)
		}
	}
	if tampered < 500 {
		t.Errorf("only %d settings were spoilt", tampered)
	}
}

func asMap(t *testing.T, v any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestVerifyOnServer tampers with settings on a server, first by an update and, where the server refuses that, by
// making the stream anew.
func TestVerifyOnServer(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, chosen)
	js := rawJS(t, srv)
	for _, tc := range []struct {
		store, field string
		tamper       func(*natsjs.StreamConfig)
	}{
		{events.StreamInbox, "discard", func(c *natsjs.StreamConfig) { c.Discard = natsjs.DiscardOld }},
		{events.StreamInbox, "allow_rollup_hdrs", func(c *natsjs.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }},
		{events.StreamInbox, "deny_purge", func(c *natsjs.StreamConfig) { c.DenyPurge = false }},
		{events.StreamInbox, "deny_delete", func(c *natsjs.StreamConfig) { c.DenyDelete = false }},
		{events.StreamInbox, "duplicate_window", func(c *natsjs.StreamConfig) { c.Duplicates = 2 * time.Minute }},
		{events.StreamInbox, "allow_msg_ttl", func(c *natsjs.StreamConfig) { c.AllowMsgTTL = true }},
		{events.StreamInbox, "allow_atomic", func(c *natsjs.StreamConfig) { c.AllowAtomicPublish = true }},
		{events.StreamRuns, "allow_direct", func(c *natsjs.StreamConfig) { c.AllowDirect = true }},
		{events.StreamRuns, "max_age", func(c *natsjs.StreamConfig) { c.MaxAge = time.Minute }},
		{events.StreamRuns, "subject_transform", func(c *natsjs.StreamConfig) { c.SubjectTransform = nil }},
		{events.StreamRuns, "republish", func(c *natsjs.StreamConfig) { c.RePublish = nil }},
		{events.StreamRuns, "subjects", func(c *natsjs.StreamConfig) { c.Subjects = append(c.Subjects, "elsewhere") }},
		{events.StreamRuns, "persist_mode", func(c *natsjs.StreamConfig) { c.PersistMode = natsjs.AsyncPersistMode }},
		{events.StreamRuns, "storage", func(c *natsjs.StreamConfig) { c.Storage = natsjs.MemoryStorage }},
		{events.StreamTimers, "max_age", func(c *natsjs.StreamConfig) { c.MaxAge = time.Hour }},
		{events.StreamTimers, "allow_msg_schedules", func(c *natsjs.StreamConfig) { c.AllowMsgSchedules = false }},
		{events.StreamAudit, "sources", func(c *natsjs.StreamConfig) { c.Sources[0].SubjectTransforms = c.Sources[0].SubjectTransforms[1:] }},
		{events.BucketSuspended, "allow_rollup_hdrs", func(c *natsjs.StreamConfig) { c.AllowRollup = true }},
		{events.BucketSuspended, "allow_direct", func(c *natsjs.StreamConfig) { c.AllowDirect = true }},
		{events.BucketRegistry, "max_msgs_per_subject", func(c *natsjs.StreamConfig) { c.MaxMsgsPerSubject = 5 }},
		{events.BucketBlobs, "allow_rollup_hdrs", func(c *natsjs.StreamConfig) { c.AllowRollup = true }},
	} {
		plan := jetstream.Topology(ns, chosen)
		store, ok := plan.Store(tc.store)
		if !ok {
			t.Fatal(tc.store)
		}
		tc.tamper(&store.Config)
		if _, err := js.UpdateStream(t.Context(), store.Config); err != nil {
			remake(t, js, store)
		}
		drifts, err := c.Verify(t.Context(), chosen)
		if err != nil {
			t.Fatal(err)
		}
		named := slices.ContainsFunc(drifts, func(d jetstream.Drift) bool {
			return d.Store == store.Config.Name && d.Field == tc.field && d.Consumer == "" && d.Want != d.Got
		})
		if !named {
			t.Errorf("%s of %s tampered: drifts %v", tc.field, tc.store, drifts)
		}
		if err := c.Ensure(t.Context(), chosen); err != nil {
			if !strings.Contains(err.Error(), tc.field) {
				t.Errorf("%s of %s cannot be changed back, without the field being named: %v", tc.field, tc.store, err)
			}
			good, _ := jetstream.Topology(ns, chosen).Store(tc.store)
			remake(t, js, good)
			ensure(t, c, chosen)
		}
		if drifts, err := c.Verify(t.Context(), chosen); err != nil || len(drifts) > 0 {
			t.Fatalf("%s of %s not set right again: %v, %v", tc.field, tc.store, drifts, err)
		}
	}
}

func remake(t *testing.T, js natsjs.JetStream, store jetstream.Store) {
	t.Helper()
	if err := js.DeleteStream(t.Context(), store.Config.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), store.Config); err != nil {
		t.Fatal(err)
	}
	for _, d := range store.Consumers {
		if _, err := js.CreateConsumer(t.Context(), store.Config.Name, d); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVerifyConsumers(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, chosen)
	js := rawJS(t, srv)
	runs, _ := jetstream.Topology(ns, chosen).Store(events.StreamRuns)
	for field, tamper := range map[string]func(*natsjs.ConsumerConfig){
		"max_deliver":        func(c *natsjs.ConsumerConfig) { c.MaxDeliver = 3 },
		"ack_wait":           func(c *natsjs.ConsumerConfig) { c.AckWait = time.Second },
		"max_ack_pending":    func(c *natsjs.ConsumerConfig) { c.MaxAckPending = 1 },
		"filter_subjects":    func(c *natsjs.ConsumerConfig) { c.FilterSubjects = c.FilterSubjects[1:] },
		"backoff":            func(c *natsjs.ConsumerConfig) { c.BackOff = []time.Duration{time.Second} },
		"headers_only":       func(c *natsjs.ConsumerConfig) { c.HeadersOnly = true },
		"inactive_threshold": func(c *natsjs.ConsumerConfig) { c.InactiveThreshold = time.Hour },
	} {
		durable := runs.Consumers[0]
		durable.FilterSubjects = slices.Clone(durable.FilterSubjects)
		tamper(&durable)
		if _, err := js.UpdateConsumer(t.Context(), runs.Config.Name, durable); err != nil {
			t.Fatal(err)
		}
		drifts, err := c.Verify(t.Context(), chosen)
		if err != nil || !slices.ContainsFunc(drifts, func(d jetstream.Drift) bool {
			return d.Store == runs.Config.Name && d.Consumer == durable.Durable && d.Field == field
		}) {
			t.Errorf("%s tampered: %v, %v", field, drifts, err)
		}
		ensure(t, c, chosen)
	}
	if err := js.DeleteConsumer(t.Context(), runs.Config.Name, jetstream.ConsumerApproval); err != nil {
		t.Fatal(err)
	}
	drifts, err := c.Verify(t.Context(), chosen)
	if err != nil || len(drifts) != 1 || drifts[0].Consumer != jetstream.ConsumerApproval || drifts[0].Field != "" {
		t.Errorf("deleted durable: %v, %v", drifts, err)
	}
	ensure(t, c, chosen)
}

// A stream that takes what the server republishes would store what anybody sends there.
func TestVerifyFindsListeners(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, chosen)
	js := rawJS(t, srv)
	for _, subject := range []string{ns.RunAll(), ns.EveryCall(events.KindAsk), "weir.*.run.r.>"} {
		if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: "foreign", Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
		drifts, err := c.Verify(t.Context(), chosen)
		if err != nil || len(drifts) != 1 || drifts[0].Store != "foreign" || drifts[0].Field != "subjects" {
			t.Errorf("stream on %s: %v, %v", subject, drifts, err)
		}
		if err := js.DeleteStream(t.Context(), "foreign"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEnsureCannotChange(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	inbox, _ := jetstream.Topology(ns, chosen).Store(events.StreamInbox)
	inbox.Config.Retention = natsjs.LimitsPolicy
	if _, err := rawJS(t, srv).CreateStream(t.Context(), inbox.Config); err != nil {
		t.Fatal(err)
	}
	err := c.Ensure(t.Context(), chosen)
	if err == nil || !strings.Contains(err.Error(), `retention is "limits", must be "workqueue"`) ||
		!strings.Contains(err.Error(), inbox.Config.Name) {
		t.Errorf("ensure: %v", err)
	}
	if err := c.Ensure(t.Context(), jetstream.Settings{Replicas: 3}); err == nil {
		t.Error("a single server made streams of three replicas")
	}
}

// TestGuardsThroughIngest shows on the server what Weir relies on: facts that are published under ingest names are
// guarded, read and republished under stored names, in both families. And it shows the trap: a guard over ingest names
// finds nothing and passes.
func TestGuardsThroughIngest(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, jetstream.Settings{})
	nc := rawConn(t, srv)
	heard := make(chan *nats.Msg, 16)
	for _, subject := range []string{ns.RunAll(), "weir.default.grant.>"} {
		if _, err := nc.ChanSubscribe(subject, heard); err != nil {
			t.Fatal(err)
		}
	}
	run, grant := ns.Call(call("r"), events.KindAsk), "grant.g1.use.r=1-1"
	for _, f := range []struct{ ingest, stored, chain string }{
		{run.Ingest(), run.Subject(), run.Chain()},
		{"weir.default.put." + grant, "weir.default." + grant, "weir.default.grant.g1.>"},
	} {
		if code := guarded(t, nc, f.ingest, f.chain); code != 0 {
			t.Errorf("first fact of %s: refused with %d", f.chain, code)
		}
		for range 3 {
			if code := guarded(t, nc, f.ingest, f.chain); code != 10071 {
				t.Errorf("second fact of %s: %d, want 10071", f.chain, code)
			}
		}
		m, err := rawJS(t, srv).Stream(t.Context(), ns.Store(events.StreamRuns))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.GetLastMsgForSubject(t.Context(), f.stored); err != nil {
			t.Errorf("%s: %v", f.stored, err)
		}
		if code := guarded(t, nc, f.ingest, strings.Replace(f.chain, "default.", "default.put.", 1)); code != 0 {
			t.Errorf("a guard over ingest names: %d; the trap is gone, and with it the reason for the self-test", code)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	close(heard)
	got := map[string]int{}
	for msg := range heard {
		got[msg.Subject]++
		if msg.Header.Get(natsjs.SequenceHeader) == "" {
			t.Error("a republished fact has no sequence")
		}
	}
	if diff := cmp.Diff(map[string]int{run.Subject(): 2}, got); diff != "" {
		t.Errorf("subscribers heard refused facts, or uses of grants:\n%s", diff)
	}
}

// guarded publishes something as the first of a chain and gives the code of the refusal.
func guarded(t *testing.T, nc *nats.Conn, subject, filter string) int {
	t.Helper()
	msg := nats.NewMsg(subject)
	msg.Header.Set(natsjs.ExpectedLastSubjSeqHeader, "0")
	msg.Header.Set(natsjs.ExpectedLastSubjSeqSubjHeader, filter)
	reply, err := nc.RequestMsgWithContext(t.Context(), msg)
	if err != nil {
		t.Fatal(err)
	}
	var ack struct {
		Error struct {
			Code int `json:"err_code"`
		}
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		t.Fatal(err)
	}
	return ack.Error.Code
}

// TestSelfTest lets each family's guards fail in the way in which a wrong stream makes them fail. (SUBJ-4)
func TestSelfTest(t *testing.T) {
	t.Parallel()
	good := start(t, jetstream.Options{})
	for _, service := range jetstream.Services() {
		if err := good.SelfTest(t.Context(), service); err != nil {
			t.Error(err)
		}
		if err := good.Probe(t.Context(), service); err != nil {
			t.Error(err)
		}
	}
	count(t, good, len(jetstream.Services())+1) // the gate has two families; a probe stores nothing
	for name, tamper := range map[string]func(*natsjs.StreamConfig){
		"runs keep their ingest names": func(c *natsjs.StreamConfig) { c.SubjectTransform, c.RePublish = nil, nil },
		"grants keep their ingest names": func(c *natsjs.StreamConfig) {
			c.SubjectTransform.Source = "weir.default.put.run.>"
			c.SubjectTransform.Destination = "weir.default.run.>"
		},
	} {
		srv := jetstreamtest.StartServer(t)
		bad := connect(t, srv, jetstream.Options{Retry: time.Second})
		runs, _ := jetstream.Topology(ns, jetstream.Settings{}).Store(events.StreamRuns)
		tamper(&runs.Config)
		if _, err := rawJS(t, srv).CreateStream(t.Context(), runs.Config); err != nil {
			t.Fatal(err)
		}
		if err := bad.SelfTest(t.Context(), jetstream.ConsumerApproval); err == nil {
			t.Errorf("%s, and the self-test passes", name)
		}
	}
	none := connect(t, jetstreamtest.StartServer(t), jetstream.Options{Retry: 100 * time.Millisecond})
	if err := none.Probe(t.Context(), "planner"); !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("probe without a stream: %v", err)
	}
}

// TestAudit follows facts of every depth into the record.
func TestAudit(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	c := connect(t, srv, jetstream.Options{})
	ensure(t, c, chosen)
	places := everyPlace("r")
	for i, p := range places {
		p.Run = "r" + string(rune('a'+i))
		stored(t, c, events.First(p), fact(t, p))
	}
	if code := guarded(t, rawConn(t, srv), "weir.default.put.grant.g.use.r=1-1", "weir.default.grant.g.>"); code != 0 {
		t.Fatal(code)
	}
	audit, err := rawJS(t, srv).Stream(t.Context(), ns.Store(events.StreamAudit))
	if err != nil {
		t.Fatal(err)
	}
	var info *natsjs.StreamInfo
	err = eventually(t, func() error {
		var err error
		info, err = audit.Info(t.Context(), natsjs.WithSubjectFilter(">"))
		return err
	}, func(err error) bool { return err != nil || info.State.Msgs == uint64(len(places)+1) })
	if err != nil || info.State.Msgs != uint64(len(places)+1) {
		t.Errorf("%d of %d facts are in the record, %v", info.State.Msgs, len(places)+1, err)
	}
	for subject := range maps.Keys(info.State.Subjects) {
		if !strings.HasPrefix(subject, "weir.default.audit.") {
			t.Errorf("the record has a subject %s", subject)
		}
	}
}
