package toolexecutor

import (
	"cmp"
	"context"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// ongoing is a call that this process has claimed, or is about to claim, until its outcome is stored.
type ongoing struct {
	release uint64 // sequence of the release that it runs under
	outlast bool   // it runs in the background: the end of its run does not end it
	cancel  context.CancelCauseFunc
}

// enter makes the call's context: it ends with the process, at the tool's timeout, and when the call is cancelled. Done
// is nil when another delivery of the same release to this process has entered.
func (s *Service) enter(ctx context.Context, rel events.CallReleased, release uint64) (_ context.Context, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if there := s.running[rel.ToolCallID]; there != nil && there.release == release {
		return ctx, nil
	}
	runCtx, cancel := context.WithCancelCause(ctx)
	runCtx, stop := context.WithTimeout(runCtx, cmp.Or(time.Duration(rel.Timeout), agent.DefaultTimeout))
	own := &ongoing{release: release, cancel: cancel, outlast: rel.Background != nil}
	s.running[rel.ToolCallID] = own
	return runCtx, func() {
		s.mu.Lock()
		if s.running[rel.ToolCallID] == own {
			delete(s.running, rel.ToolCallID)
		}
		s.mu.Unlock()
		stop()
		cancel(nil)
	}
}

// runs reports whether this process is at a release of a call: its tool runs, or what came of it is not stored yet.
func (s *Service) runs(toolCallID string, release uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := s.running[toolCallID]
	return there != nil && there.release == release
}

// overdue reports whether the deadline for a release's start has passed at the server. The own clock only says when to
// ask.
func (s *Service) overdue(ctx context.Context, release events.Event, rel events.CallReleased) (bool, error) {
	deadline := rel.Deadline(release)
	if time.Now().Before(deadline) {
		return false, nil
	}
	now, err := s.conn.Now(ctx)
	return err == nil && !now.Before(deadline), err
}
