package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

const (
	// namedTTL is how old a named definition may be when it is used. The subscription usually makes it younger.
	namedTTL = time.Second
	// maxCached bounds each cache by its entries. A miss costs one read.
	maxCached = 4096
	// maxDefBytes bounds the cache of definitions by content.
	maxDefBytes = 64 << 20

	// liveEvery and liveTTL are how often a process says that it lives, and how long that is believed.
	liveEvery = 5 * time.Second
	liveTTL   = 15 * time.Second
	// listAtOnce is how many values of a list are read side by side.
	listAtOnce = 16
)

// PutDef stores a definition by its content and returns its digest. Storing it again changes nothing.
func (c *Conn) PutDef(ctx context.Context, body []byte) (digest string, err error) {
	digest = events.Digest(body)
	_, err = c.bucket(events.BucketRegistry).swap(ctx, events.DefKey(digest), body, 0)
	if err != nil && !errors.Is(err, ErrConflict) {
		return "", fmt.Errorf("put definition: %w", err)
	}
	return digest, nil
}

// Def reads a definition by its digest. What it returns is what the digest names, whoever has written the registry, and
// must not be changed.
func (c *Conn) Def(ctx context.Context, digest string) ([]byte, error) {
	if body, ok := c.parts.defs.get(digest); ok {
		return body, nil
	}
	e, err := c.bucket(events.BucketRegistry).get(ctx, events.DefKey(digest))
	if err != nil {
		return nil, fmt.Errorf("read definition %s: %w", digest, err)
	}
	if events.Digest(e.value) != digest {
		return nil, fmt.Errorf("read definition %s: %w: something else is stored under its digest", digest, ErrNotFound)
	}
	c.parts.defs.put(digest, e.value)
	return e.value, nil
}

// PutNamed stores a definition under its name, in place of the one before. Who uses it sees it within a second.
func (c *Conn) PutNamed(ctx context.Context, kind, id string, body []byte) error {
	key := events.RegistryKey(kind, id)
	if _, err := c.bucket(events.BucketRegistry).put(ctx, key, body, 0); err != nil {
		return fmt.Errorf("put %s %s: %w", kind, id, err)
	}
	c.parts.named.forget(key)
	return nil
}

// DeleteNamed removes a name. Runs that started with its definition keep it, by its digest.
func (c *Conn) DeleteNamed(ctx context.Context, kind, id string) error {
	key := events.RegistryKey(kind, id)
	if err := c.bucket(events.BucketRegistry).remove(ctx, key, 0); err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, id, err)
	}
	c.parts.named.forget(key)
	return nil
}

// Named reads what a name means now, or meant a second ago at most; [ErrNotFound] when it means nothing. The bytes must
// not be changed.
func (c *Conn) Named(ctx context.Context, kind, id string) ([]byte, error) {
	return c.namedBy(ctx, kind, id, events.RegistryKey(kind, id))
}

// NamedOf is [Conn.Named] by the token of a name, as a parsed subject holds it.
func (c *Conn) NamedOf(ctx context.Context, kind, token string) ([]byte, error) {
	return c.namedBy(ctx, kind, token, events.RegistryKeyOf(kind, token))
}

func (c *Conn) namedBy(ctx context.Context, kind, id, key string) ([]byte, error) {
	c.parts.named.follow(c)
	n, ok := c.parts.named.get(key)
	if !ok {
		asked := time.Now()
		e, err := c.bucket(events.BucketRegistry).get(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, fmt.Errorf("read %s %s: %w", kind, id, err)
		}
		n = named{value: e.value, missing: err != nil, at: asked}
		c.parts.named.put(key, n)
	}
	if n.missing {
		return nil, fmt.Errorf("read %s %s: %w", kind, id, ErrNotFound)
	}
	return n.value, nil
}

// NamedNow is [Conn.Named] as the leader knows it now. Unlike that it needs no right to hear changes of the registry,
// which executors have not.
func (c *Conn) NamedNow(ctx context.Context, kind, id string) ([]byte, error) {
	e, err := c.bucket(events.BucketRegistry).get(ctx, events.RegistryKey(kind, id))
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, id, err)
	}
	return e.value, nil
}

// SwapNamed changes a definition under its name, as the leader has it: change gets what is there, nil when nothing is, and
// returns what shall be there, nil to leave it. It is called again when somebody else was faster.
func (c *Conn) SwapNamed(ctx context.Context, kind, id string, change func(body []byte) ([]byte, error)) error {
	b, key := c.bucket(events.BucketRegistry), events.RegistryKey(kind, id)
	for range maxSwaps {
		e, err := b.get(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("read %s %s: %w", kind, id, err)
		}
		body, err := change(e.value)
		if err != nil || body == nil {
			return err
		}
		_, err = b.swap(ctx, key, body, e.rev)
		if err == nil || !errors.Is(err, ErrConflict) {
			c.parts.named.forget(key)
			if err != nil {
				return fmt.Errorf("put %s %s: %w", kind, id, err)
			}
			return nil
		}
	}
	return fmt.Errorf("put %s %s: %w", kind, id, ErrConflict)
}

// ListNamed reads all definitions of a kind from the leader, by the tokens of their ids; an id is in its definition.
func (c *Conn) ListNamed(ctx context.Context, kind string) (map[string][]byte, error) {
	b := c.bucket(events.BucketRegistry)
	keys, err := b.keys(ctx, kind+".*")
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", kind, err)
	}
	values := make([][]byte, len(keys))
	err = inParallel(len(keys), listAtOnce, func(i int) error {
		e, err := b.get(ctx, keys[i])
		if errors.Is(err, ErrNotFound) { // deleted
			return nil
		}
		values[i] = append([]byte{}, e.value...) // an empty one is there too, and nobody may take it for deleted
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", kind, err)
	}
	all := make(map[string][]byte, len(keys))
	for i, key := range keys {
		if values[i] != nil {
			all[strings.TrimPrefix(key, kind+".")] = values[i]
		}
	}
	return all, nil
}

// HearNamed calls f when somebody writes a definition of a kind. It is a hint: what is heard may not be stored yet, may
// never be, and what is written while the connection is lost is not heard.
func (c *Conn) HearNamed(ctx context.Context, kind string, f func()) (stop func(), err error) {
	return c.listen(ctx, c.bucket(events.BucketRegistry).prefix+kind+".*", func(*nats.Msg) { f() })
}

// inParallel calls f for 0 to n-1, so many at once, and returns one of the errors.
func inParallel(n, atOnce int, f func(int) error) error {
	var (
		group sync.WaitGroup
		next  = make(chan int)
		errs  = make(chan error, n)
	)
	for range min(n, atOnce) {
		group.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// PutLive says once that a process lives; it is believed for 15 s. A worker calls it before it takes work, so that
// nobody takes it for gone.
func (c *Conn) PutLive(ctx context.Context, live events.Live) error {
	body, err := events.Marshal(live)
	if err == nil {
		_, err = c.bucket(events.BucketRegistry).put(ctx, events.LiveKey(live.Service, live.ID), body, liveTTL)
	}
	if err != nil {
		return fmt.Errorf("say that %s %s lives: %w", live.Service, live.ID, err)
	}
	return nil
}

// KeepAlive says every 5 s that a process lives, until ctx ends; then it takes that back, as far as it can. What fails
// is tried again at the next turn.
func (c *Conn) KeepAlive(ctx context.Context, live events.Live) error {
	return c.KeepTelling(ctx, func(context.Context) events.Live { return live })
}

// KeepTelling is [Conn.KeepAlive] for a process that finds out each time what it says about itself, under a deadline.
// Service and id must stay the same.
func (c *Conn) KeepTelling(ctx context.Context, tell func(context.Context) events.Live) error {
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, liveEvery/2)
		live := tell(try)
		cancel()
		try, cancel = context.WithTimeout(ctx, liveEvery)
		if err := c.PutLive(try, live); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "live key not renewed", "service", live.Service, "id", live.ID, "error", err)
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), liveEvery)
			defer cancel()
			if err := c.bucket(events.BucketRegistry).remove(bye, events.LiveKey(live.Service, live.ID), 0); err != nil {
				c.log.DebugContext(ctx, "live key not removed", "service", live.Service, "id", live.ID, "error", err)
			}
			return nil
		}
	}
}

// IsLive reports whether a process has said within 15 s that it lives, as the leader knows it. An error means that
// nobody can tell, and then nobody may be taken for gone.
func (c *Conn) IsLive(ctx context.Context, service, id string) (bool, error) {
	_, err := c.bucket(events.BucketRegistry).get(ctx, events.LiveKey(service, id))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrNotFound):
		return false, nil
	}
	return false, fmt.Errorf("is %s %s live: %w", service, id, err)
}

// ListLive reads what the living processes of a service say about themselves.
func (c *Conn) ListLive(ctx context.Context, service string) ([]events.Live, error) {
	values, err := c.ListNamed(ctx, events.RegistryLive+"."+events.Token(service))
	if err != nil {
		return nil, err
	}
	all := make([]events.Live, 0, len(values))
	for _, body := range values {
		var live events.Live
		if err := decodeExact(body, &live); err == nil {
			all = append(all, live)
		}
	}
	return all, nil
}

// defCache holds definitions by digest. They never change, so they never leave but for room.
type defCache struct {
	mu    sync.RWMutex
	by    map[string][]byte
	bytes int
}

func (d *defCache) get(digest string) ([]byte, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	body, ok := d.by[digest]
	return body, ok
}

func (d *defCache) put(digest string, body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil || len(d.by) >= maxCached || d.bytes > maxDefBytes {
		d.by, d.bytes = map[string][]byte{}, 0
	}
	if _, ok := d.by[digest]; !ok {
		d.by[digest], d.bytes = bytes.Clone(body), d.bytes+len(body)
	}
}

// named is what a name meant when the leader was asked.
type named struct {
	value   []byte
	missing bool
	at      time.Time // when it was asked for
}

// namedCache holds names for a second, or until it hears that somebody writes them.
type namedCache struct {
	once sync.Once
	mu   sync.Mutex
	by   map[string]named
}

// follow subscribes to changes of the registry, once for the connection. Without the right to, names are a second old.
func (n *namedCache) follow(c *Conn) {
	n.once.Do(func() {
		prefix := c.bucket(events.BucketRegistry).prefix
		_, err := c.nc.Subscribe(prefix+">", func(msg *nats.Msg) { n.forget(strings.TrimPrefix(msg.Subject, prefix)) })
		if err != nil {
			c.log.Warn("changes of the registry are not heard", "error", err)
		}
	})
}

func (n *namedCache) get(key string) (named, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.by[key]
	return e, ok && time.Since(e.at) < namedTTL
}

func (n *namedCache) put(key string, e named) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.by == nil || len(n.by) >= maxCached {
		n.by = map[string]named{}
	}
	n.by[key] = e
}

// forget drops a name that is being written. What is heard may not be stored yet, so a read that begins now may still
// see the old value; that stays for a second at most.
func (n *namedCache) forget(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.by, key)
}
