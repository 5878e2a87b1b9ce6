package jetstream_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// A request to a service of others never goes where Weir, the server or this connection listens.
func TestRequestForeignSubjects(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstreamtest.StartServer(t), jetstream.Options{InboxPrefix: "replies.executor", APIPrefix: "js.api"})
	for _, subject := range []string{
		"", "weir", "weir.default.put.run.r.call.1-1.result", "weir.other.svc.decide.a.r.1-1", "$JS.API.INFO", "$SRV.PING",
		"$KV.a.b", "_INBOX.a", "_R_.x", "a.*", "a.>", "a b", "a..b", ".a", "a.", "a\r\nPUB x 0", "é", strings.Repeat("a", 256),
		"replies.executor", "replies.executor.x.1", "js.api.STREAM.DELETE.x",
	} {
		_, err := c.Request(t.Context(), jetstream.Request{Subject: subject})
		if !errors.Is(err, jetstream.ErrNotSent) || errors.Is(err, jetstream.ErrUnavailable) {
			t.Errorf("%q: %v, want refused before it is sent", subject, err)
		}
	}
	for _, subject := range []string{"shop", "weird.x", "replies.executors", "js.apis.x", "Weir.x"} {
		_, err := c.Request(t.Context(), jetstream.Request{Subject: subject})
		if !errors.Is(err, jetstream.ErrNotSent) || !errors.Is(err, jetstream.ErrUnavailable) {
			t.Errorf("%q: %v, want that nobody listens", subject, err)
		}
	}
	_, err := c.Request(t.Context(), jetstream.Request{Subject: "shop", Data: make([]byte, c.MaxMessage()+1)})
	if !errors.Is(err, jetstream.ErrNotSent) || !errors.Is(err, jetstream.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// A user without the right to publish has not sent anything.
func TestRequestForeignForbidden(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	users := `authorization { users: [{ user: e, password: p, permissions: { publish: ["shop.stock"], subscribe: ["_INBOX.>"] } }] }`
	if err := os.WriteFile(path, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	c := connect(t, srv, jetstream.Options{User: "e", Password: "p"})
	_, err = c.Request(t.Context(), jetstream.Request{Subject: "shop.refund"})
	if !errors.Is(err, jetstream.ErrNotSent) || !errors.Is(err, jetstream.ErrPermission) {
		t.Errorf("error = %v, want forbidden, not sent", err)
	}
}
