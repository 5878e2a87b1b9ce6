package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

const (
	// maxFlying is how many chunks of a run may be on their way to the stream.
	maxFlying = 256
	// chunkPatience is how long a publisher that finds no room among them waits for an ack of any run. As long as acks
	// come, it is only slowed down. Without one, it drops what does not fit, at once from then on until one comes,
	// because a run does not wait for its watchers.
	chunkPatience = time.Second
	// chunkAckTime is after how long a chunk without an ack counts as lost.
	chunkAckTime = 5 * time.Second
	// chunkSweep is after how many chunks those without an ack are looked for.
	chunkSweep = 1024
)

// chunkAcks are the chunks that are on their way to the stream. The zero value works.
type chunkAcks struct {
	start  sync.Once
	failed error
	prefix string // of the subjects on which acks come in; the number of the chunk follows

	mu      sync.Mutex
	number  uint64
	flying  map[uint64]flyingChunk
	lines   map[string]*chunkLine // by run, while something of it is on its way
	lost    uint64
	ackedAt time.Time // when the last ack came
	stalled bool      // none came for as long as a publisher has patience
}

type flyingChunk struct {
	line *chunkLine
	at   time.Time
}

// chunkLine is what is on its way of one run.
type chunkLine struct {
	run    string
	flying int
	err    error         // why the last lost chunk was lost
	moved  chan struct{} // closed when half has arrived, or all; nil when nobody waits
}

// PublishChunk sends a chunk on its way to the readers of its run. Chunks of one run arrive in the order of the calls.
// An error says that this one will not arrive; a run goes on without it, because the facts are elsewhere. While
// the stream does not answer, 256 chunks of a run wait for it and further ones are refused with [ErrUnavailable].
func (c *Conn) PublishChunk(ctx context.Context, origin *events.Origin, ch events.Chunk) error {
	header, payload := events.EncodeChunk(origin, ch)
	msg := nats.Msg{Subject: c.ns.Chunk(ch.RunID), Header: header, Data: payload}
	if err := c.checkSize(&msg); err != nil {
		return fmt.Errorf("publish chunk of run %s: %w", ch.RunID, err)
	}
	if err := c.opts.Hooks.at(BeforeChunk, msg.Subject); err != nil {
		return err
	}
	if err := c.parts.acks.publish(ctx, c, ch.RunID, &msg); err != nil {
		return fmt.Errorf("publish chunk of run %s: %w", ch.RunID, err)
	}
	return nil
}

// FlushChunks waits until every chunk of a run that was published before is stored or lost; an error names why one was
// lost.
func (c *Conn) FlushChunks(ctx context.Context, run string) error {
	if err := c.parts.acks.flush(ctx, run); err != nil {
		return fmt.Errorf("flush chunks of run %s: %w", run, err)
	}
	return nil
}

// LostChunks is how many chunks did not arrive since the start.
func (c *Conn) LostChunks() uint64 {
	a := &c.parts.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

func (a *chunkAcks) publish(ctx context.Context, c *Conn, run string, msg *nats.Msg) error {
	if a.start.Do(func() { a.listen(c) }); a.failed != nil {
		return a.failed
	}
	number, err := a.take(ctx, run)
	if err != nil {
		return err
	}
	msg.Reply = a.prefix + strconv.FormatUint(number, 10)
	if err := c.nc.PublishMsg(msg); err != nil {
		err = mapError(err)
		a.settle(number, err)
		return err
	}
	return nil
}

// listen takes acks, all on one subscription.
func (a *chunkAcks) listen(c *Conn) {
	a.prefix = c.nc.NewInbox() + "."
	a.flying, a.lines = map[uint64]flyingChunk{}, map[string]*chunkLine{}
	_, err := c.nc.Subscribe(a.prefix+"*", func(msg *nats.Msg) {
		number, err := strconv.ParseUint(strings.TrimPrefix(msg.Subject, a.prefix), 10, 64)
		if err != nil {
			return
		}
		if err := chunkRefused(msg); err != nil {
			c.log.Warn("chunk refused", "error", err)
			a.settle(number, err)
			return
		}
		a.settle(number, nil)
	})
	a.failed = mapError(err)
}

// chunkRefused reads an ack; only a refusal is decoded.
func chunkRefused(msg *nats.Msg) error {
	if status := msg.Header.Get("Status"); status != "" {
		return fmt.Errorf("%w: no stream takes chunks (%s)", ErrUnavailable, status)
	}
	if !bytes.Contains(msg.Data, []byte(`"error"`)) {
		return nil
	}
	_, err := decodeAck(msg.Data)
	return err
}

// take gives a chunk its number when there is room among those on their way.
func (a *chunkAcks) take(ctx context.Context, run string) (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := a.lines[run]
	if line == nil {
		line = &chunkLine{run: run}
		a.lines[run] = line
	}
	if err := a.makeRoom(ctx, line); err != nil {
		a.lost++
		return 0, err
	}
	if a.number++; a.number%chunkSweep == 0 {
		a.expire()
	}
	a.lines[run] = line // it may have been taken away while it was empty
	line.flying++
	a.flying[a.number] = flyingChunk{line, time.Now()}
	return a.number, nil
}

// makeRoom waits until more chunks of the line may be on their way. Once the line is full it waits for half of it, so
// that publisher and acks do not wake each other for every chunk.
func (a *chunkAcks) makeRoom(ctx context.Context, line *chunkLine) error {
	for began := time.Now(); line.flying >= maxFlying; {
		quiet := min(time.Since(began), time.Since(a.ackedAt))
		if a.stalled || quiet >= chunkPatience {
			a.stalled = true
			if a.expire(); line.flying < maxFlying {
				return nil
			}
			return fmt.Errorf("%w: %d chunks wait for the stream", ErrUnavailable, line.flying)
		}
		err := a.await(ctx, line, chunkPatience-quiet, func() bool { return line.flying <= maxFlying/2 })
		if err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// await waits until a line is as wanted, without the lock. It returns an error when the limit or ctx came first.
func (a *chunkAcks) await(ctx context.Context, line *chunkLine, limit time.Duration, wanted func() bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for !wanted() {
		if line.moved == nil {
			line.moved = make(chan struct{})
		}
		moved := line.moved
		a.mu.Unlock()
		var err error
		select {
		case <-moved:
		case <-timer.C:
			err = fmt.Errorf("%w: no ack for %v", ErrTimeout, limit)
		case <-ctx.Done():
			err = ctx.Err()
		}
		a.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// settle ends the way of a chunk. One that was given up before is not counted twice.
func (a *chunkAcks) settle(number uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.land(number, err)
}

func (a *chunkAcks) land(number uint64, err error) {
	f, ok := a.flying[number]
	if !ok {
		return
	}
	delete(a.flying, number)
	line := f.line
	line.flying--
	if err != nil {
		a.lost++
		line.err = err
	} else {
		a.ackedAt, a.stalled = time.Now(), false
	}
	if line.flying == 0 && a.lines[line.run] == line {
		delete(a.lines, line.run)
	}
	if line.moved != nil && (line.flying == maxFlying/2 || line.flying == 0) {
		close(line.moved)
		line.moved = nil
	}
}

// expire gives up the chunks whose acks will not come any more.
func (a *chunkAcks) expire() {
	now := time.Now()
	for number, f := range a.flying {
		if now.Sub(f.at) > chunkAckTime {
			a.land(number, fmt.Errorf("%w: no ack for %v", ErrTimeout, chunkAckTime))
		}
	}
}

func (a *chunkAcks) flush(ctx context.Context, run string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := a.lines[run]
	if line == nil {
		return nil
	}
	err := a.await(ctx, line, chunkAckTime+time.Millisecond, func() bool { return line.flying == 0 })
	if ctx.Err() != nil {
		return err
	}
	a.expire()
	if err == nil || errors.Is(err, ErrTimeout) && line.err != nil {
		err = line.err
	}
	return err
}
