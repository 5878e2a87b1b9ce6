package events

import "time"

// What the gate says to those who administer ([VerbAdmin]). None of it is an event.

// LagReport says how far behind the services are.
type LagReport struct {
	At        time.Time     `json:"at"` // by the server's clock
	Consumers []ConsumerLag `json:"consumers"`
}

// ConsumerLag is how many deliveries one durable consumer has not settled.
type ConsumerLag struct {
	Stream      string `json:"stream"`
	Consumer    string `json:"consumer"`
	Outstanding int    `json:"outstanding"`       // under way, waiting for redelivery, or not delivered yet
	Floor       uint64 `json:"floor"`             // everything up to this sequence is settled
	Missing     bool   `json:"missing,omitempty"` // there is no such consumer, so nothing is delivered
}

// DeadQuery asks for what was given up.
type DeadQuery struct {
	After uint64 `json:"after,omitempty"` // letters after this one; Next of the report before
	Limit int    `json:"limit,omitempty"` // default 100, at most 1000
}

// DeadReport is a part of what was given up, oldest first; the part after the last one is empty. One delivery that was given
// up twice may be in two parts.
type DeadReport struct {
	Letters []DeadBrief `json:"letters"`
	Next    uint64      `json:"next"`
}

// DeadBrief is a dead letter without what was given up, which is raw.
type DeadBrief struct {
	Letter   uint64    `json:"letter"`
	At       time.Time `json:"at"`
	Service  string    `json:"service"`
	Consumer string    `json:"consumer,omitempty"`
	Subject  string    `json:"subject"`
	Seq      uint64    `json:"seq,omitempty"`
	RunID    string    `json:"runId,omitempty"`
	Attempts int       `json:"attempts"`
	Reason   string    `json:"reason"`
}
