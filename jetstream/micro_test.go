package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// served runs a micro service of one endpoint until the test ends or stop is called, which waits for it.
func served(t *testing.T, c *jetstream.Conn, m jetstream.Micro, answer func(context.Context, jetstream.Request) (any, error)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	m.Name = "weir-test"
	m.Endpoints = []jetstream.Endpoint{{Name: "ask", Subject: ns.Services(events.VerbAsk), Answer: answer}}
	ended := make(chan error, 1)
	go func() { ended <- c.Serve(m)(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	until(t, "the service", func() bool {
		err := c.Ask(t.Context(), ns.ServiceSubject(events.VerbAsk, "nobody", "up", ""), events.Event{}, new(any))
		return !errors.Is(err, jetstream.ErrUnavailable)
	})
	return stop
}

var questionOf = func(run string) string { return ns.ServiceSubject(events.VerbAsk, "bob", run, "1-1") }

// Each kind of answer reaches who asked in the one form that it has.
func TestMicroAnswers(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	served(t, c, jetstream.Micro{}, func(_ context.Context, r jetstream.Request) (any, error) {
		req, err := ns.ParseService(r.Subject)
		if err != nil {
			return nil, err
		}
		switch req.Run {
		case "refused":
			e := events.Errorf(events.CodeAmbiguous, "two wait:\r\nname one")
			e.Asks = []string{"r=1-1", "r=1-2"}
			return nil, e
		case "broken":
			return nil, errors.New("the secret of the house")
		case "away":
			return nil, jetstream.ErrTimeout
		case "panics":
			panic("oh")
		case "large":
			return strings.Repeat("x", 2<<20), nil
		case "wordy":
			return nil, events.Errorf(events.CodeInvalidRequest, "%s", strings.Repeat("x", 2<<20))
		}
		return map[string]string{"run": req.Run, "said": string(r.Data)}, nil
	})
	for run, want := range map[string]events.Code{
		"refused": events.CodeAmbiguous, "broken": events.CodeInternal, "away": events.CodeUnavailable,
		"panics": events.CodeInternal, "large": events.CodeTooLarge, "wordy": events.CodeInvalidRequest,
	} {
		err := c.Ask(t.Context(), questionOf(run), events.Event{}, new(any))
		e, ok := errors.AsType[*events.Error](err)
		if !ok || e.Code != want || strings.Contains(e.Message, "secret") {
			t.Errorf("%s: %v, want %s", run, err, want)
		}
		if run == "refused" && len(e.Asks) != 2 {
			t.Errorf("what the refusal says is lost: %+v", e)
		}
	}
	var answer map[string]string
	if err := c.Ask(t.Context(), questionOf("r1"), events.Event{}, &answer); err != nil || answer["run"] != "r1" {
		t.Errorf("answer %v, %v", answer, err)
	}
	if err := c.Ask(t.Context(), ns.ServiceSubject(events.VerbDecide, "bob", "r1", ""), events.Event{}, &answer); !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
	nc := rawConn(t, srv)
	reply, err := nc.Request("$SRV.STATS.weir-test", nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var stats micro.Stats
	if err := json.Unmarshal(reply.Data, &stats); err != nil || len(stats.Endpoints) != 1 || stats.Metadata["namespace"] != "default" {
		t.Fatalf("%s, %v", reply.Data, err)
	}
	var counts struct{ Answered, Refused int }
	if err := json.Unmarshal(stats.Endpoints[0].Data, &counts); err != nil || counts.Answered < 2 || counts.Refused != 5 {
		t.Errorf("counts %s, %v", stats.Endpoints[0].Data, err)
	}
}

// Requests that wait hold up no other; those for which there is no room are refused at once, and so may be sent again.
func TestMicroIsBusy(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]int{"room": 0, "no room": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, c := open(t)
			taken, release := make(chan struct{}), make(chan struct{})
			served(t, c, jetstream.Micro{Requests: room}, func(_ context.Context, r jetstream.Request) (any, error) {
				if strings.Contains(r.Subject, "slow") {
					close(taken)
					<-release
				}
				return "done", nil
			})
			ask := func(run string) error { return c.Ask(t.Context(), questionOf(run), events.Event{}, new(any)) }
			answered := make(chan error, 1)
			go func() {
				err := ask("slow")
				for events.CodeOf(err) == events.CodeUnavailable && err != nil { // the one before has not quite ended
					err = ask("slow")
				}
				answered <- err
			}()
			<-taken
			if err := ask("quick"); (err == nil) != (room == 0) || err != nil && events.CodeOf(err) != events.CodeUnavailable {
				t.Errorf("beside one that waits: %v", err)
			}
			close(release)
			if err := <-answered; err != nil {
				t.Errorf("the one that waited: %v", err)
			}
		})
	}
}

// A service that stops finishes what it has taken and leaves the rest to its copies, over the network by taking no more,
// and within the process by refusing it.
func TestMicroStops(t *testing.T) {
	t.Parallel()
	for name, inProcess := range map[string]bool{"over the network": false, "in process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := jetstreamtest.StartListening(t)
			dial := func() *jetstream.Conn {
				o := jetstream.Options{URL: srv.ClientURL(), Log: testLog(t)}
				if inProcess {
					o.InProcess = srv.InProcess()
				}
				c, err := jetstream.Connect(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			asker, c := dial(), dial()
			taken := make(chan struct{})
			stop := served(t, c, jetstream.Micro{}, func(ctx context.Context, r jetstream.Request) (any, error) {
				if strings.Contains(r.Subject, "slow") {
					close(taken)
					<-ctx.Done() // cut after a moment
				}
				return "done", nil
			})
			answered := make(chan error, 1)
			go func() { answered <- asker.Ask(t.Context(), questionOf("slow"), events.Event{}, new(any)) }()
			<-taken
			stop()
			if err := <-answered; err != nil {
				t.Errorf("what was taken: %v", err)
			}
			err := asker.Ask(t.Context(), questionOf("late"), events.Event{}, new(any))
			_, refused := errors.AsType[*events.Error](err)
			if inProcess && events.CodeOf(err) != events.CodeUnavailable || !inProcess && (refused || !errors.Is(err, jetstream.ErrUnavailable)) {
				t.Errorf("what came after: %v", err)
			}
		})
	}
}

// A user who may not listen on an endpoint hears so at once.
func TestMicroWithoutTheRight(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "nats.conf")
	const rights = `authorization: { users: [ { user: "gate", password: "x", permissions: {
		publish: [">"], subscribe: ["_INBOX.>", "$SRV.>"] } } ] }`
	if err := os.WriteFile(conf, []byte(rights), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), conf, embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	c := connect(t, srv, jetstream.Options{User: "gate", Password: "x"})
	err = c.Serve(jetstream.Micro{Name: "weir-test", Endpoints: []jetstream.Endpoint{{Name: "ask", Subject: ns.Services(events.VerbAsk)}}})(t.Context())
	if !errors.Is(err, jetstream.ErrPermission) {
		t.Errorf("serve = %v, want no permission", err)
	}
}
