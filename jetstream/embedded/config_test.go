package embedded_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/jetstream/embedded"
)

const twoUsers = `
jetstream: { max_file_store: 1GB, sync_interval: always }
accounts {
  SVC {
    jetstream: enabled
    users: [
      { user: admin, password: a }
      { user: planner, password: p, permissions: { publish: ["own.>"], subscribe: ["_INBOX.>"] } }
    ]
  }
  SYS { users: [ { user: sys, password: s } ] }
}
system_account: SYS
`

func TestConfigPermissions(t *testing.T) {
	t.Parallel()
	srv := startConfig(t, twoUsers, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	stream(t, connect(t, srv, nats.UserInfo("admin", "a")), "facts")

	violations := make(chan error, 1)
	planner := connect(t, srv, nats.UserInfo("planner", "p"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }))
	if err := planner.Publish("facts", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-violations:
		if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
			t.Errorf("error = %v, want a permissions violation", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a forbidden publish was not refused")
	}

	if nc, err := nats.Connect(srv.ClientURL(), nats.UserInfo("planner", "wrong")); !errors.Is(err, nats.ErrAuthorization) {
		nc.Close()
		t.Errorf("a wrong password: %v, want an authorization violation", err)
	}
}

// A restart reads the file again, which is how tests change permissions.
func TestConfigIsReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	write(t, path, twoUsers)
	srv, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	if got := srv.ClientURL(); got != "" {
		t.Errorf("ClientURL = %q, want none: neither the file nor the options listen", got)
	}
	write(t, path, strings.ReplaceAll(twoUsers, "password: a ", "password: new "))
	connect(t, restart(t, srv), nats.UserInfo("admin", "new"))
}

func TestOptionsWinOverConfig(t *testing.T) {
	t.Parallel()
	fromFile, fromOptions := t.TempDir(), t.TempDir()
	srv := startConfig(t, `
		server_name: file
		listen: "127.0.0.1:-1"
		max_payload: 64KB
		jetstream: { store_dir: "`+fromFile+`", max_file_store: 1GB }`,
		embedded.Options{Dir: fromOptions, MaxStore: 1 << 20, Name: "options"})
	if srv.ClientURL() == "" {
		t.Error("the file listens, the server does not")
	}
	nc := connect(t, srv)
	if got := nc.ConnectedServerName(); got != "options" {
		t.Errorf("server name = %q, want options", got)
	}
	if got := nc.MaxPayload(); got != 64<<10 {
		t.Errorf("max payload = %d, want the file's", got)
	}
	_, err := jetstream(t, nc).CreateStream(t.Context(),
		natsjs.StreamConfig{Name: "big", Subjects: []string{"big"}, MaxBytes: 2 << 20})
	if err == nil {
		t.Error("the file's store limit won")
	}
	_ = refused(t, embedded.Options{Dir: fromOptions}, "in use")
	start(t, embedded.Options{Dir: fromFile}) // untouched by the other
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.conf")
	broken := filepath.Join(t.TempDir(), "broken.conf")
	write(t, broken, "listen: \"127.0.0.1:-1\"\nno_such_option: true\n")
	for path, want := range map[string]string{"": "no configuration file", missing: missing, broken: "broken.conf:2"} {
		_, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error = %v, want %q in it", path, err, want)
		}
	}
}

func startConfig(t *testing.T, text string, o embedded.Options) *embedded.Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	write(t, path, text)
	srv, err := embedded.StartConfig(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}
