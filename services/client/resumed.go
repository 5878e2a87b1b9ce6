package client

import (
	"context"
	"sync"

	"github.com/weirkeeper/weir/events"
)

// A run whose message turns out to be what a suspended run waited for ends as resumed, and names that run. Whoever follows
// the first is taken on to the second, from where the first began: there its continuation is still to come.

// successors are the runs that may go on in place of a run, and the one that does. The zero value works.
type successors struct {
	mu    sync.Mutex
	began uint64          // cursor at which the run began, 0 while that is not known
	may   map[string]*Run // by id; only for users who must hear them from then on
	next  *Run
}

// begin takes the first chunk of a run.
func (r *Run) begin(ctx context.Context, ch events.Chunk) error {
	if ch.Type != events.ChunkStart || ch.RunID != r.ID {
		return nil
	}
	r.after.mu.Lock()
	again := r.after.began > 0
	if !again {
		r.after.began = ch.Cursor
	}
	r.after.mu.Unlock()
	if again || !r.client.cfg.LiveOnly {
		return nil
	}
	may := map[string]*Run{}
	var p events.StartPayload
	withPayload(ch, func(q events.StartPayload) { p = q })
	for _, id := range p.MayResume {
		may[id] = r.client.Run(id)
		if err := may[id].record(ctx); err != nil {
			return err
		}
	}
	r.after.mu.Lock()
	defer r.after.mu.Unlock()
	r.after.may = may
	return nil
}

// goOn is the run that goes on in place of this one, and the cursor after which its continuation comes.
func (r *Run) goOn(id string) (*Run, uint64) {
	r.after.mu.Lock()
	defer r.after.mu.Unlock()
	if r.after.next == nil || r.after.next.ID != id {
		r.after.next = r.after.may[id]
		if r.after.next == nil {
			r.after.next = r.client.Run(id)
		}
		r.after.next.suspended.Store(r.after.began) // what it was suspended by before is answered
	}
	return r.after.next, r.after.began
}

// successor is the run that goes on in place of this one, as far as that is known to a reader who has a cursor: the run
// itself while there is none. Its own chunks are then behind the reader.
func (r *Run) successor(ctx context.Context) (*Run, error) {
	r.after.mu.Lock()
	next := r.after.next
	r.after.mu.Unlock()
	if next != nil || !r.client.reads() {
		return next, nil
	}
	fact, err := r.client.conn.Fact(ctx, r.client.ns.End(r.ID))
	if err != nil {
		return nil, r.client.tolerate(err) // it has not ended, or nobody says
	}
	end, err := events.Data[events.RunEnded](fact)
	if err != nil || len(end.Resumes) == 0 {
		return nil, nil //nolint:nilerr,nilnil // an end that cannot be read names nothing
	}
	next, _ = r.goOn(end.Resumes[0])
	return next, nil
}

// Resumes are the runs that a chunk says go on in place of its own, the one that asked first before the others. A finish
// that names some is not the last chunk of what [Run.Follow] gives.
func Resumes(ch events.Chunk) []string {
	if ch.Type != events.ChunkFinish {
		return nil
	}
	var runs []string
	withPayload(ch, func(p events.FinishPayload) { runs = p.Metadata.Resumes })
	return runs
}
