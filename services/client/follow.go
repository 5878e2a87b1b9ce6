package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
)

// refusalGrace is how long the refusal of a start may take to arrive after the other run has shown itself.
const refusalGrace = 5 * time.Second

// replayGrace is how long a refusal may take where the run was there before and the log may not be read: none means that it
// is the same request, made again.
const replayGrace = time.Second

// FollowOptions change how a run is followed; nil is the default.
type FollowOptions struct {
	// UntilSuspended also ends at a suspended chunk, when every call that it names still waits for a decision.
	UntilSuspended bool
	// UntilIdle goes on after the end of a run that has completed, until the last background call that it left running has ended;
	// with UntilSuspended, or until all that are left wait for a decision.
	UntilIdle bool
	// Withdrawn also gives the chunks of attempts of a turn that come after that attempt was withdrawn by step-retry.
	Withdrawn bool
	// Flat gives the run's own chunks alone, without those of the runs that its calls are delegated to.
	Flat bool
}

// Follow reads the chunks of the run after a cursor (0: from its beginning), each once and in order, until the run ends:
// the last chunk is finish, or abort when it was cancelled. A run that failed has an error chunk before its finish. The
// cursor of a chunk is where a later Follow goes on, in this process or another.
//
// What a sub-agent says comes in between, where it was said: as a tool-output of the call that is delegated to it, which holds
// the chunk of that run, once for each level (see [events.Chunk].Nested). What it asks people comes as a question of the run
// itself. A client that may not read the log (Config.LiveOnly) is told only that the sub-agent has begun, what it asks, and its
// result.
//
// When the message of the run turns out to be what a suspended run waited for, a finish names that one (see [Resumes]), and
// its continuation follows, under its own run id. Cursors of both are places in one stream.
//
// An error ends it, ErrGap excepted: a refusal of the start (*events.Error), the end of ctx, or what the bus says.
// Chunks of a turn that was withdrawn (step-retry) have been given before that; their step and attempt tell which.
func (r *Run) Follow(ctx context.Context, after uint64, o *FollowOptions) iter.Seq2[events.Chunk, error] {
	if o == nil {
		o = &FollowOptions{}
	}
	return func(yield func(events.Chunk, error) bool) {
		run, from := r, after
		if after > 0 {
			next, err := r.successor(ctx)
			if err != nil {
				yield(events.Chunk{}, busError(err))
				return
			}
			run = cmp.Or(next, run)
		}
		for run != nil {
			f := &follower{run: run, opts: *o, yield: yield, after: from, asks: map[string]int{}, counts: attempts{}}
			if err := f.follow(ctx, from); err != nil {
				yield(events.Chunk{}, busError(err))
				return
			}
			run, from = f.next, f.from
		}
	}
}

// follower is one way through the chunks of a run.
type follower struct {
	run    *Run
	opts   FollowOptions
	yield  func(events.Chunk, error) bool
	asks   map[string]int // rounds of asks, by toolCallId
	counts attempts
	shown  bool
	gap    bool // chunks were no longer stored
	tasks  tasks

	after uint64 // cursor
	next  *Run   // that goes on in place of the run
	from  uint64 // cursor after which it does
}

type item struct {
	chunk events.Chunk
	err   error
}

func (f *follower) follow(ctx context.Context, after uint64) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	notes, done := f.run.client.refusals.of(f.run.requestID)
	defer done()
	items := make(chan item)
	reading.Go(func() {
		for ch, err := range f.run.source(ctx, after, f.opts) {
			select {
			case items <- item{ch, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case note := <-notes:
			if note.refused != nil {
				return note.refused
			}
		case <-outer.Done():
			return context.Cause(outer)
		case it := <-items:
			if over, err := f.take(ctx, it, notes); over || err != nil {
				return err
			}
		}
	}
}

// source is where the chunks come from.
func (r *Run) source(ctx context.Context, after uint64, o FollowOptions) iter.Seq2[events.Chunk, error] {
	switch {
	case r.client.cfg.LiveOnly:
	case o.Flat:
		return r.client.conn.Follow(ctx, r.ID, after, nil)
	default:
		return r.merged(ctx, after, o)
	}
	return func(yield func(events.Chunk, error) bool) {
		if err := r.record(ctx); err != nil {
			yield(events.Chunk{}, err)
			return
		}
		r.tape.Load().play(ctx, after, yield)
	}
}

// take hands an item on and tells whether it was the last.
func (f *follower) take(ctx context.Context, it item, notes <-chan told) (over bool, err error) {
	switch {
	case errors.Is(it.err, ErrGap):
		f.gap = true
		return !f.yield(it.chunk, it.err), nil
	case it.err != nil:
		return true, it.err
	}
	if !f.shown {
		if err := f.first(ctx, notes); err != nil {
			return true, err
		}
	}
	ch := it.chunk
	if f.note(ch) && !f.opts.Withdrawn {
		return false, nil
	}
	if err := f.run.begin(ctx, ch); err != nil {
		return true, err
	}
	next, from := f.onward(&ch)
	if !f.yield(ch, nil) {
		return true, nil
	}
	f.next, f.from = next, from
	f.tasks.note(ch)
	suspended := f.opts.UntilSuspended && ch.Type == events.ChunkSuspended && f.isSuspended(ctx, ch)
	return suspended || f.isOver(ctx, ch), nil
}

// isOver reports whether nothing that is asked for comes after a chunk.
func (f *follower) isOver(ctx context.Context, ch events.Chunk) bool {
	if !f.opts.UntilIdle || !f.tasks.finished {
		return isEnd(ch)
	}
	open := f.tasks.open()
	if len(open) == 0 {
		return true
	}
	unknown := func(id string) bool { _, ok := f.asks[id]; return !ok }
	return f.opts.UntilSuspended && !slices.ContainsFunc(open, unknown) && f.run.client.stillHeld(ctx, open, f.asks)
}

// onward is the run that a chunk says goes on in place of its own, and the cursor after which it does. The continuation may
// have begun before that chunk, so the chunk gets the cursor before both: whoever goes on there misses nothing.
func (f *follower) onward(ch *events.Chunk) (*Run, uint64) {
	runs := Resumes(*ch)
	if len(runs) == 0 {
		return nil, 0
	}
	next, from := f.run.goOn(runs[0])
	from = max(from, f.after)
	ch.Cursor = from
	return next, from
}

// isEnd reports whether a chunk is the last of its run.
func isEnd(ch events.Chunk) bool {
	return ch.Type == events.ChunkFinish || ch.Type == events.ChunkAbort
}

// first holds the first chunk back until it is certain that this is the run that was asked for.
func (f *follower) first(ctx context.Context, notes <-chan told) error {
	f.shown = true
	err := f.run.confirm(ctx)
	if !errors.Is(err, errAnother) && (err != nil || !f.run.existed) {
		return err
	}
	limit := refusalGrace
	if err == nil {
		limit = replayGrace
	}
	grace := time.NewTimer(limit)
	defer grace.Stop()
	select {
	case note := <-notes:
		if note.refused != nil {
			return note.refused
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-grace.C:
	}
	if err == nil {
		return nil
	}
	return events.Errorf(events.CodeRunExists, "run %s exists with another request", f.run.ID)
}

// attempts are, by step, the first attempts of turns that count.
type attempts map[int]int

// withdrawn remembers what a chunk says of attempts, and reports whether it belongs to one that was withdrawn.
func (a attempts) withdrawn(ch events.Chunk) bool {
	if ch.Type == events.ChunkStepRetry {
		a[ch.Step] = max(a[ch.Step], ch.Attempt)
	}
	return ch.Attempt > 0 && ch.Attempt < a[ch.Step]
}

// note remembers what later chunks are judged by, and reports whether this one belongs to a withdrawn attempt.
func (f *follower) note(ch events.Chunk) (withdrawn bool) {
	if ch.Type == events.ChunkToolCallApproval || ch.Type == events.ChunkToolCallSuspended {
		var p events.AskPayload
		if json.Unmarshal(ch.Payload, &p) == nil {
			f.asks[p.ToolCallID] = p.Ask.Round
		}
	}
	return f.counts.withdrawn(ch)
}

// isSuspended reports whether a suspended chunk tells of now. One that comes before the chunk of an ask that it names, as
// it may when a sibling's result is quick, does not: another one follows that chunk.
func (f *follower) isSuspended(ctx context.Context, ch events.Chunk) bool {
	var p events.SuspendedPayload
	if json.Unmarshal(ch.Payload, &p) != nil || ch.Cursor <= f.run.suspended.Load() {
		return false
	}
	unknown := func(id string) bool { _, ok := f.asks[id]; return !ok }
	if f.after == 0 && !f.gap && slices.ContainsFunc(p.Asks, unknown) {
		return false
	}
	if !f.run.client.stillHeld(ctx, p.Asks, f.asks) {
		return false
	}
	f.run.suspended.Store(ch.Cursor)
	return true
}
