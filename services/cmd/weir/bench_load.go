package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// runWithin is how long one run of a workload may take before the benchmark gives up.
const runWithin = time.Minute

// load drives a workload as a client does, and hears what becomes of its runs on two subscriptions, however many runs
// there are.
type load struct {
	conn   *jetstream.Conn
	client *client.Client

	mu     sync.Mutex
	cycles map[string]*cycle // under way, by run id
}

// cycle is one run of a workload.
type cycle struct {
	asked chan heard[events.CallHeld]
	ended chan heard[events.RunEnded]
}

// heard is a fact and when it arrived.
type heard[T any] struct {
	at   time.Time
	seq  uint64
	data T
	err  error
}

// sample is how long one cycle took: to its ask, from the decision to the end, and from start to end.
type sample struct{ suspended, decided, whole time.Duration }

// listen hears the ends and the asks of all runs until ctx ends.
func (l *load) listen(ctx context.Context) error {
	ns := l.conn.Namespace()
	_, err := l.conn.Hear(ctx, ns.EveryMain(events.KindEnd), func(e events.Event) {
		if c := l.cycle(e.Place.Run); c != nil {
			hand(c.ended, readHeard[events.RunEnded](e))
		}
	})
	if err != nil {
		return err
	}
	_, err = l.conn.Hear(ctx, ns.EveryCall(events.KindAsk), func(e events.Event) {
		if c := l.cycle(e.Place.Run); c != nil {
			hand(c.asked, readHeard[events.CallHeld](e))
		}
	})
	return err
}

// hand gives a fact to who waits for it. What does not fit is a repetition.
func hand[T any](to chan heard[T], h heard[T]) {
	select {
	case to <- h:
	default:
	}
}

func readHeard[T any](e events.Event) heard[T] {
	h := heard[T]{at: time.Now(), seq: e.Seq}
	h.data, h.err = events.Data[T](e)
	return h
}

func (l *load) cycle(run string) *cycle {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cycles[run]
}

// begin makes a run known, so that nothing of it is missed.
func (l *load) begin(run string) (*cycle, func()) {
	c := &cycle{asked: make(chan heard[events.CallHeld], 4), ended: make(chan heard[events.RunEnded], 4)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cycles[run] = c
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.cycles, run)
	}
}

// drive runs so many cycles, some at once, and returns what each took. The first failure ends it.
func (l *load) drive(ctx context.Context, work workload, runs, atOnce int) ([]sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	samples := make([]sample, runs)
	var next atomic.Int64
	var driving sync.WaitGroup
	for range min(atOnce, runs) {
		driving.Go(func() {
			for i := int(next.Add(1)) - 1; i < runs && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				s, _, err := l.once(ctx, work)
				if err != nil {
					cancel(err)
					return
				}
				samples[i] = s
			}
		})
	}
	driving.Wait()
	return samples, context.Cause(ctx)
}

// once runs one cycle and returns its run's id.
func (l *load) once(ctx context.Context, work workload) (sample, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runWithin, errSlow)
	defer cancel()
	run := events.NewID(time.Now())
	c, forget := l.begin(run)
	defer forget()
	s, err := work.cycle(l, ctx, run, c)
	return s, run, err
}

// start asks for a run in a thread of its own.
func (l *load) start(ctx context.Context, agentID, run string) error {
	_, err := l.client.Start(ctx, client.Request{Agent: agentID, Prompt: benchPrompt, RunID: run, ThreadID: run})
	return err
}

// toolCycle is a run whose call runs at once.
func (l *load) toolCycle(ctx context.Context, run string, c *cycle) (sample, error) {
	began := time.Now()
	if err := l.start(ctx, benchAgent, run); err != nil {
		return sample{}, err
	}
	end, err := await(ctx, run, c.ended)
	if err != nil {
		return sample{}, err
	}
	return sample{whole: end.at.Sub(began)}, checkEnd(end.data)
}

// approvalCycle is a run whose call is held, and approved as soon as it is asked about.
func (l *load) approvalCycle(ctx context.Context, run string, c *cycle) (sample, error) {
	began := time.Now()
	if err := l.start(ctx, benchHeldAgent, run); err != nil {
		return sample{}, err
	}
	ask, err := await(ctx, run, c.asked)
	if err != nil {
		return sample{}, err
	}
	decided := time.Now()
	if err := l.approve(ctx, ask.data); err != nil {
		return sample{}, err
	}
	end, err := await(ctx, run, c.ended)
	if err != nil {
		return sample{}, err
	}
	return sample{suspended: ask.at.Sub(began), decided: end.at.Sub(decided), whole: end.at.Sub(began)}, checkEnd(end.data)
}

var errSlow = errors.New("it took more than a minute")

// await waits for a fact of a run.
func await[T any](ctx context.Context, run string, facts <-chan heard[T]) (heard[T], error) {
	select {
	case h := <-facts:
		return h, h.err
	case <-ctx.Done():
		return heard[T]{}, fmt.Errorf("run %s: %w", run, context.Cause(ctx))
	}
}

// checkEnd makes sure that a run did what it was asked to: a run that failed is not fast.
func checkEnd(d events.RunEnded) error {
	if d.Outcome != events.RunCompleted || d.Message == nil || !strings.Contains(d.Message.Text(), benchText) {
		return fmt.Errorf("run %s ended as %s without the text that it must have", d.RunID, d.Outcome)
	}
	return nil
}

// approve publishes a decision as any program on the bus does, and does not wait for what becomes of it: the end of the
// run tells.
func (l *load) approve(ctx context.Context, ask events.CallHeld) error {
	return publishDecision(ctx, l.conn, benchPrincipal, events.DecisionRequested{
		Decision:   events.Approve,
		ToolCallID: ask.ToolCallID, Round: &ask.Round, Fingerprint: ask.Fingerprint,
	})
}

// publishDecision puts a decision into the inbox: one event on the subject of its sender and the call.
func publishDecision(ctx context.Context, conn *jetstream.Conn, principal string, d events.DecisionRequested) error {
	call, err := events.ParseCallID(d.ToolCallID)
	if err != nil {
		return err
	}
	origin := &events.Origin{Namespace: conn.Namespace(), Service: principal}
	subject := conn.Namespace().InDecide(principal, call)
	e, err := origin.RequestBy(subject, call.Run, principal, d)
	if err != nil {
		return err
	}
	_, err = conn.Publish(ctx, subject, e)
	return err
}

// position is how far the streams have come.
type position struct {
	inbox       uint64 // sequence of the last request
	first, last uint64 // sequences of the marking run's facts in the log
	chunkFirst  uint64 // the same of its chunks
	chunkLast   uint64
}

// mark makes a run of its own and returns where it stands in the streams. What lies between two of them is what the
// cycles in between have appended.
func (l *load) mark(ctx context.Context) (position, error) {
	_, run, err := l.once(ctx, workloads[workloadTool])
	if err != nil {
		return position{}, err
	}
	ns := l.conn.Namespace()
	facts, err := l.conn.Facts(ctx, ns.Start(run), ns.End(run))
	if err != nil {
		return position{}, err
	}
	start, err := events.Data[events.RunStarted](facts[0])
	if err != nil {
		return position{}, err
	}
	p := position{inbox: start.InboxSeq, first: facts[0].Seq, last: facts[1].Seq}
	for ch, err := range l.client.Run(run).Follow(ctx, 0, nil) {
		if err != nil {
			return position{}, err
		}
		if p.chunkFirst == 0 {
			p.chunkFirst = ch.Cursor
		}
		p.chunkLast = ch.Cursor
	}
	return p, nil
}
