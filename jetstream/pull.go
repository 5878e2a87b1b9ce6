package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
)

const (
	// pullExpires ends a pull request at the server, so that those of a dead process go away.
	pullExpires = 30 * time.Second
	// pullBeat is how often the server shows that a waiting pull request is known to it. A new leader of the consumer
	// tells by itself, so this is only for what is lost without a word.
	pullBeat = 15 * time.Second
	// defaultAckWait is the server's.
	defaultAckWait = 30 * time.Second
	// maxFailures bounds the counters of failed messages.
	maxFailures = 4096
	// stopGrace is how long handlers have after their context was ended.
	stopGrace = 5 * time.Second
	// maxLook is the longest pause between two looks after a consumer that is not there.
	maxLook = 5 * time.Second
	// flushGrace bounds the wait for the last acknowledgements to reach the server.
	flushGrace = 2 * time.Second
)

// held is a message between fetch and acknowledgement.
type held struct {
	msg     *nats.Msg
	seq     uint64
	attempt int
	stored  time.Time
}

// A loop consumes one durable. It asks the server for no more messages than it has room for, so whatever was fetched
// either runs or is next: rooms are Concurrency handlers and Batch messages that wait for one.
//
// The client's own Consume counts a message as done when its callback returns, which allows either fetching ahead or
// as many subscriptions as handlers; and it shows a message only when its turn comes, too late to keep it alive.
type loop struct {
	conn     *Conn
	h        Handler
	store    string // name of the stream without the namespace
	stream   string
	consumer string
	origin   *events.Origin // of dead letters
	next     string         // where pull requests go
	inbox    string         // where messages come
	look     chan struct{}  // something is wrong with the consumer: look at it
	busy     chan struct{}  // something is held: keep it alive

	mu       sync.Mutex
	ready    bool           // the consumer is there
	stopped  bool           // no message starts any more
	asked    int            // requested and not yet come
	askedAt  time.Time      // when the last request was sent
	heardAt  time.Time      // when the server last said something
	running  int            // handlers at work
	waiting  []*held        // fetched, no handler yet
	held     map[*held]bool // all of both
	failures map[uint64]int // by sequence, of what failed in this process
	ackWait  time.Duration
	handlers sync.WaitGroup
	resting  int           // goroutines of handlers that have nothing to do
	spare    chan *held    // hands a message to one of them
	closing  chan struct{} // closed when no message starts any more
}

func newLoop(c *Conn, store, consumer string, h Handler) *loop {
	stream := c.ns.Store(store)
	return &loop{
		conn: c, h: h, store: store, stream: stream, consumer: consumer,
		origin: &events.Origin{Namespace: c.ns, Service: c.opts.Name},
		next:   c.api + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
		inbox:  c.nc.NewInbox(), look: make(chan struct{}, 1), busy: make(chan struct{}, 1),
		held: map[*held]bool{}, failures: map[uint64]int{}, ackWait: defaultAckWait,
		spare: make(chan *held), closing: make(chan struct{}),
	}
}

func (l *loop) name() string { return l.stream + "/" + l.consumer }

// run is the life of the loop.
func (l *loop) run(ctx context.Context) error {
	work, cancelWork := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWork()
	sub, err := l.conn.nc.Subscribe(l.inbox, func(msg *nats.Msg) { l.receive(work, msg) })
	if err != nil {
		return fmt.Errorf("consume %s: %w", l.name(), mapError(err))
	}
	var beats sync.WaitGroup
	beating, stopBeats := context.WithCancel(work)
	beats.Go(func() { l.beat(beating) })

	err = l.watch(ctx)
	l.conn.parts.trouble.clear(l.name())
	if late := l.drain(ctx, sub, cancelWork); err == nil {
		err = late
	}
	stopBeats()
	beats.Wait()
	if err != nil {
		return fmt.Errorf("consume %s: %w", l.name(), err)
	}
	return nil
}

// watch keeps pull requests standing until ctx ends. It returns an error only when there is no way on.
func (l *loop) watch(ctx context.Context) error {
	status := l.conn.nc.StatusChanged(nats.CONNECTED)
	defer l.conn.nc.RemoveStatusListener(status)
	tick := time.NewTicker(pullBeat)
	defer tick.Stop()
	lookAt := time.NewTimer(0)
	defer lookAt.Stop()
	requests, done := l.conn.under(ctx, l.next) // a request that is not allowed would be silence
	defer func() { _ = done(nil) }()
	for tries := 0; ; {
		select {
		case <-requests.Done():
			cause := context.Cause(requests)
			if _ = done(nil); ctx.Err() != nil {
				return nil
			}
			if errors.Is(cause, ErrPermission) {
				return cause
			}
			requests, done = l.conn.under(ctx, l.next)
		case <-l.conn.closed:
			return fmt.Errorf("%w: connection closed", ErrUnavailable)
		case <-status: // subscriptions are back, requests are not
			lookAt.Reset(0)
		case <-l.look:
			lookAt.Reset(backoff(tries + 1))
		case <-tick.C:
			if l.silent() {
				lookAt.Reset(0)
			}
		case <-lookAt.C:
			if err := l.find(ctx); err == nil {
				tries = 0
				continue
			}
			tries++
			lookAt.Reset(min(backoff(tries), maxLook))
		}
	}
}

// find looks whether the consumer is there, takes its deadline from it and asks it for messages, as if for the first
// time.
func (l *loop) find(ctx context.Context) error {
	try, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var info natsjs.ConsumerInfo
	err := l.conn.call(try, "CONSUMER.INFO."+l.stream+"."+l.consumer, nil, &info)
	if ctx.Err() == nil {
		l.conn.parts.trouble.set(l.name(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready = err == nil; !l.ready {
		return err
	}
	l.ackWait = effectiveAckWait(info.Config)
	l.asked = 0
	l.heardAt = time.Now()
	l.pull()
	return nil
}

// effectiveAckWait is after how long the server delivers again. A list of backoffs wins over AckWait.
func effectiveAckWait(cfg natsjs.ConsumerConfig) time.Duration {
	wait := cfg.AckWait
	for _, b := range cfg.BackOff {
		wait = min(wait, b)
	}
	if wait <= 0 {
		return defaultAckWait
	}
	return wait
}

// silent reports that requests stand at the server and it has not said a word about them for too long.
func (l *loop) silent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return l.ready && l.asked > 0 && (now.Sub(l.heardAt) > 2*pullBeat || now.Sub(l.askedAt) > pullExpires+pullBeat)
}

// pull asks for what there is room for: when nothing is asked for, or when the room is worth a request. Requests stand
// until they are filled, so a few large ones serve as well as one for each message. The lock is held.
func (l *loop) pull() {
	limit := l.h.Concurrency + l.h.Batch
	room := limit - l.asked - l.running - len(l.waiting)
	if !l.ready || l.stopped || room <= 0 || l.asked > 0 && room < (limit+3)/4 {
		return
	}
	req := make([]byte, 0, 80)
	req = append(req, `{"batch":`...)
	req = strconv.AppendInt(req, int64(room), 10)
	req = append(req, `,"expires":`...)
	req = strconv.AppendInt(req, int64(pullExpires), 10)
	req = append(req, `,"idle_heartbeat":`...)
	req = strconv.AppendInt(req, int64(pullBeat), 10)
	req = append(req, '}')
	if err := l.conn.nc.PublishRequest(l.next, l.inbox, req); err != nil {
		l.report()
		return
	}
	l.asked += room
	l.askedAt = time.Now()
}

// report asks watch to look after the consumer.
func (l *loop) report() { ring(l.look) }

// ring wakes whoever listens on a channel of one place, now or when they look next.
func ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// receive takes what comes in on the inbox: a message, or word about a request. It never waits.
func (l *loop) receive(work context.Context, msg *nats.Msg) {
	if msg.Reply == "" { // whoever writes messages can write a header that looks like the server's word
		l.status(msg.Header.Get("Status"), msg)
		return
	}
	meta, err := msg.Metadata()
	if err != nil {
		l.conn.log.WarnContext(work, "not a delivery", "consumer", l.name(), "subject", msg.Subject)
		return
	}
	m := &held{msg: msg, seq: meta.Sequence.Stream, attempt: int(meta.NumDelivered), stored: meta.Timestamp.UTC()} //nolint:gosec // a count

	l.mu.Lock()
	defer l.mu.Unlock()
	l.heardAt = time.Now()
	l.asked = max(l.asked-1, 0)
	if l.held[m] = true; len(l.held) == 1 {
		ring(l.busy)
	}
	if l.stopped || l.running >= l.h.Concurrency {
		l.waiting = append(l.waiting, m)
	} else {
		l.running++
		select {
		case l.spare <- m:
		default:
			l.handlers.Go(func() { l.work(work, m) })
		}
	}
	l.pull()
}

// status reads the server's word about pull requests.
func (l *loop) status(code string, msg *nats.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heardAt = time.Now()
	switch code {
	case "100": // it knows of our requests
		return
	case "408", "404": // a request has ended with so many messages missing
		missing, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			missing = l.asked
		}
		l.asked = max(l.asked-missing, 0)
		l.pull()
	default: // the consumer is gone or has a new leader, or nobody answers: all requests are void
		l.ready = false
		l.asked = 0
		l.report()
	}
}

// work handles m and then what waits, and then rests until more comes: a goroutine that is used again has its stack.
func (l *loop) work(ctx context.Context, m *held) {
	for m != nil {
		l.handle(ctx, m)
		if m = l.done(m); m == nil {
			m = l.rest()
		}
	}
}

// rest waits for a message. Nil means that enough goroutines rest already, or that the loop closes.
func (l *loop) rest() *held {
	l.mu.Lock()
	if l.stopped || l.resting >= l.h.Concurrency {
		l.mu.Unlock()
		return nil
	}
	l.resting++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.resting--
		l.mu.Unlock()
	}()
	select {
	case m := <-l.spare:
		return m
	case <-l.closing:
		return nil
	}
}

// done takes m out and returns the next message to handle, if there is one.
func (l *loop) done(m *held) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, m)
	var following *held
	if len(l.waiting) > 0 && !l.stopped {
		following, l.waiting = l.waiting[0], l.waiting[1:]
	} else {
		l.running--
	}
	l.pull()
	return following
}

// beat keeps everything that is held from being delivered again. It rests while nothing is held.
func (l *loop) beat(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.busy:
		}
		for held := true; held; held = l.sign() {
			l.mu.Lock()
			wait := l.ackWait / 3
			l.mu.Unlock()
			if pause(ctx, wait) != nil {
				return
			}
		}
	}
}

// sign gives a sign of life for each message that is held, and reports whether there are any.
func (l *loop) sign() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for m := range l.held {
		l.answer(m, workBody)
	}
	return len(l.held) > 0
}

// drain lets handlers finish and gives back the rest.
func (l *loop) drain(ctx context.Context, sub *nats.Subscription, cancelWork func()) error {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	close(l.closing)
	l.flush(ctx)          // what is on its way comes in, because nothing more is asked for
	_ = sub.Unsubscribe() // and takes our requests away, so that what we give back does not come to us
	l.giveBack()

	finished := make(chan struct{})
	go func() {
		l.handlers.Wait()
		close(finished)
	}()
	err := wait(finished, l.h.Drain)
	if err != nil {
		cancelWork()
		err = wait(finished, stopGrace)
	}
	l.flush(ctx)
	return err
}

// giveBack returns what has not started, for another process to take at once.
func (l *loop) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.waiting {
		delete(l.held, m)
		l.nak(m, 0)
	}
	l.waiting = nil
}

// flush waits until the server has had what was sent and we have what it sent before. Should it fail, something is
// delivered once more.
func (l *loop) flush(ctx context.Context) {
	if !l.conn.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushGrace)
	defer cancel()
	_ = l.conn.nc.FlushWithContext(ctx)
}

var errStuck = errors.New("handlers did not stop in time")

func wait(done <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return errStuck
	}
}

// count adds a failure of a message and returns how many there were in this process.
func (l *loop) count(seq uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) >= maxFailures {
		clear(l.failures) // messages that another process has ended meanwhile
	}
	l.failures[seq]++
	return l.failures[seq]
}

func (l *loop) forget(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failures, seq)
}

// trouble is what keeps loops of a connection from their consumers, by name.
type trouble struct {
	mu sync.Mutex
	by map[string]error
}

func (t *trouble) set(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		delete(t.by, name)
		return
	}
	if t.by == nil {
		t.by = map[string]error{}
	}
	t.by[name] = err
}

func (t *trouble) clear(name string) { t.set(name, nil) }

// err is one of the troubles, or nil.
func (t *trouble) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, err := range t.by {
		return fmt.Errorf("consumer %s: %w", name, err)
	}
	return nil
}
