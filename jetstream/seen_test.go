package jetstream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// laggard stands between a connection and the server as a leader that is behind: for so many looks at how far the log is, it
// shows the log up to a sequence and no fact beyond it.
type laggard struct {
	mu    sync.Mutex
	shows uint64
	looks int // left until it has caught up
	nc    *nats.Conn
}

const laggardAPI = "behind"

func newLaggard(t *testing.T, p provider, shows uint64, looks int) *laggard {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(p.InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	l := &laggard{shows: shows, looks: looks, nc: nc}
	if _, err := nc.Subscribe(laggardAPI+".>", l.answer); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *laggard) answer(msg *nats.Msg) {
	verb := strings.TrimPrefix(msg.Subject, laggardAPI+".")
	reply, err := l.nc.Request("$JS.API."+verb, msg.Data, time.Second)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	behind := l.looks > 0
	if behind && strings.HasPrefix(verb, "STREAM.INFO.") {
		l.looks--
		var info map[string]any
		_ = json.Unmarshal(reply.Data, &info)
		if state, ok := info["state"].(map[string]any); ok {
			state["last_seq"] = l.shows
		}
		reply.Data, _ = json.Marshal(info)
	}
	if behind && strings.HasPrefix(verb, "STREAM.MSG.GET.") {
		reply.Data = []byte(`{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`)
	}
	_ = msg.Respond(reply.Data)
}

// TestAbsentIsNotBehind: a leader that is behind what was delivered does not show that a fact is absent; one that is not, and
// one of a log that was made anew, does.
func TestAbsentIsNotBehind(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartServer(t)
	direct := connect(t, srv, jetstream.Options{})
	ensure(t, direct, jetstream.Settings{})
	stored, err := direct.Fact(t.Context(), held(t, direct, "r").Place)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		looks  int // of the leader that are behind
		seen   uint64
		stored time.Time
		absent bool // the chain that is read
		want   error
	}{
		"caught up at once":        {looks: 1, seen: stored.Seq, stored: stored.Stored},
		"caught up later":          {looks: 4, seen: stored.Seq, stored: stored.Stored},
		"nothing was delivered":    {looks: 1, want: jetstream.ErrNotFound},
		"never caught up":          {looks: 1 << 20, seen: stored.Seq, stored: stored.Stored, want: jetstream.ErrUnavailable},
		"really absent":            {seen: stored.Seq, stored: stored.Stored, absent: true, want: jetstream.ErrNotFound},
		"a log that was made anew": {seen: stored.Seq + 100, stored: stored.Stored.Add(-time.Hour), absent: true, want: jetstream.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			newLaggard(t, srv, stored.Seq-1, test.looks)
			c := connect(t, srv, jetstream.Options{APIPrefix: laggardAPI, Retry: 2 * time.Second})
			c.Saw(test.seen, test.stored)
			run := "r"
			if test.absent {
				run = "none"
			}
			place := ns.Call(call(run), events.KindAsk)
			for what, read := range map[string]func() (events.Event, error){
				"the last fact": func() (events.Event, error) { return c.Last(t.Context(), place.Chain()) },
				"the fact":      func() (events.Event, error) { return c.Fact(t.Context(), place) },
			} {
				got, err := read()
				if !errors.Is(err, test.want) || err == nil && got.Seq != stored.Seq {
					t.Errorf("%s: %d, %v, want %v", what, got.Seq, err, fmt.Sprint(test.want))
				}
			}
		})
	}
}
