package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/weirkeeper/weir/services/client"
)

// maxLive bounds the runs that a gateway remembers to go on.
const maxLive = 10_000

// live is what a gateway has heard of runs that go on: a view for people, and no record. The zero value works.
type live struct {
	mu    sync.Mutex
	since time.Time // from when on it was listened
	runs  map[string]liveRun
}

type liveRun struct {
	client.LiveRun
	at time.Time
}

// hear listens until ctx ends.
func (l *live) hear(ctx context.Context, c *client.Client) error {
	err := c.WatchRuns(ctx, l.began, l.ended)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.since = time.Now()
	}
	return err
}

func (l *live) began(run client.LiveRun) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs == nil {
		l.runs = map[string]liveRun{}
	}
	if len(l.runs) < maxLive {
		l.runs[run.RunID] = liveRun{run, time.Now()}
	}
}

func (l *live) ended(run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, run)
}

func (l *live) list() (runs []liveRun, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, run := range l.runs {
		runs = append(runs, run)
	}
	return runs, l.since
}
