package jetstream

import (
	"github.com/weirkeeper/weir/events"
)

// Outcome is what became of an append.
type Outcome uint8

// Outcomes of an append.
const (
	// Stored: the fact is in the log, by this call or by an earlier one with the same event.
	Stored Outcome = iota + 1
	// Lost: another fact followed the one that the guard names.
	Lost
	// Gone: the fact that the guard names is no longer there, and nothing follows it: the chain has aged out.
	Gone
)

// String names the outcome for logs.
func (o Outcome) String() string {
	switch o {
	case Stored:
		return "stored"
	case Lost:
		return "lost"
	case Gone:
		return "gone"
	}
	return "unknown"
}

// Appended is the outcome of an append and the chain's last fact: ours or another's, with sequence and time stamp. It
// is zero when the outcome is Gone.
type Appended struct {
	Outcome Outcome
	Last    events.Event
}
