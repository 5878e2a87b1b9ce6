package jetstream_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// bucketInfo is what the server says about a store.
func bucketInfo(t *testing.T, js natsjs.JetStream, name string) *natsjs.StreamInfo {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo()
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	js := raw(t, srv)
	for _, size := range []int{0, 1, 256 << 10, 256<<10 + 1, 1 << 20, 3<<20 + 17} {
		body := bytes.Repeat([]byte("0123456789abcdef\x00\xff!"), size/19+1)[:size]
		before := bucketInfo(t, js, "OBJ_"+ns.Store(events.BucketBlobs)).State.Msgs
		var writers sync.WaitGroup
		for range 3 { // together and again
			writers.Go(func() {
				if digest, err := c.PutBlob(t.Context(), body); err != nil || digest != events.Digest(body) {
					t.Errorf("put %d bytes: %s, %v", size, digest, err)
				}
			})
		}
		writers.Wait()
		got, err := c.Blob(t.Context(), events.Digest(body))
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("read %d bytes: %d, %v", size, len(got), err)
		}
		parts := uint64(max((size+256<<10-1)/(256<<10), 1))
		if n := bucketInfo(t, js, "OBJ_"+ns.Store(events.BucketBlobs)).State.Msgs - before; n != parts {
			t.Errorf("%d bytes take %d parts, want %d", size, n, parts)
		}
	}
	for digest, want := range map[string]error{
		events.Digest([]byte("unknown")):    jetstream.ErrNotFound,
		"sha256:*":                          events.ErrBadID,
		"md5:0123":                          events.ErrBadID,
		"sha256:" + strings.Repeat("A", 64): events.ErrBadID,
	} {
		if _, err := c.Blob(t.Context(), digest); !errors.Is(err, want) {
			t.Errorf("blob %s: %v, want %v", digest, err, want)
		}
	}
	// What somebody else stored under a digest is not taken for it.
	victim := events.Digest([]byte("victim"))
	subject := "$O." + ns.Store(events.BucketBlobs) + ".C." + strings.TrimPrefix(victim, "sha256:") + ".0"
	if _, err := js.Publish(t.Context(), subject, []byte("forged")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Blob(t.Context(), victim); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("forged blob: %v", err)
	}
}
