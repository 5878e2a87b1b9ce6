package client

import (
	"context"
	"sync"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// maxKept bounds what is kept for who has not asked yet.
const maxKept = 1024

// told is what a note says about a request: that it was refused, or that it was taken as one of several votes.
type told struct {
	refused *events.Error
	vote    *events.VoteCast
}

// refusals hears what the principal is told and keeps it, by the id of the request, for whoever asks: a run may be
// refused before anybody follows it. The zero value works.
type refusals struct {
	mu      sync.Mutex
	stop    func()
	kept    map[string]told
	order   []string // of kept, oldest first
	waiting map[string][]chan told
}

// listen begins to hear, once. It returns when the server knows of it, so that no refusal of a later request is missed.
func (r *refusals) listen(ctx context.Context, conn *jetstream.Conn, principal string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		return nil
	}
	// What is heard outlives the request that it was begun for.
	stop, err := conn.Notes(context.WithoutCancel(ctx), principal, r.hear)
	if err != nil {
		return busError(err)
	}
	r.stop = stop
	return nil
}

func (r *refusals) close() {
	r.mu.Lock()
	stop := r.stop
	r.stop = nil
	r.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (r *refusals) hear(e events.Event) {
	id, why := refusalIn(e)
	note := told{refused: why}
	if e.Type == events.TypeOf[events.VoteCast]() {
		if v, err := events.Data[events.VoteCast](e); err == nil {
			id, note.vote = v.EventID, &v
		}
	}
	if note == (told{}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ch := range r.waiting[id] {
		ch <- note // has room for one, and is taken out of the list with it
	}
	delete(r.waiting, id)
	if r.kept == nil {
		r.kept = map[string]told{}
	}
	if _, twice := r.kept[id]; !twice {
		r.order = append(r.order, id)
	}
	r.kept[id] = note
	if len(r.order) > maxKept {
		delete(r.kept, r.order[0])
		r.order = r.order[1:]
	}
}

// refusalIn reads a note: which request it is about, and why that did not count.
func refusalIn(e events.Event) (eventID string, why *events.Error) {
	switch e.Type {
	case events.TypeOf[events.RunRefused]():
		if d, err := events.Data[events.RunRefused](e); err == nil {
			why := d.Error
			why.RunID = d.RunID
			return d.EventID, &why
		}
	case events.TypeOf[events.DecisionRefused]():
		if d, err := events.Data[events.DecisionRefused](e); err == nil {
			return d.EventID, &d.Error
		}
	case events.TypeOf[events.GrantRefused]():
		if d, err := events.Data[events.GrantRefused](e); err == nil {
			return d.EventID, &d.Error
		}
	}
	return "", nil
}

// of gives what is told about a request as soon as it is there. Done must be called when nobody waits any more.
func (r *refusals) of(eventID string) (notes <-chan told, done func()) {
	ch := make(chan told, 1)
	if eventID == "" {
		return ch, func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if note, ok := r.kept[eventID]; ok {
		ch <- note
		return ch, func() {}
	}
	if r.waiting == nil {
		r.waiting = map[string][]chan told{}
	}
	r.waiting[eventID] = append(r.waiting[eventID], ch)
	return ch, func() { r.leave(eventID, ch) }
}

func (r *refusals) leave(eventID string, ch chan told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.waiting[eventID][:0]
	for _, other := range r.waiting[eventID] {
		if other != ch {
			left = append(left, other)
		}
	}
	if len(left) == 0 {
		delete(r.waiting, eventID)
		return
	}
	r.waiting[eventID] = left
}
