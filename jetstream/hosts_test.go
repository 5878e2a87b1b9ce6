package jetstream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// TestHosts asks whoever hosts something: one of a group answers, another group may stay silent, and nobody at all is
// told at once.
func TestHosts(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	subject := ns.ToolService("default", "pay", events.VerbPreview)
	if _, err := c.AskHost(t.Context(), subject, nil); !errors.Is(err, jetstream.ErrUnavailable) {
		t.Fatalf("nobody is there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	answers := make(chan string, 10)
	for group, say := range map[string]string{"a": "", "b": "yes"} {
		for range 1 + len(say)%2 { // two of group b
			go func() {
				ended <- c.AnswerAsHost(ctx, subject, group, func(_ context.Context, body []byte) []byte {
					answers <- group + string(body)
					if say == "" {
						return nil
					}
					return []byte(say)
				})
			}()
		}
	}
	until(t, "the hosts to listen", func() bool { return c.Subscriptions() >= 3 })
	got, err := c.AskHost(t.Context(), subject, []byte("?"))
	if err != nil || string(got) != "yes" {
		t.Errorf("%q, %v", got, err)
	}
	said := map[string]int{<-answers: 1}
	said[<-answers]++
	if said["a?"] != 1 || said["b?"] != 1 || len(answers) > 0 {
		t.Errorf("asked were %v and %d more", said, len(answers))
	}
	cancel()
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestHostsAnswerNoFacts: a host that is asked with the subject of a fact as reply writes nothing there.
func TestHostsAnswerNoFacts(t *testing.T) {
	t.Parallel()
	srv, c := open(t)
	subject := ns.ToolService("default", "pay", events.VerbPreview)
	asked := make(chan string, 10)
	go func() {
		_ = c.AnswerAsHost(t.Context(), subject, "a", func(_ context.Context, body []byte) []byte {
			asked <- string(body)
			return body
		})
	}()
	nc, err := nats.Connect("", nats.InProcessServer(srv.InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	until(t, "the host to listen", func() bool {
		_, err := nc.Request(subject, []byte("there?"), 5*time.Second)
		return err == nil && <-asked == "there?"
	})
	for _, reply := range []string{"weir.default.put.run.r1.call.1-1.answer", "weir.default.in.decide.alice.r1.1-1"} {
		if err := nc.PublishRequest(subject, reply, []byte("steered")); err != nil {
			t.Fatal(err)
		}
	}
	msg, err := nc.Request(subject, []byte("honest"), 5*time.Second)
	if err != nil || string(msg.Data) != "honest" || <-asked != "honest" {
		t.Errorf("%v", err)
	}
}
