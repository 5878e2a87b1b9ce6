package jetstream_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
)

// accounts has executors in an account without JetStream, which reach the log through what is exported to them alone.
const accounts = `
accounts {
  SVC {
    jetstream: enabled
    users: [ { user: provisioner, password: p } ]
    exports: [
      { service: "$JS.API.CONSUMER.INFO.weir_default_runs.pool-default", response_type: singleton, accounts: [TOOLS] }
      { service: "$JS.API.STREAM.MSG.GET.weir_default_runs", response_type: singleton, accounts: [TOOLS] }
      { service: "$JS.API.STREAM.INFO.weir_default_runs", response_type: singleton, accounts: [TOOLS] }
      { service: "$JS.API.STREAM.INFO.KV_weir_default_registry", response_type: singleton, accounts: [TOOLS] }
      { service: "weir.default.put.run.*.call.*.claim", response_type: singleton, accounts: [TOOLS] }
      { service: "weir.default.put.run.*.call.*.result", response_type: singleton, accounts: [TOOLS] }
      { service: "weir.default.put.run.=probe.tool-executor.*", response_type: singleton, accounts: [TOOLS] }
    ]
  }
  TOOLS {
    users: [ { user: tool, password: p, permissions: { subscribe: ["_INBOX_tool.>"], publish: [
      "weir.js.CONSUMER.INFO.weir_default_runs.pool-default", "weir.js.STREAM.MSG.GET.weir_default_runs",
      "weir.js.STREAM.INFO.weir_default_runs", "weir.js.STREAM.INFO.KV_weir_default_registry",
      "weir.default.put.run.*.call.*.claim", "weir.default.put.run.*.call.*.result",
      "weir.default.put.run.=probe.tool-executor.*" ] } } ]
    imports: [
      { service: { account: SVC, subject: "$JS.API.CONSUMER.INFO.weir_default_runs.pool-default" }, to: "weir.js.CONSUMER.INFO.weir_default_runs.pool-default" }
      { service: { account: SVC, subject: "$JS.API.STREAM.MSG.GET.weir_default_runs" }, to: "weir.js.STREAM.MSG.GET.weir_default_runs" }
      { service: { account: SVC, subject: "$JS.API.STREAM.INFO.weir_default_runs" }, to: "weir.js.STREAM.INFO.weir_default_runs" }
      { service: { account: SVC, subject: "$JS.API.STREAM.INFO.KV_weir_default_registry" }, to: "weir.js.STREAM.INFO.KV_weir_default_registry" }
      { service: { account: SVC, subject: "weir.default.put.run.*.call.*.claim" } }
      { service: { account: SVC, subject: "weir.default.put.run.*.call.*.result" } }
      { service: { account: SVC, subject: "weir.default.put.run.=probe.tool-executor.*" } }
    ]
  }
}
`

// Guards hold across accounts: an executor that is walled off claims and finishes calls, and loses like anybody.
func TestAppendAcrossAccounts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(accounts), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.StartConfig(t.Context(), path, embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	gate := login(t, srv, "provisioner", "_INBOX")
	ensure(t, gate, jetstream.Settings{})
	tool, err := jetstream.Connect(t.Context(), jetstream.Options{
		URL: srv.ClientURL(), User: "tool", Password: "p",
		InboxPrefix: "_INBOX_tool", APIPrefix: "weir.js",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tool.Close() })

	settings := jetstream.Settings{Service: "tool-executor", Pools: []string{"default"}}
	if drifts, err := tool.Verify(t.Context(), settings); err != nil || len(drifts) > 0 {
		t.Errorf("verify: %v, %v", drifts, err)
	}
	if err := tool.SelfTest(t.Context(), "tool-executor"); err != nil {
		t.Error(err)
	}
	place := func(kind events.Kind) events.Place { return ns.Call(call("r"), kind) }
	release := ns.Go(call("r"), "default", "refund")
	last := stored(t, gate, events.First(release), fact(t, release))
	for range 20 {
		claim := stored(t, tool, events.After(last), fact(t, place(events.KindClaim)))
		lost(t, gate, events.After(last), fact(t, place(events.KindResult)), claim)
		last = stored(t, gate, events.After(claim), fact(t, place(events.KindClaim)))
		lost(t, tool, events.After(claim), fact(t, place(events.KindResult)), last)
	}
	if v := tool.Violations(); len(v) > 0 {
		t.Errorf("violations %v", v)
	}
}
