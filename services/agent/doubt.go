package agent

// InDoubtError is the error of a handler that has asked something outside to act and cannot know whether it did. A
// call of a tool with effects is then handed to people, who say whether it is tried again; of other tools it is an
// error like any other, because trying again does no harm.
type InDoubtError struct{ Err error }

// InDoubt says that nobody knows whether what err is about has happened.
func InDoubt(err error) error { return &InDoubtError{err} }

// Error is the text of what went wrong.
func (e *InDoubtError) Error() string { return e.Err.Error() }

// Unwrap is what went wrong.
func (e *InDoubtError) Unwrap() error { return e.Err }
