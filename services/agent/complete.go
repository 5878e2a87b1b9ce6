package agent

import (
	"cmp"

	"github.com/weirkeeper/weir/events"
)

// Complete fills in what a manifest leaves to its defaults, the digest of the input schema included. It is for tools
// that are not made by [NewTool]; completing a complete manifest changes nothing. It checks nothing: [Check] does.
func Complete(m events.Manifest) events.Manifest {
	m.Version = cmp.Or(m.Version, DefaultVersion)
	m.Effect = cmp.Or(m.Effect, Effectful)
	m.Pool = cmp.Or(m.Pool, events.DefaultPool)
	m.Timeout = cmp.Or(m.Timeout, events.Duration(DefaultTimeout))
	m.StartTimeout = cmp.Or(m.StartTimeout, events.Duration(DefaultStartTimeout))
	m.MaxAttempts = cmp.Or(m.MaxAttempts, DefaultMaxAttempts)
	m.InputSchema = events.ObjectSchema(m.InputSchema)
	if canonical, err := events.Canonical(m.InputSchema); err == nil {
		m.InputSchemaDigest = events.Digest(canonical)
	}
	return m
}
