package toolexecutor

// HandleRelease is the handler of releases, for tests that deliver by hand.
var HandleRelease = (*Service).onRelease
