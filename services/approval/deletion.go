package approval

import (
	"context"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// onGrantsDropped takes back the grants of threads that a planner deletes. The revocation stays in the place of each until it would
// have been over, so that nothing brings it back.
func (s *Service) onGrantsDropped(ctx context.Context, d jetstream.Delivery, in events.Inbox) error {
	dropped, err := events.Data[events.GrantsDropped](d.Event)
	if err != nil || in.Principal != events.TokenPlanner {
		return s.refuseGrant(ctx, d, in, events.Errorf(events.CodeForbidden, "only a planner may take back the grants of a thread"))
	}
	req := dropped.Deletion
	filter := events.GrantFilter{Scope: events.ScopeThread}
	if !req.All {
		filter.Of = req.ThreadID
	}
	found, err := s.conn.Grants(ctx, filter)
	if err != nil {
		return err
	}
	r := events.Revocation{By: events.TokenPlanner, At: d.Event.Stored.UTC(), Reason: "the thread was deleted"}
	for _, g := range found {
		if !req.Of(g.ResourceID, g.ThreadID) || g.GrantedAt.After(r.At) {
			continue
		}
		if err := s.revoke(ctx, g, r); err != nil {
			return err
		}
	}
	return nil
}
