package jetstream

import (
	"cmp"
	"maps"
	"slices"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
)

// Names of durables. Planner and gate have one on each stream that drives them; pools have [events.PoolConsumer].
const (
	ConsumerPlanner  = "planner"  // on inbox and runs
	ConsumerApproval = "approval" // on inbox, runs and timers
)

const (
	defaultRetention      = 24 * time.Hour
	defaultAuditRetention = 90 * 24 * time.Hour
	defaultChunkRetention = 24 * time.Hour
	defaultPool           = "default"

	// dedupWindow is the shortest that the server allows: nobody sets message ids, and one that somebody else sets
	// must not suppress anything.
	dedupWindow = 100 * time.Millisecond
	// ackWait is after how long a delivery without a sign of life is made again.
	ackWait = 30 * time.Second
	// maxAckPending caps the deliveries that one durable has under way in all processes together, those that are put
	// off or wait for another worker's outcome among them.
	maxAckPending = 10_000
	unlimited     = -1
)

// Settings are what operators choose. The zero value means the defaults; Verify does not compare what is zero.
type Settings struct {
	Retention      time.Duration    // of the log: how long ended runs can be read; 24 h
	AuditRetention time.Duration    // of the record; 90 days
	ChunkRetention time.Duration    // of what readers watch; 24 h
	Replicas       int              // 1 or 3; that of the connection's Options
	Pools          []string         // of executors; "default"
	Audit          bool             // keep the record; costs disk and a sixth of the throughput
	AsyncChunks    bool             // chunks are written behind their acks: for servers that sync always
	MaxBytes       map[string]int64 // by name of a stream or bucket without namespace; no limit

	// Service limits Verify to what this service uses and its user may see; empty means everything.
	Service string
}

// Plan is what a namespace needs, as data.
type Plan struct{ Stores []Store }

// Store is a stream, or a bucket as the stream that it is.
type Store struct {
	Name      string // without namespace and prefix
	Config    natsjs.StreamConfig
	Consumers []natsjs.ConsumerConfig
	Why       string // it has these settings

	open   []string // settings that were not chosen: an existing store keeps its own
	hidden bool     // only its consumers may be looked at
}

// Store is the store of a name, without namespace and prefix.
func (p Plan) Store(name string) (Store, bool) {
	i := slices.IndexFunc(p.Stores, func(s Store) bool { return s.Name == name })
	if i < 0 {
		return Store{}, false
	}
	return p.Stores[i], true
}

// planning makes a plan; its methods are the rows of the table.
type planning struct {
	ns  events.Namespace
	set Settings
}

// Topology is everything that a namespace needs.
func Topology(ns events.Namespace, s Settings) Plan {
	p := planning{ns, s}
	stores := []Store{p.inbox(), p.runs(), p.chunks(), p.timers(), p.threads(), p.dead()}
	if s.Audit {
		stores = append(stores, p.audit())
	}
	stores = append(stores, p.blobs())
	for _, name := range []string{
		events.BucketSuspended, events.BucketRegistry, events.BucketTasks,
		events.BucketGrants,
	} {
		stores = append(stores, p.bucket(name))
	}
	for i := range stores {
		p.finish(&stores[i])
	}
	return Plan{stores}
}

func (p planning) inbox() Store {
	return Store{
		Name: events.StreamInbox,
		Why:  "requests of untrusted writers, whose headers must not reach facts; removed when handled",
		Config: natsjs.StreamConfig{
			Subjects: []string{p.ns.InAll()}, Retention: natsjs.WorkQueuePolicy, Discard: natsjs.DiscardNew,
			DenyDelete: true, DenyPurge: true,
		},
		Consumers: []natsjs.ConsumerConfig{
			durable(ConsumerPlanner, p.ns.InVerb(events.VerbStart), p.ns.InVerb(events.VerbThread)),
			durable(ConsumerApproval, p.ns.InVerb(events.VerbCancel), p.ns.InVerb(events.VerbDecide),
				p.ns.InVerb(events.VerbGrant)),
		},
	}
}

// runs takes facts under one name and stores them under another, so that what is republished under the stored name is
// what was stored, and nobody else publishes there.
func (p planning) runs() Store {
	from, to := p.ns.PutTransform()
	s := Store{
		Name: events.StreamRuns,
		Why:  "the log: refused when full, never changed, read from the leader alone",
		Config: natsjs.StreamConfig{
			Subjects: p.ns.PutAll(), SubjectTransform: &natsjs.SubjectTransformConfig{Source: from, Destination: to},
			RePublish: &natsjs.RePublish{Source: p.ns.RunAll(), Destination: p.ns.RunAll()},
			Discard:   natsjs.DiscardNew, MaxAge: cmp.Or(p.set.Retention, defaultRetention),
			DenyDelete: true, DenyPurge: true,
		},
		Consumers: []natsjs.ConsumerConfig{
			durable(ConsumerPlanner, p.ns.EveryMain(events.KindStart), p.ns.EveryCall(events.KindResult),
				p.ns.EveryGo(events.TokenAgentPool)),
			durable(ConsumerApproval, p.ns.EveryMain(events.KindStep), p.ns.EveryMain(events.KindEnd),
				p.ns.EveryCall(events.KindSuspend), p.ns.EveryBeside(events.KindLate)),
		},
	}
	for _, pool := range p.pools() {
		s.Consumers = append(s.Consumers, durable(events.PoolConsumer(pool), p.ns.EveryGo(pool)))
	}
	return p.leaveOpen(s, "max_age", p.set.Retention == 0)
}

func (p planning) pools() []string {
	if len(p.set.Pools) == 0 {
		return []string{defaultPool}
	}
	return p.set.Pools
}

func (p planning) chunks() Store {
	s := Store{
		Name: events.StreamChunks,
		Why:  "what readers watch: the oldest go first, any replica answers",
		Config: natsjs.StreamConfig{
			Subjects:  []string{p.ns.Chunks()},
			RePublish: &natsjs.RePublish{Source: p.ns.Chunks(), Destination: p.ns.LiveTarget()},
			Discard:   natsjs.DiscardOld, MaxAge: cmp.Or(p.set.ChunkRetention, defaultChunkRetention),
			AllowDirect: true, DenyDelete: true, DenyPurge: true,
		},
	}
	if p.set.AsyncChunks {
		s.Config.PersistMode = natsjs.AsyncPersistMode
	}
	s = p.leaveOpen(s, "persist_mode", !p.set.AsyncChunks)
	return p.leaveOpen(s, "max_age", p.set.ChunkRetention == 0)
}

// timers has no age: it would delete a pending schedule, which then never fires, without a word. Schedules switch
// rollup on, and with it whoever writes here can wipe every timer, so only the gate may.
func (p planning) timers() Store {
	return Store{
		Name: events.StreamTimers,
		Why:  "message schedules, alone because they can write to every subject of their stream",
		Config: natsjs.StreamConfig{
			Subjects: []string{p.ns.Timers()}, Discard: natsjs.DiscardOld, // new is refused with schedules
			AllowMsgSchedules: true, AllowMsgTTL: true, AllowRollup: true,
		},
		Consumers: []natsjs.ConsumerConfig{durable(ConsumerApproval, p.ns.TimersFired())},
	}
}

func (p planning) threads() Store {
	return Store{
		Name: events.StreamThreads,
		Why:  "conversations, each entry appended once, and replaced when it is deleted",
		Config: natsjs.StreamConfig{
			Subjects: []string{p.ns.Threads()}, Discard: natsjs.DiscardNew, AllowDirect: true, DenyDelete: true,
			MaxMsgsPerSubject: 1,
		},
	}
}

// audit has no subjects, only a source, and 16 subjects stored, so that it costs disk and no memory.
func (p planning) audit() Store {
	from, to := p.ns.AuditTransforms()
	source := natsjs.StreamSource{Name: p.ns.Store(events.StreamRuns)}
	for _, subject := range from {
		source.SubjectTransforms = append(source.SubjectTransforms,
			natsjs.SubjectTransformConfig{Source: subject, Destination: to})
	}
	s := Store{
		Name: events.StreamAudit,
		Why:  "the record, kept when the log has forgotten",
		Config: natsjs.StreamConfig{
			Sources: []*natsjs.StreamSource{&source}, Discard: natsjs.DiscardOld,
			MaxAge:      cmp.Or(p.set.AuditRetention, defaultAuditRetention),
			AllowDirect: true, DenyDelete: true, DenyPurge: true,
		},
	}
	return p.leaveOpen(s, "max_age", p.set.AuditRetention == 0)
}

func (p planning) dead() Store {
	return Store{
		Name: events.StreamDead,
		Why:  "what was given up, until people have looked at it",
		Config: natsjs.StreamConfig{
			Subjects: []string{p.ns.DeadAll()}, Discard: natsjs.DiscardNew,
			AllowDirect: true, DenyDelete: true, DenyPurge: true,
		},
	}
}

// blobs has the name and the layout of an object store without what makes one dangerous: a rollup header would let
// any writer wipe it.
func (p planning) blobs() Store {
	store := p.ns.Store(events.BucketBlobs)
	return Store{
		Name: events.BucketBlobs,
		Why:  "large bodies by digest, each part appended once",
		Config: natsjs.StreamConfig{
			Name: "OBJ_" + store, Subjects: []string{"$O." + store + ".C.>"}, Discard: natsjs.DiscardNew,
			AllowDirect: true, DenyDelete: true,
		},
	}
}

// bucket is a key-value bucket made by hand. As the client makes one, a rollup header from a writer of one key deletes
// all others, and any replica answers a read that decides.
func (p planning) bucket(name string) Store {
	store := p.ns.Store(name)
	return Store{
		Name: name,
		Why:  bucketUses[name],
		Config: natsjs.StreamConfig{
			Name: "KV_" + store, Subjects: []string{"$KV." + store + ".>"}, MaxMsgsPerSubject: 1,
			Discard: natsjs.DiscardNew, AllowMsgTTL: true, DenyDelete: true,
		},
	}
}

var bucketUses = map[string]string{
	events.BucketSuspended: "snapshots of suspended runs: what to go on with, and what is asked",
	events.BucketRegistry:  "definitions by name and by digest, and the processes that live",
	events.BucketTasks:     "task lists of the built-in tools",
	events.BucketGrants:    "standing approvals",
}

// finish fills in what all stores have alike.
func (p planning) finish(s *Store) {
	c := &s.Config
	c.Name = cmp.Or(c.Name, p.ns.Store(s.Name))
	c.Description = s.Why
	c.Storage, c.Replicas, c.Duplicates = natsjs.FileStorage, max(p.set.Replicas, 1), dedupWindow
	c.MaxMsgs, c.MaxConsumers, c.MaxMsgSize = unlimited, unlimited, unlimited
	c.MaxBytes = cmp.Or(p.set.MaxBytes[s.Name], unlimited)
	c.MaxMsgsPerSubject = cmp.Or(c.MaxMsgsPerSubject, unlimited)
	*s = p.leaveOpen(*s, "max_bytes", p.set.MaxBytes[s.Name] == 0)
	*s = p.leaveOpen(*s, "num_replicas", p.set.Replicas == 0)
}

// leaveOpen says that a setting was not chosen, so an existing one stays as it is.
func (planning) leaveOpen(s Store, field string, open bool) Store {
	if open {
		s.open = append(s.open, field)
	}
	return s
}

// durable is a consumer of stored subjects. The number of deliveries is not limited, because a message that the server
// gives up stays undelivered without a word: handlers end poison themselves.
func durable(name string, filters ...string) natsjs.ConsumerConfig {
	c := natsjs.ConsumerConfig{
		Durable: name, AckPolicy: natsjs.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: unlimited,
		MaxAckPending: maxAckPending, DeliverPolicy: natsjs.DeliverAllPolicy, ReplayPolicy: natsjs.ReplayInstantPolicy,
	}
	if len(filters) == 1 {
		c.FilterSubject = filters[0]
	} else {
		c.FilterSubjects = filters
	}
	return c
}

// uses are the stores that the user of a service may look at.
var uses = map[string][]string{
	"planner": {
		events.StreamRuns, events.StreamThreads, events.BucketBlobs, events.BucketSuspended,
		events.BucketRegistry,
	},
	"approval": {
		events.StreamRuns, events.StreamDead, events.BucketBlobs, events.BucketSuspended,
		events.BucketRegistry, events.BucketGrants,
	},
	"tool-executor": {events.StreamRuns, events.BucketRegistry},
	"gateway": {
		events.StreamChunks, events.StreamThreads, events.BucketBlobs, events.BucketSuspended,
		events.BucketRegistry, events.BucketGrants,
	},
}

// seen cuts a plan down to what a service may look at: its stores, and the durables that it consumes.
func (p Plan) seen(s Settings) Plan {
	if s.Service == "" {
		return p
	}
	var cut []Store
	for _, store := range p.Stores {
		store.Consumers = slices.DeleteFunc(slices.Clone(store.Consumers), func(c natsjs.ConsumerConfig) bool {
			return !consumes(s, c.Durable)
		})
		store.hidden = !slices.Contains(uses[s.Service], store.Name)
		if !store.hidden || len(store.Consumers) > 0 {
			cut = append(cut, store)
		}
	}
	return Plan{cut}
}

func consumes(s Settings, durable string) bool {
	if s.Service != "tool-executor" {
		return durable == s.Service
	}
	return slices.ContainsFunc(s.Pools, func(pool string) bool { return durable == events.PoolConsumer(pool) })
}

// Services are the names that Settings.Service knows.
func Services() []string { return slices.Sorted(maps.Keys(uses)) }
