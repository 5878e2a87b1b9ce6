package jetstream

import "testing"

// What Verify compares.
var (
	StreamFields   = streamFields
	ConsumerFields = consumerFields
)

// Differences compares a plan with what a server would tell.
func Differences(t *testing.T, plan any, got map[string]any, fields []string) []Drift {
	t.Helper()
	want, err := toConfig(plan)
	if err != nil {
		t.Fatal(err)
	}
	have, err := toConfig(got)
	if err != nil {
		t.Fatal(err)
	}
	return differences(want, have, fields, nil)
}

// What errors are mapped to.
var (
	MapError = mapError
	ErrBusy  = errBusy
	Errors   = mapped
)
