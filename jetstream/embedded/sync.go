package embedded

import (
	"fmt"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// minSyncInterval is the shortest interval that is worth its fsyncs; the server panics on a few nanoseconds.
const minSyncInterval = time.Millisecond

// Sync says when stored messages reach the disk. It decides what a power loss may take, and nothing else: a
// process that is killed loses nothing that was acknowledged, whatever the mode. It is the server's and so
// holds for all streams, except those with asynchronous persistence.
type Sync time.Duration

const (
	// SyncDefault is the server's habit, an fsync every two minutes: fast, for development.
	SyncDefault Sync = 0
	// SyncAlways puts every message on disk before it is acknowledged: the mode of a single durable node.
	SyncAlways Sync = -1
)

// SyncInterval is an fsync every d, at least a millisecond: a power loss takes the last d.
func SyncInterval(d time.Duration) Sync { return Sync(d) }

// ParseSync reads the form that String writes: default, always, or an interval such as 5ms.
func ParseSync(text string) (Sync, error) {
	switch text {
	case "", "default":
		return SyncDefault, nil
	case "always":
		return SyncAlways, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minSyncInterval {
		return 0, fmt.Errorf("sync %q: use default, always, or an interval of at least %v", text, minSyncInterval)
	}
	return SyncInterval(d), nil
}

// String is default, always, or the interval.
func (s Sync) String() string {
	switch s {
	case SyncDefault:
		return "default"
	case SyncAlways:
		return "always"
	}
	return time.Duration(s).String()
}

// apply leaves the default alone, so that a configuration file may choose.
func (s Sync) apply(n *natsserver.Options) {
	switch s {
	case SyncDefault:
	case SyncAlways:
		n.SyncAlways = true
	default:
		n.SyncAlways, n.SyncInterval = false, time.Duration(s)
	}
}
