package approval

// Handlers, for tests that deliver by hand.
var (
	HandleFact    = (*Service).onFact
	HandleRequest = (*Service).onRequest
	HandleTimer   = (*Service).onTimer
	SweepAsks     = (*Service).sweepAsks
	SweepHeld     = (*Service).sweepHeld
	SweepEntry    = (*Service).sweepEntry
)
