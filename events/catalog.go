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

func row[T any](name, subject, chain, stream, domain, by, acts, means string) Row {
	mode := Structured
	if stream == StreamChunks {
		mode = Binary
	}
	return Row{
		Type: TypePrefix + name + ".v1", Subject: subject, Chain: chain, Stream: stream, Mode: mode,
		Domain: domain, By: by, For: acts, Means: means, data: reflect.TypeFor[T](),
	}
}

// Names of signature domains.
const (
	DomainGo       = "weir.go.v1"
	DomainAsk      = "weir.ask.v1"
	DomainAnswer   = "weir.answer.v1"
	DomainVote     = "weir.vote.v1"
	DomainStart    = "weir.start.v1"
	DomainDecision = "weir.decision.v1"
)

// Chains of the catalogue.
const (
	chainMain  = "main"
	chainCall  = "call"
	chainGrant = "grant"
)

// Catalog is every type of event that Weir knows.
var Catalog = []Row{
	row[RunRequested]("run.requested", "in.start.<principal>.<agent>", "", StreamInbox, DomainStart,
		"clients", "planner", "somebody asks for a run"),
	row[RunRefused]("run.refused", "note.<principal>.<run>.=run", "", "", "",
		"planner, gate", "the sender", "a start or cancel did not count"),
	row[CancelRequested]("cancel.requested", "in.cancel.<principal>.<run>", "", StreamInbox, "",
		"clients, planner", "gate", "somebody asks for the end of a run or of one call"),
	row[RunStarted]("run.started", "run.<run>.main.start", chainMain, StreamRuns, "",
		"planner", "planner", "a run has begun, its definitions pinned"),
	row[StepFinished]("step.finished", "run.<run>.main.step.<n>", chainMain, StreamRuns, "",
		"planner", "gate", "one model turn with the calls it asks for"),
	row[RunCarried]("run.carried", "run.<run>.main.carry.<k>", chainMain, StreamRuns, "",
		"planner", "nobody", "the state so far, stored again before it ages out"),
	row[RunEnded]("run.ended", "run.<run>.main.end", chainMain, StreamRuns, "",
		"planner, gate", "gate, executors", "the run is over"),
	row[CallHeld]("call.held", "run.<run>.call.<c>.ask", chainCall, StreamRuns, DomainAsk,
		"gate", "people, any subscriber", "a call waits for a decision"),
	row[CallAnswered]("call.answered", "run.<run>.call.<c>.answer", chainCall, StreamRuns, DomainAnswer,
		"gate", "gate", "the decision that counts"),
	row[CallReleased]("call.released", "run.<run>.call.<c>.go.<pool>.<tool>", chainCall, StreamRuns, DomainGo,
		"gate", "executors of the pool", "exact bytes may run"),
	row[CallClaimed]("call.claimed", "run.<run>.call.<c>.claim", chainCall, StreamRuns, "",
		"executor", "nobody", "a worker starts the call"),
	row[CallSuspended]("call.suspended", "run.<run>.call.<c>.suspend", chainCall, StreamRuns, "",
		"executor", "gate", "the tool waits for data, or the call is in doubt"),
	row[CallFinished]("call.finished", "run.<run>.call.<c>.result", chainCall, StreamRuns, "",
		"executor, gate", "planner", "the one outcome of a call"),
	row[VoteCast]("vote.cast", "run.<run>.vote.<c>.<principal>", "", StreamRuns, DomainVote,
		"gate", "gate", "one of several decisions that a quorum needs"),
	row[DecisionRequested]("decision.requested", "in.decide.<principal>.<run>.<c>", "", StreamInbox, DomainDecision,
		"people, programs", "gate", "somebody decides a held call"),
	row[DecisionRefused]("decision.refused", "run.<run>.refused.<c>.<event>", "", StreamRuns, "",
		"gate", "the sender", "a decision did not count"),
	row[OutcomeDelayed]("outcome.delayed", "run.<run>.late.<c>.<event>", "", StreamRuns, "",
		"executor", "gate", "an outcome came after its chain had gone on"),
	row[GrantRequested]("grant.requested", "in.grant.<principal>.<grant>", "", StreamInbox, "",
		"people, programs", "gate", "somebody asks for a standing approval"),
	row[GrantRevoked]("grant.revoked", "in.grant.<principal>.<grant>", "", StreamInbox, "",
		"people, programs", "gate", "somebody takes a standing approval back"),
	row[GrantUsed]("grant.used", "grant.<id>.use.<toolCallId>", chainGrant, StreamRuns, "",
		"gate", "gate", "a standing approval was used once"),
	row[TimerSet]("timer.set", "timer.set.<id>", "", StreamTimers, "",
		"gate", "the server", "a deadline is scheduled"),
	row[TimerFired]("timer.fired", "timer.fire.<id>", "", StreamTimers, "",
		"the server", "gate", "a deadline may have passed"),
	row[Chunk]("chunk.published", "chunk.<run>", "", StreamChunks, "",
		"planner, gate, executor", "readers", "one piece of what people watch"),
	row[MessageStored]("message.stored", "thread.<resource>.<thread>.<run>.<k>", "", StreamThreads, "",
		"planner", "readers", "entries of a conversation"),
	row[DeliveryAbandoned]("delivery.abandoned", "dead.<service>.<run>", "", StreamDead, "",
		"planner, gate, executor", "people", "something was given up"),
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
