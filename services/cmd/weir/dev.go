package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/gateway"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/internal/service"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// defaultListen is where the NATS server of weir dev listens, and where commands look for one.
const defaultListen = "127.0.0.1:4222"

func newDevCommand(a *app) *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use: "dev", Short: "Run everything in one process: a NATS server, and all services", Args: cobra.NoArgs,
		Long: `Run everything in one process: an embedded NATS server, planner, gate, the executors of the tools in weir.yaml,
which is applied, and the gateway, which answers HTTP without login: programs for Mastra's client work with it. Without a
weir.yaml a built-in example is served. Streams and the gate's key are kept in a directory, so what is open goes on at the
next start.

Without a key scripted models answer. With OPENAI_API_KEY openai/… does, and with OPENAI_BASE_URL any server that speaks
like it; with ANTHROPIC_API_KEY anthropic/… does, with GEMINI_API_KEY google/…. WEIR_MODEL names the model of the built-in
agent.

It is for one person: who reaches the server may decide in anybody's name. For more than that see weir serve.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.lookup, o.log, o.ns = a.lookup, a.logger(slog.LevelWarn), events.Namespace(a.namespace)
			return dev(cmd.Context(), o, a.out)
		},
	}
	cmd.Flags().StringVar(&o.dir, "dir", ".weir", "directory of the streams and the gate's key")
	cmd.Flags().StringVar(&o.listen, "listen", defaultListen, "where the NATS server listens")
	cmd.Flags().StringVar(&o.gateway, "gateway", gateway.DefaultListen, "where HTTP is answered, on loopback; empty: nowhere")
	cmd.Flags().StringVarP(&o.file, "file", "f", "", "file of agents and tools (default weir.yaml, if it is there)")
	cmd.Flags().BoolVar(&o.audit, "audit", true, "keep the record, for weir audit")
	cmd.Flags().StringVar(&o.sync, "sync", "default", "when appends reach the disk: default, always, or a span such as 5ms")
	defineAdmin(cmd, &o.admin)
	defineTraces(cmd, &o.traces)
	return cmd
}

// devOptions are the flags of weir dev.
type devOptions struct {
	dir    string
	listen string
	admin  string
	traces traceFlags
	// gateway is where HTTP is answered; empty: nowhere.
	gateway string
	file    string // a weir.yaml; empty: the default one if it is there, else the built-in example
	audit   bool
	sync    string
	ns      events.Namespace // empty: the file's, else the default
	lookup  config.Lookup
	log     *slog.Logger
}

// devSetup is what weir dev serves.
type devSetup struct {
	file   *config.File // nil: the built-in example
	ns     events.Namespace
	model  string // of the built-in agent
	models *models.Registry
	tools  []agent.Tool

	servers []*toolexecutor.MCPServer
}

func (o devOptions) setup() (s devSetup, err error) {
	if s.file, err = loadFile(o.file, o.lookup); err != nil {
		return s, err
	}
	s.ns = cmp.Or(o.ns, namespaceOf(s.file), events.DefaultNamespace)
	if s.models, err = modelsOf(s.file, o.lookup); err != nil {
		return s, err
	}
	if s.file != nil {
		if s.servers, err = serversIn(s.file); err != nil {
			return s, err
		}
		s.tools, err = toolsIn(s.file)
		return s, err
	}
	s.tools = exampleTools(&shop{})
	s.model, err = builtinModel(o.lookup)
	return s, err
}

// dev runs everything in one process until ctx ends: a NATS server, and all services.
func dev(ctx context.Context, o devOptions, out io.Writer) error {
	sync, err := embedded.ParseSync(o.sync)
	if err != nil {
		return err
	}
	setup, err := o.setup()
	if err != nil {
		return err
	}
	health, err := listenAdmin(ctx, o.admin)
	if err != nil {
		return err
	}
	defer health.Close()
	trace, endTraces, err := o.traces.start(ctx, o.lookup, o.log)
	if err != nil {
		return err
	}
	defer endTraces()
	settings := setup.settings()
	settings.Audit = o.audit
	l, err := startLocal(ctx, localOptions{
		Dir: o.dir, Listen: o.listen, Sync: sync, Namespace: setup.ns,
		Settings: settings, Log: o.log, Trace: trace,
	})
	if err != nil {
		return err
	}
	defer l.Close()
	w, err := setup.worker(ctx, l, o.gateway)
	if err != nil {
		return err
	}
	warnings, err := setup.apply(ctx, l, w)
	if err != nil {
		w.close()
		return err
	}
	health.worker.Store(w)
	_, _ = io.WriteString(out, setup.banner(l, w, health.Addr(), warnings))
	err = service.All(ctx, w.Run, health.Run)
	if err == nil {
		_, _ = fmt.Fprintln(out, "weir dev: stopped; what is open goes on at the next start")
	}
	return err
}

// settings name the retention in any case, so that the log is kept as long as the services think.
func (s devSetup) settings() jetstream.Settings {
	settings := settingsIn(s.file)
	if settings.Retention == 0 {
		settings.Retention = config.DefaultRetention
	}
	return settings
}

// devPrincipal is who everybody is that reaches the gateway of weir dev.
const devPrincipal = "dev"

func (s devSetup) worker(ctx context.Context, l *local, http string) (*worker, error) {
	keys, err := l.gateKeys()
	if err != nil {
		return nil, err
	}
	services := servable
	if http == "" {
		services = allServices
	}
	return newWorker(ctx, workerConfig{
		Dial: l.dial, Key: &l.key, GateKeys: keys, Dev: true, Models: s.models,
		Tools: s.tools, MCP: s.servers, Pools: settingsIn(s.file).Pools, Retention: retentionIn(s.file), Log: l.opts.Log,
		Gateway: gateway.Config{Listen: http, Open: devPrincipal, GateKeys: keys},
	}, services...)
}

// apply writes what is served to the registry: tools first, then the agents that name them.
func (s devSetup) apply(ctx context.Context, l *local, w *worker) (warnings []string, err error) {
	if err := w.Register(ctx); err != nil {
		return nil, err
	}
	conn, err := l.dial(ctx, "dev")
	if err != nil {
		return nil, err
	}
	defer hangUp(conn)
	if s.file == nil {
		return nil, applyExample(ctx, conn, s.model)
	}
	report, err := config.Apply(ctx, conn, s.file, &config.ApplyOptions{AllowUnmatched: true}) // workers may come later
	if err == nil && len(s.servers) > 0 {
		err = w.Register(ctx) // what was accepted just now
	}
	return report.Warnings, err
}

// banner says what there is, and what to type next.
func (s devSetup) banner(l *local, w *worker, health string, warnings []string) string {
	facts := [][2]string{
		{"NATS", l.server.ClientURL() + ", files in " + filepath.Join(l.opts.Dir, "nats") + ", sync " + l.opts.Sync.String()},
		{"agents", s.agents()},
		{"tools", orNone(toolNames(s.tools))},
		{"gate key", l.key.Public},
	}
	for _, m := range s.servers {
		facts = append(facts, [2]string{"mcp", m.ID()})
	}
	if addr := w.gateway(); addr != "" {
		facts = append(facts, [2]string{"HTTP", "http://" + addr + "/api/agents"},
			[2]string{"WARNING", "HTTP asks for no login: whoever reaches it on this machine is the principal " + devPrincipal + ", and may decide"})
	}
	if health != "" {
		facts = append(facts, [2]string{"health", "http://" + health + "/readyz"})
	}
	for _, text := range warnings {
		facts = append(facts, [2]string{"warning", text})
	}
	var b strings.Builder
	b.WriteString("weir dev: all services in one process, for one person: whoever reaches this server may decide\n\n")
	for _, f := range facts {
		fmt.Fprintf(&b, "  %-9s %s\n", f[0], f[1])
	}
	b.WriteString("\nIn another terminal:\n\n")
	for _, line := range s.next(l) {
		b.WriteString("  " + line + "\n")
	}
	b.WriteString("\nctrl-c stops it\n")
	return b.String()
}

func (s devSetup) agents() string {
	if s.file == nil {
		return exampleAgent + " (" + s.model + "), built in: there is no " + defaultFile
	}
	var names []string
	for _, a := range s.file.Agents {
		names = append(names, a.ID+" ("+a.Model+")")
	}
	return orNone(names) + ", from " + s.file.Name
}

// next are the commands that show what this is about.
func (s devSetup) next(l *local) []string {
	server, agentID, prompt := "", exampleAgent, "Refund order 1042"
	if l.opts.Listen != defaultListen {
		server = " --server " + l.server.ClientURL()
	}
	if s.file != nil {
		if len(s.file.Agents) == 0 {
			return []string{"weir doctor" + server}
		}
		agentID, prompt = s.file.Agents[0].ID, "…"
	}
	return []string{
		fmt.Sprintf("weir run%s %s %q", server, agentID, prompt),
		fmt.Sprintf("weir approvals ls%s", server),
		fmt.Sprintf("weir doctor%s", server),
		fmt.Sprintf("nats sub '%s'", s.ns.EveryCall(events.KindAsk)),
	}
}

func toolNames(tools []agent.Tool) []string {
	names := map[string]bool{}
	for _, t := range tools {
		names[t.Manifest().ID] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
