package events

import "time"

// Purposes of timers.
const (
	TimerExpire   = "expire"
	TimerRemind   = "remind"
	TimerEscalate = "escalate"
)

// TimerSet schedules a message for the gate (timer.set). It proves nothing: the gate compares the stored deadline.
type TimerSet struct {
	RunID      string    `json:"runId"`
	ToolCallID string    `json:"toolCallId"`
	Round      int       `json:"round"`
	Purpose    string    `json:"purpose"`
	At         time.Time `json:"at"`
}

// TimerFired is the scheduled message when it comes (timer.fired).
type TimerFired TimerSet
