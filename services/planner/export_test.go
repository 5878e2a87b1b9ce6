package planner

import "github.com/weirkeeper/weir/events"

// Handlers, for tests that deliver by hand.
var (
	HandleFact    = (*Service).onFact
	HandleRequest = (*Service).onRequest
)

// Remembered is the state of a run that a planner has in memory, and the sequence of the fact that it follows next.
func Remembered(s *Service, run string) (*events.State, uint64) {
	m, _ := s.states.Get(run)
	return m.state, m.head.Seq
}

// Remember lets a planner believe that a run is in this state.
func Remember(s *Service, st *events.State, head events.Event) {
	s.states.Remove(st.RunID)
	s.remember(st, head)
}

// Recall chooses what a model is shown of a thread.
var Recall = recall
