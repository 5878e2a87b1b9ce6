package events

import (
	"reflect"
	"strings"
)

// Mode is how an event travels over NATS.
type Mode string

// Modes of CloudEvents over NATS.
const (
	Structured Mode = "structured" // the payload is the JSON event: one byte string that can be signed
	Binary     Mode = "binary"     // attributes in headers, the payload is the data: chunks
)

// TypePrefix begins the type of every event of Weir.
const TypePrefix = "dev.weirkeeper."

// Row is one type of event.
type Row struct {
	Type    string // dev.weirkeeper.<noun>.<past participle>.v1
	Subject string // pattern of the stored subject below weir.<ns>
	Chain   string // main, call, grant, or empty for what stands in no chain
	Stream  string // where it is stored; empty for what is only told
	Mode    Mode
	Domain  string // of its signature; empty for what is not signed
	By      string // who publishes it
	For     string // who acts on it
	Means   string
	data    reflect.Type
}

// Schema is the name of the JSON Schema of the event's data.
func (r Row) Schema() string { return strings.TrimPrefix(r.Type, TypePrefix) + ".json" }

// New is a pointer to empty data of the event's type.
func (r Row) New() any { return reflect.New(r.data).Interface() }

// row completes a row: the full name of the type, the mode of its stream, and the Go type of its data.
func row[T any](r Row) Row {
	r.Type = TypePrefix + r.Type + ".v1"
	r.Mode = Structured
	if r.Stream == StreamChunks {
		r.Mode = Binary
	}
	r.data = reflect.TypeFor[T]()
	return r
}

// Names of signature domains.
const (
	DomainGo       = "weir.go.v1"
	DomainAsk      = "weir.ask.v1"
	DomainAnswer   = "weir.answer.v1"
	DomainVote     = "weir.vote.v1"
	DomainStart    = "weir.start.v1"
	DomainDecision = "weir.decision.v1" // decisions, and grants that are asked for or taken back
	DomainGrant    = "weir.grant.v1"    // uses of grants; also the grants themselves, by their subject in the bucket
)

// Chains of the catalogue.
const (
	chainMain  = "main"
	chainCall  = "call"
	chainGrant = "grant"
)

// Catalog is every type of event that Weir knows.
var Catalog = []Row{
	row[RunRequested](Row{
		Type: "run.requested", Subject: "in.start.<principal>.<agent>", Stream: StreamInbox, Domain: DomainStart,
		By: "clients", For: "planner", Means: "somebody asks for a run",
	}),
	row[RunRefused](Row{
		Type: "run.refused", Subject: "note.<principal>.<run>.=run",
		By: "planner, gate", For: "the sender", Means: "a start or cancel did not count",
	}),
	row[CancelRequested](Row{
		Type: "cancel.requested", Subject: "in.cancel.<principal>.<run>", Stream: StreamInbox,
		By: "clients, planner", For: "gate", Means: "somebody asks for the end of a run or of one call",
	}),
	row[RunStarted](Row{
		Type: "run.started", Subject: "run.<run>.main.start", Chain: chainMain, Stream: StreamRuns,
		By: "planner", For: "planner", Means: "a run has begun, its definitions pinned",
	}),
	row[StepFinished](Row{
		Type: "step.finished", Subject: "run.<run>.main.step.<n>", Chain: chainMain, Stream: StreamRuns,
		By: "planner", For: "gate", Means: "one model turn with the calls it asks for",
	}),
	row[RunCarried](Row{
		Type: "run.carried", Subject: "run.<run>.main.carry.<k>", Chain: chainMain, Stream: StreamRuns,
		By: "planner", For: "nobody", Means: "the state so far, stored again before it ages out",
	}),
	row[RunEnded](Row{
		Type: "run.ended", Subject: "run.<run>.main.end", Chain: chainMain, Stream: StreamRuns,
		By: "planner, gate", For: "gate, executors", Means: "the run is over",
	}),
	row[CallHeld](Row{
		Type: "call.held", Subject: "run.<run>.call.<c>.ask", Chain: chainCall, Stream: StreamRuns, Domain: DomainAsk,
		By: "gate", For: "people, any subscriber", Means: "a call waits for a decision",
	}),
	row[CallAnswered](Row{
		Type: "call.answered", Subject: "run.<run>.call.<c>.answer", Chain: chainCall, Stream: StreamRuns, Domain: DomainAnswer,
		By: "gate", For: "gate", Means: "the decision that counts",
	}),
	row[CallReleased](Row{
		Type: "call.released", Subject: "run.<run>.call.<c>.go.<pool>.<tool>", Chain: chainCall, Stream: StreamRuns, Domain: DomainGo,
		By: "gate", For: "executors of the pool", Means: "exact bytes may run",
	}),
	row[CallClaimed](Row{
		Type: "call.claimed", Subject: "run.<run>.call.<c>.claim", Chain: chainCall, Stream: StreamRuns,
		By: "executor", For: "nobody", Means: "a worker starts the call",
	}),
	row[CallSuspended](Row{
		Type: "call.suspended", Subject: "run.<run>.call.<c>.suspend", Chain: chainCall, Stream: StreamRuns,
		By: "executor", For: "gate", Means: "the tool waits for data, or the call is in doubt",
	}),
	row[CallFinished](Row{
		Type: "call.finished", Subject: "run.<run>.call.<c>.result", Chain: chainCall, Stream: StreamRuns,
		By: "executor, gate", For: "planner", Means: "the one outcome of a call",
	}),
	row[VoteCast](Row{
		Type: "vote.cast", Subject: "run.<run>.vote.<c>.<principal>", Stream: StreamRuns, Domain: DomainVote,
		By: "gate", For: "gate", Means: "one of several decisions that a quorum needs",
	}),
	row[DecisionRequested](Row{
		Type: "decision.requested", Subject: "in.decide.<principal>.<run>.<c>", Stream: StreamInbox, Domain: DomainDecision,
		By: "people, programs, planner", For: "gate", Means: "somebody decides a held call",
	}),
	row[DecisionRefused](Row{
		Type: "decision.refused", Subject: "run.<run>.refused.<c>.<event>", Stream: StreamRuns,
		By: "gate", For: "the sender", Means: "a decision did not count",
	}),
	row[OutcomeDelayed](Row{
		Type: "outcome.delayed", Subject: "run.<run>.late.<c>.<event>", Stream: StreamRuns,
		By: "executor", For: "gate", Means: "an outcome came after its chain had gone on",
	}),
	row[GrantRequested](Row{
		Type: "grant.requested", Subject: "in.grant.<principal>.<grant>", Stream: StreamInbox, Domain: DomainDecision,
		By: "people, programs", For: "gate", Means: "somebody asks for a standing approval",
	}),
	row[GrantRevoked](Row{
		Type: "grant.revoked", Subject: "in.grant.<principal>.<grant>", Stream: StreamInbox, Domain: DomainDecision,
		By: "people, programs", For: "gate", Means: "somebody takes a standing approval back",
	}),
	row[GrantRefused](Row{
		Type: "grant.refused", Subject: "note.<principal>.<grant>.=grant",
		By: "gate", For: "the sender", Means: "what was asked of a standing approval did not count",
	}),
	row[GrantUsed](Row{
		Type: "grant.used", Subject: "grant.<id>.use.<toolCallId>", Chain: chainGrant, Stream: StreamRuns, Domain: DomainGrant,
		By: "gate", For: "gate", Means: "a standing approval was used once",
	}),
	row[TimerSet](Row{
		Type: "timer.set", Subject: "timer.set.<id>", Stream: StreamTimers,
		By: "gate", For: "the server", Means: "a deadline is scheduled",
	}),
	row[TimerFired](Row{
		Type: "timer.fired", Subject: "timer.fire.<id>", Stream: StreamTimers,
		By: "the server", For: "gate", Means: "a deadline may have passed",
	}),
	row[Chunk](Row{
		Type: "chunk.published", Subject: "chunk.<run>", Stream: StreamChunks,
		By: "planner, gate, executor", For: "readers", Means: "one piece of what people watch",
	}),
	row[MessageStored](Row{
		Type: "message.stored", Subject: "thread.<resource>.<thread>.<run>.<k>", Stream: StreamThreads,
		By: "planner", For: "planner, readers", Means: "an entry of a conversation",
	}),
	row[DeletionRequested](Row{
		Type: "deletion.requested", Subject: "in.thread.<principal>.<resource>.<thread>", Stream: StreamInbox,
		By: "people, programs", For: "planner", Means: "a thread is to be deleted",
	}),
	row[GrantsDropped](Row{
		Type: "grants.dropped", Subject: "in.grant.<principal>.<event>", Stream: StreamInbox,
		By: "planner", For: "gate", Means: "the grants of a deleted thread are to be taken back",
	}),
	row[ThreadErased](Row{
		Type: "thread.erased", Subject: "thread.<resource>.<thread>.=gone.0", Stream: StreamThreads,
		By: "planner", For: "planner, readers", Means: "a thread was deleted",
	}),
	row[DeliveryAbandoned](Row{
		Type: "delivery.abandoned", Subject: "dead.<service>.<run>", Stream: StreamDead,
		By: "planner, gate, executor", For: "people", Means: "something was given up",
	}),
}

var (
	rowsByData = map[reflect.Type]*Row{}
	rowsByType = map[string]*Row{}
	_          = indexCatalog()
)

func indexCatalog() bool {
	for i := range Catalog {
		rowsByData[Catalog[i].data] = &Catalog[i]
		rowsByType[Catalog[i].Type] = &Catalog[i]
	}
	return true
}

func rowOf(data any) (*Row, bool) {
	t := reflect.TypeOf(data)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	r, ok := rowsByData[t]
	return r, ok
}

// RowOf is the catalogue's row of an event type.
func RowOf(eventType string) (Row, bool) {
	r, ok := rowsByType[eventType]
	if !ok {
		return Row{}, false
	}
	return *r, true
}

// TypeOf is the event type whose data is T; it is empty when T is no event's data.
func TypeOf[T any]() string {
	if r, ok := rowsByData[reflect.TypeFor[T]()]; ok {
		return r.Type
	}
	return ""
}

// factTypes are the types of the facts of each kind.
var factTypes = map[Kind]string{
	KindStart:   TypeOf[RunStarted](),
	KindStep:    TypeOf[StepFinished](),
	KindCarry:   TypeOf[RunCarried](),
	KindEnd:     TypeOf[RunEnded](),
	KindAsk:     TypeOf[CallHeld](),
	KindAnswer:  TypeOf[CallAnswered](),
	KindGo:      TypeOf[CallReleased](),
	KindClaim:   TypeOf[CallClaimed](),
	KindSuspend: TypeOf[CallSuspended](),
	KindResult:  TypeOf[CallFinished](),
	KindVote:    TypeOf[VoteCast](),
	KindRefused: TypeOf[DecisionRefused](),
	KindLate:    TypeOf[OutcomeDelayed](),
	KindUse:     TypeOf[GrantUsed](),
}

// FactType is the type of the facts of a kind; empty for a kind that is none of a fact, and for self-tests.
func FactType(kind Kind) string { return factTypes[kind] }
