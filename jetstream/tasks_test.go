package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// TestKept keeps a value and changes it: whoever comes with an old revision is refused, and nothing of his is stored.
func TestKept(t *testing.T) {
	t.Parallel()
	c := start(t, jetstream.Options{})
	key, other := events.TasksKey("user 7", "t1", ""), events.TasksKey("user 7", "t1", "counter")
	kept := func(key, want string, rev uint64) {
		t.Helper()
		value, got, err := c.Kept(t.Context(), key)
		if err != nil || string(value) != want || got != rev {
			t.Errorf("%s: %s at %d (%v), want %s at %d", key, value, got, err, want, rev)
		}
	}
	keep := func(value string, prev uint64) uint64 {
		t.Helper()
		rev, err := c.Keep(t.Context(), key, []byte(value), prev)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	kept(key, "", 0)
	first := keep(`{"n":1}`, 0)
	kept(key, `{"n":1}`, first)
	kept(other, "", 0)
	second := keep(`{"n":2}`, first)
	for _, prev := range []uint64{0, first, second + 1} {
		if _, err := c.Keep(t.Context(), key, []byte(`{"n":3}`), prev); !errors.Is(err, jetstream.ErrConflict) {
			t.Errorf("over %d: %v, want a conflict", prev, err)
		}
	}
	kept(key, `{"n":2}`, second)
	large := []byte(`"` + strings.Repeat("x", 256<<10) + `"`)
	if _, err := c.Keep(t.Context(), key, large, second); !errors.Is(err, jetstream.ErrTooLarge) {
		t.Errorf("a large value: %v", err)
	}
}

// TestB15_14KeptInRaces lets writers add to one value at once, each by reading again after a conflict, while replies get
// lost: everything that was added is there, once.
func TestB15_14KeptInRaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const writers, each = 8, 6
		var replies atomic.Int64
		c := start(t, jetstream.Options{Hooks: jetstream.Hooks{LoseReply: acks(func() bool { return replies.Add(1)%7 == 0 })}})
		key := events.TasksKey("u1", "t1", "")
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for i := range each {
					if err := add(t.Context(), c, key, fmt.Sprintf("<%d-%d>", w, i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		value, _, err := c.Kept(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		for w := range writers {
			for i := range each {
				if n := bytes.Count(value, fmt.Appendf(nil, "<%d-%d>", w, i)); n != 1 {
					t.Errorf("<%d-%d> is there %d times", w, i, n)
				}
			}
		}
	})
}

// add adds a word to what is kept, unless it is there: ours may have been stored though it is told as a conflict.
func add(ctx context.Context, c *jetstream.Conn, key, word string) error {
	for {
		value, rev, err := c.Kept(ctx, key)
		if err != nil || bytes.Contains(value, []byte(word)) {
			return err
		}
		if _, err = c.Keep(ctx, key, append(value, word...), rev); !errors.Is(err, jetstream.ErrConflict) {
			return err
		}
	}
}
