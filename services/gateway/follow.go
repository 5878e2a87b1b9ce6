package gateway

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// followQuery says where a reader goes on, and how far.
type followQuery struct {
	Cursor uint64 `json:"cursor,omitempty"` // as Last-Event-ID, which wins
	Until  string `json:"until,omitempty"`  // end (default) or quiet: also when nothing can move without a decision
}

// endView is the last event of a stream.
type endView struct {
	Status  string            `json:"status"`
	Outcome events.RunOutcome `json:"outcome,omitempty"`
}

// gapView tells of chunks that are no longer stored.
type gapView struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

const (
	retryFrame  = "retry: 1000\n\n"
	untilQuiet  = "quiet"
	statusEnded = "ended"
	// behind is how long a cursor may be ahead of what is known here, because this copy of the stream is behind.
	behind = time.Second
)

// reader is one way through the chunks of a run, for clients that go on by the cursor.
type reader struct {
	r     *request
	out   *sse
	run   *client.Run
	quiet bool

	after   uint64
	seen    map[string]bool // ids of chunks of facts up to the cursor: they may be published again
	cursor  uint64
	outcome events.RunOutcome
}

// followRun streams the chunks of a run after a cursor, each once and in order, over suspensions.
func followRun(r *request) error {
	f := &reader{r: r, seen: map[string]bool{}, quiet: r.URL.Query().Get("until") == untilQuiet}
	switch r.URL.Query().Get("until") {
	case "", "end", untilQuiet:
	default:
		return badQuery("until", "want end or quiet")
	}
	id := r.PathValue("runId")
	if !events.IsRunID(id) {
		return unknownRun(id)
	}
	f.run = r.who.Run(id)
	var err error
	if f.after, err = r.cursor(); err != nil {
		return err
	}
	f.cursor = f.after
	if err := f.look(); err != nil {
		return err
	}
	f.out = r.sse(http.Header{runHeader: {id}})
	return f.end(f.stream())
}

// cursor is where a reader goes on, 0 for the beginning.
func (r *request) cursor() (uint64, error) {
	text, field := r.Header.Get("Last-Event-ID"), "Last-Event-ID"
	if text == "" {
		text, field = r.URL.Query().Get("cursor"), "cursor"
	}
	if text == "" {
		return 0, nil
	}
	cursor, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, badQuery(field, "want the id of an event")
	}
	return cursor, nil
}

// look remembers what the reader has seen, and refuses a cursor that no chunk of the run has had yet.
func (f *reader) look() error {
	if f.after == 0 {
		return nil
	}
	ctx := f.r.Context()
	until := time.Now().Add(behind)
	for {
		last, err := f.run.LastBelow(ctx)
		if err != nil {
			return err
		}
		if last >= f.after {
			break
		}
		if time.Now().After(until) {
			return badQuery("cursor", "no chunk of this run has this id yet")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(behind / 10):
		}
	}
	for ch, err := range f.run.Stored(ctx, 0) {
		switch {
		case errors.Is(err, client.ErrGap):
			continue
		case err != nil:
			return err
		case ch.Cursor > f.after:
			return nil
		}
		f.seen[ch.ID] = true
		f.note(ch)
	}
	return nil
}

// note remembers how the run has ended, if this chunk says so.
func (f *reader) note(ch events.Chunk) {
	if o := outcomeOf(ch); o != "" {
		f.outcome = o
	} else if ch.Type == events.ChunkError {
		f.outcome = "" // a finish follows
	}
}

// outcomeOf is how a run has ended, by its last chunk; empty for any other.
func outcomeOf(ch events.Chunk) events.RunOutcome {
	switch {
	case ch.Type == events.ChunkAbort:
		return events.RunCancelled
	case ch.Type != events.ChunkFinish || len(client.Resumes(ch)) > 0:
		return ""
	case finishOf(ch).StepResult.Reason == "error":
		return events.RunFailed
	}
	return events.RunCompleted
}

func (f *reader) stream() error {
	if err := f.out.raw(retryFrame); err != nil {
		return err
	}
	if f.outcome != "" {
		return nil
	}
	return pump(f.r, f.out, func(ctx context.Context) iter.Seq2[events.Chunk, error] {
		return f.run.Follow(ctx, f.after, &client.FollowOptions{UntilSuspended: f.quiet, Withdrawn: true})
	}, f.take)
}

// take sends the next chunk.
func (f *reader) take(ch events.Chunk, err error) error {
	if errors.Is(err, client.ErrGap) {
		gap := gapView{From: f.cursor + 1, To: ch.Cursor}
		f.cursor = ch.Cursor
		return f.out.event(ch.Cursor, "gap", gap)
	}
	if err != nil {
		return err
	}
	f.cursor = ch.Cursor
	f.note(ch)
	if f.seen[ch.ID] {
		return nil
	}
	frame := frameOf(ch)
	frame.Time = nil
	return f.out.event(ch.Cursor, "", frame)
}

// end says why the stream is over. One that breaks off says nothing: its reader goes on by the cursor.
func (f *reader) end(err error) error {
	switch {
	case errors.Is(err, errGone):
		return nil
	case err != nil && !f.out.began:
		return err
	case err != nil:
		f.r.g.log.WarnContext(f.r.Context(), "a stream broke off", "runId", f.run.ID, "error", err)
		_, body, _ := statusOf(err)
		_ = f.out.event(0, "error", body) // the reader may have gone: nobody to tell
		return nil
	}
	view := endView{Status: statusEnded, Outcome: f.outcome}
	if f.outcome == "" {
		view = endView{Status: string(client.StatusSuspended)}
	}
	_ = f.out.event(f.cursor, "end", view) // as above
	return nil
}
