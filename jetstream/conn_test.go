package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// users is a server whose users have the allow lists of three services, and one with a mistake.
const users = `
accounts {
  SVC {
    jetstream: enabled
    users: [
      { user: provisioner, password: p }
      { user: planner, password: p, permissions: {
          subscribe: ["_INBOX_planner.>"]
          publish: ["$JS.API.CONSUMER.INFO.weir_default_inbox.planner", "$JS.API.CONSUMER.INFO.weir_default_runs.planner",
            "$JS.API.STREAM.INFO.weir_default_runs", "$JS.API.STREAM.MSG.GET.weir_default_runs",
            "weir.default.put.run.*.main.>", "weir.default.put.run.=probe.planner.*",
            "$JS.API.STREAM.INFO.weir_default_threads", "$JS.API.STREAM.INFO.KV_weir_default_suspended",
            "$JS.API.STREAM.INFO.KV_weir_default_registry", "$JS.API.STREAM.INFO.OBJ_weir_default_blobs"] } }
      { user: approval, password: p, permissions: {
          subscribe: ["_INBOX_approval.>"]
          publish: ["$JS.API.CONSUMER.INFO.*.*", "$JS.API.STREAM.INFO.weir_default_runs",
            "weir.default.put.run.*.call.*.ask", "weir.default.put.run.=probe.approval.*",
            "weir.default.put.grant.*.use.*", "$JS.API.STREAM.INFO.weir_default_dead",
            "$JS.API.STREAM.INFO.KV_weir_default_suspended", "$JS.API.STREAM.INFO.KV_weir_default_grants",
            "$JS.API.STREAM.INFO.KV_weir_default_registry", "$JS.API.STREAM.INFO.OBJ_weir_default_blobs"] } }
      { user: executor, password: p, permissions: {
          subscribe: ["_INBOX_executor.>"]
          publish: ["$JS.API.CONSUMER.INFO.weir_default_runs.pool-default", "$JS.API.STREAM.INFO.weir_default_runs",
            "$JS.API.STREAM.MSG.GET.weir_default_runs", "weir.default.put.run.*.call.*.claim",
            "weir.default.put.run.=probe.tool-executor.*", "$JS.API.STREAM.INFO.KV_weir_default_registry"] } }
    ]
  }
}
`

// startUsers starts a server with users and makes the streams.
func startUsers(t *testing.T) *embedded.Server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	ensure(t, login(t, srv, "provisioner", "_INBOX"), jetstream.Settings{})
	return srv
}

func login(t *testing.T, srv *embedded.Server, user, inbox string) *jetstream.Conn {
	t.Helper()
	c, err := jetstream.Connect(t.Context(), jetstream.Options{
		URL: srv.ClientURL(), User: user, Password: "p",
		Name: user, InboxPrefix: inbox,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A permission that is missing is told at once, with the subject and the user, and not as a time-out.
func TestPermissions(t *testing.T) {
	t.Parallel()
	srv := startUsers(t)
	planner := login(t, srv, "planner", "_INBOX_planner")
	begin := fact(t, ns.Start("r"))
	stored(t, planner, events.First(begin.Place), begin)

	release := fact(t, ns.Go(call("r"), "default", "refund"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, appending := planner.Append(ctx, events.First(release.Place), release)
	_, ensuring := login(t, srv, "executor", "_INBOX_executor").Verify(ctx, jetstream.Settings{})
	_, publishing := planner.Publish(ctx, ns.InStart("bob", "support"), begin)
	if ctx.Err() != nil {
		t.Fatal("refusals came as time-outs")
	}
	for what, tc := range map[string]struct {
		err  error
		says []string
	}{
		"append":  {appending, []string{"user planner", release.Place.Ingest()}},
		"verify":  {ensuring, []string{"user executor", "STREAM.INFO.weir_default_inbox"}},
		"publish": {publishing, []string{"user planner", ns.InStart("bob", "support")}},
	} {
		if !errors.Is(tc.err, jetstream.ErrPermission) {
			t.Errorf("%s: %v, want ErrPermission", what, tc.err)
			continue
		}
		for _, text := range tc.says {
			if !strings.Contains(tc.err.Error(), text) {
				t.Errorf("%s: %q does not name %q", what, tc.err, text)
			}
		}
	}
	seen := planner.Violations()
	if len(seen) != 2 || seen[0].Subject != ns.InStart("bob", "support") || seen[0].User != "planner" || seen[1].Count != 1 {
		t.Errorf("violations %+v", seen)
	}
	if err := planner.Health(); err != nil {
		t.Errorf("a refusal made the connection unhealthy: %v", err)
	}
}

// A user whose replies go to an inbox that it may not subscribe to would wait for every one of them in vain.
func TestWrongInboxPrefix(t *testing.T) {
	t.Parallel()
	c := login(t, startUsers(t), "planner", "")
	begin := fact(t, ns.Start("r"))
	for range 2 {
		_, err := c.Append(t.Context(), events.First(begin.Place), begin)
		if !errors.Is(err, jetstream.ErrPermission) || !strings.Contains(err.Error(), "inbox prefix") {
			t.Errorf("append: %v", err)
		}
	}
	if err := c.Health(); !errors.Is(err, jetstream.ErrPermission) {
		t.Errorf("health: %v", err)
	}
}

// Each service can verify what it uses, and prove its guards, with the rights that it has.
func TestVerifyAsService(t *testing.T) {
	t.Parallel()
	srv := startUsers(t)
	for service, user := range map[string]string{"planner": "planner", "approval": "approval", "tool-executor": "executor"} {
		c := login(t, srv, user, "_INBOX_"+user)
		drifts, err := c.Verify(t.Context(), jetstream.Settings{Service: service, Pools: []string{"default"}})
		if err != nil || len(drifts) > 0 {
			t.Errorf("%s: verify: %v, %v", service, drifts, err)
		}
		if err := c.SelfTest(t.Context(), service); err != nil {
			t.Errorf("%s: %v", service, err)
		}
		if err := c.Probe(t.Context(), service); err != nil {
			t.Errorf("%s: %v", service, err)
		}
		if v := c.Violations(); len(v) > 0 {
			t.Errorf("%s: %v", service, v)
		}
	}
}

func TestConnectRefuses(t *testing.T) {
	t.Parallel()
	srv := startUsers(t)
	for name, o := range map[string]jetstream.Options{
		"nobody listens":     {URL: "nats://127.0.0.1:1"},
		"wrong password":     {URL: srv.ClientURL(), User: "planner", Password: "x"},
		"no seed":            {URL: srv.ClientURL(), NKeySeedFile: "missing.nk"},
		"no such context":    {Context: filepath.Join(t.TempDir(), "none.json")},
		"certificate alone":  {URL: srv.ClientURL(), Cert: "cert.pem"},
		"namespace":          {URL: srv.ClientURL(), Namespace: "a.b"},
		"number of replicas": {URL: srv.ClientURL(), Replicas: 9},
	} {
		if c, err := jetstream.Connect(t.Context(), o); err == nil {
			t.Errorf("%s: connected", name)
			_ = c.Close()
		}
	}
	_, err := jetstream.Connect(t.Context(), jetstream.Options{URL: srv.ClientURL(), User: "planner", Password: "x"})
	if !errors.Is(err, jetstream.ErrPermission) {
		t.Errorf("wrong password: %v, want ErrPermission", err)
	}
	_, err = jetstream.Connect(t.Context(), jetstream.Options{URL: "nats://127.0.0.1:1"})
	if !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("nobody listens: %v, want ErrUnavailable", err)
	}
}

// TestContext connects by a context of the nats command, field by field.
func TestContext(t *testing.T) {
	t.Parallel()
	srv := startUsers(t)
	write := func(fields map[string]string) string {
		path := filepath.Join(t.TempDir(), "weir.json")
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fields := map[string]string{"url": srv.ClientURL(), "user": "planner", "password": "p", "inbox_prefix": "_INBOX_planner"}
	try := func(o jetstream.Options) (*jetstream.Conn, error) {
		t.Helper()
		c, err := jetstream.Connect(t.Context(), o)
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			_, err = c.Last(t.Context(), ns.RunAll())
		}
		return c, err
	}
	c, err := try(jetstream.Options{Context: write(fields)})
	if !errors.Is(err, jetstream.ErrNotFound) || c.User() != "planner" {
		t.Errorf("read as planner: %v", err)
	}
	other := map[string]string{"url": "nats://127.0.0.1:1", "user": "planner", "password": "p", "inbox_prefix": "_INBOX_planner"}
	if _, err := try(jetstream.Options{Context: write(other), URL: srv.ClientURL()}); !errors.Is(err, jetstream.ErrNotFound) {
		t.Errorf("the URL does not win over the context's: %v", err)
	}
	fields["jetstream_api_prefix"] = "weir.js"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err = jetstream.Connect(ctx, jetstream.Options{Context: write(fields)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Last(ctx, ns.RunAll()); !errors.Is(err, jetstream.ErrPermission) || !strings.Contains(err.Error(), "weir.js.STREAM") {
		t.Errorf("with the context's API prefix: %v", err)
	}
}

func TestNKeyLogin(t *testing.T) {
	t.Parallel()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := jetstream.SaveKey(filepath.Join(dir, "user.nk"), key); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, []byte(`authorization { users: [ { nkey: `+key.Public+` } ] }`), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), conf, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	c, err := jetstream.Connect(t.Context(), jetstream.Options{
		URL:          srv.ClientURL(),
		NKeySeedFile: filepath.Join(dir, "user.nk"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseAndHealth(t *testing.T) {
	t.Parallel()
	srv := jetstreamtest.StartListening(t)
	c := dial(t, jetstream.Options{}, srv.ClientURL())[0]
	if err := c.Health(); err != nil {
		t.Error(err)
	}
	srv.Shutdown()
	if err := eventually(t, func() error { return c.Health() }, func(err error) bool { return err != nil }); !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("health without a server: %v", err)
	}
	jetstreamtest.Restart(t, srv)
	if err := eventually(t, func() error { return c.Health() }, func(err error) bool { return err == nil }); err != nil {
		t.Errorf("health after the restart: %v", err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	select {
	case <-c.Closed():
	default:
		t.Error("the connection does not say that it is closed")
	}
	if err := c.Health(); !errors.Is(err, jetstream.ErrUnavailable) {
		t.Errorf("health of a closed connection: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begin := fact(t, ns.Start("r"))
	if _, err := c.Append(ctx, events.First(begin.Place), begin); !errors.Is(err, jetstream.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("append on a closed connection: %v", err)
	}
}

// eventually asks again until the answer is right.
func eventually(t *testing.T, ask func() error, right func(error) bool) error {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(30 * time.Second); ; {
		err := ask()
		if right(err) {
			return err
		}
		select {
		case <-limit:
			return err
		case <-tick.C:
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	key, err := jetstream.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gate.nk")
	if err := jetstream.SaveKey(path, key); err != nil {
		t.Fatal(err)
	}
	if err := jetstream.SaveKey(path, key); err == nil {
		t.Error("a key file was replaced")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	loaded, err := jetstream.LoadKey(path)
	if err != nil || loaded.Public != key.Public || !loaded.Private.Equal(key.Private) {
		t.Errorf("loaded %s, %v; want %s", loaded.Public, err, key.Public)
	}
	public, err := jetstream.ParsePublic(key.Public)
	if err != nil {
		t.Fatal(err)
	}
	keys := events.Keys{key.Public: public}
	sig := events.Sign(loaded, events.DomainGo, "subject", []byte("payload"))
	if err := keys.Verify(events.DomainGo, "subject", []byte("payload"), sig); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"public key": key.Public, "garbage": "SUx", "account seed": "SAAOMEJUAK6AWV4QSPHEBLVCWMQ4PLKFHTZDSDXPRJFBWKUWEPMHOD3IZE",
	} {
		path := filepath.Join(t.TempDir(), "bad.nk")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := jetstream.LoadKey(path); err == nil {
			t.Errorf("%s was loaded as a key", name)
		} else if strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error shows what was in the file: %v", name, err)
		}
	}
	for _, text := range []string{"", "U", key.Public[1:], "A" + key.Public[1:], strings.ToLower(key.Public)} {
		if _, err := jetstream.ParsePublic(text); err == nil {
			t.Errorf("%q was read as a public key", text)
		}
	}
}
