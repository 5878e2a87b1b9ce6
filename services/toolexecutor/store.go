package toolexecutor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
)

// store keeps a value for the conversation of a call. The built-in tools share one, the task list; any other tool has its
// own, so that none can break another's.
type store struct {
	conn *jetstream.Conn
	key  string
}

var _ agent.Store = store{}

// storeFor is the store of a call; none where the conversation has no name or no owner, because then anybody could mean
// the same one.
func (s *Service) storeFor(h host, rel events.CallReleased) agent.Store {
	if rel.ThreadID == "" || rel.ResourceID == "" {
		return nil
	}
	tool := h.manifest.ID
	if h.manifest.Source.Kind == sourceBuiltin {
		tool = ""
	}
	return store{s.conn, events.TasksKey(rel.ResourceID, rel.ThreadID, tool)}
}

// sourceBuiltin is the kind of tools that come with Weir.
const sourceBuiltin = "builtin"

// Get reads the value from the leader: what was stored before, by whomever, is seen.
func (s store) Get(ctx context.Context) (json.RawMessage, uint64, error) {
	return s.conn.Kept(ctx, s.key)
}

// Set replaces the value.
func (s store) Set(ctx context.Context, value json.RawMessage, revision uint64) (uint64, error) {
	if err := events.CheckJSON(value); err != nil {
		return 0, fmt.Errorf("a store keeps JSON: %w", err)
	}
	rev, err := s.conn.Keep(ctx, s.key, value, revision)
	if errors.Is(err, jetstream.ErrConflict) {
		return 0, fmt.Errorf("%w (%w)", agent.ErrConflict, err)
	}
	return rev, err
}
