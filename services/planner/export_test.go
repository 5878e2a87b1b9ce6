package planner

// Handlers, for tests that deliver by hand.
var (
	HandleFact    = (*Service).onFact
	HandleRequest = (*Service).onRequest
)
