package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/gateway"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/internal/service"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// everyService is the name under which weir serve runs all of them in one process.
const everyService = "all"

func newServeCommand(a *app) *cobra.Command {
	var o serveOptions
	var tied bool
	var traces traceFlags
	cmd := &cobra.Command{
		Use: "serve SERVICE", Short: "Run one service: planner, approval, tool-executor or gateway", Args: cobra.ExactArgs(1),
		ValidArgs: append(slices.Clone(servable), everyService),
		Long: `Run one service, or all of them in one process. Each scales by adding processes. Streams are only verified: make them
with weir stream provision.

planner        asks the models, which weir.yaml or the environment name
approval       the gate: decides which calls run, wait or end; needs a key, see weir keys new
tool-executor  runs released calls of the tools and MCP servers in weir.yaml, and of the built-in tools that its agents
               name; needs the public keys of all gates
gateway        answers HTTP: Mastra's routes, and Weir's own. Each request needs an API token (see weir tokens --help), whose
               owner is a principal with "auth: gateway" in weir.yaml; the gateway signs what it decides, so it needs a key,
               and the gates its public key. With --open PRINCIPAL nobody logs in and everybody is that principal: on
               loopback only

all stands for planner, approval and tool-executor, and for the gateway too when it has a key.`,
		Example: `  weir serve planner --gate-public-key U…
  weir serve approval --gate-key gate.nk
  weir serve tool-executor -f weir.yaml --pool billing --gate-public-key U…
  weir serve gateway --listen 0.0.0.0:4111 --gateway-key gateway.nk --gate-public-key U…
  weir serve approval --gate-key gate.nk --gateway-public-key U…`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if tied {
				var cancel context.CancelFunc
				ctx, cancel = untilInputEnds(ctx, a.in)
				defer cancel()
			}
			o.what, o.lookup, o.log, o.dial = args[0], a.lookup, a.logger(slog.LevelWarn), a.dialService
			trace, end, err := traces.start(ctx, a.lookup, o.log)
			if err != nil {
				return err
			}
			defer end()
			a.trace = trace
			return serve(ctx, o, a.out)
		},
	}
	cmd.Flags().StringVarP(&o.file, "file", "f", "", "file of models and tools (default weir.yaml, if it is there)")
	cmd.Flags().StringVar(&o.keyFile, "gate-key", "", "nkey seed file with which the gate signs")
	cmd.Flags().StringSliceVar(&o.gateKeys, "gate-public-key", nil, "public keys of gates whose releases count: of calls that executors run, and that planners delegate")
	cmd.Flags().StringVar(&o.http.Listen, "listen", gateway.DefaultListen, "where the gateway listens")
	cmd.Flags().StringVar(&o.gatewayKey, "gateway-key", "", "nkey seed file with which the gateway signs for whom it has logged in")
	cmd.Flags().StringSliceVar(&o.gatewayKeys, "gateway-public-key", nil, "public keys of gateways that may decide for whom they have logged in")
	cmd.Flags().StringVar(&o.http.Open, "open", "", "principal that everybody is who reaches the gateway: no login, on loopback only")
	cmd.Flags().StringSliceVar(&o.http.Hosts, "host", nil, "names under which the gateway is reached, besides its address; with --open others are refused")
	cmd.Flags().StringVar(&o.pool, "pool", "", "pool of the executor (default: each that has tools in the file)")
	cmd.Flags().DurationVar(&o.retention, "retention", 0, "how long the log keeps runs (default: the file's, else 24h)")
	cmd.Flags().DurationVar(&o.lease, "lease", 0, "how long a claim is respected once its worker is gone (default 30s)")
	defineAdmin(cmd, &o.admin)
	defineTraces(cmd, &traces)
	defineTied(cmd, &tied)
	return cmd
}

// dialService connects a service, whose log is kept.
func (a *app) dialService(ctx context.Context, name string, ns events.Namespace) (*jetstream.Conn, error) {
	o := a.options()
	o.Trace = a.trace
	o.Name, o.Log, o.Namespace = name, a.logger(slog.LevelWarn).With("service", name), cmp.Or(o.Namespace, ns)
	try, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	conn, err := jetstream.Connect(try, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.where(), err)
	}
	return conn, nil
}

// serveOptions are the flags of weir serve.
type serveOptions struct {
	what        string // a service, or all
	dial        func(ctx context.Context, name string, ns events.Namespace) (*jetstream.Conn, error)
	file        string
	keyFile     string   // of the gate
	gateKeys    []string // public keys of gates
	http        gateway.Config
	gatewayKey  string   // of the gateway
	gatewayKeys []string // public keys of gateways
	pool        string   // of the executor; empty: every pool that has tools in the file
	retention   time.Duration
	lease       time.Duration
	admin       string
	lookup      config.Lookup
	log         *slog.Logger
}

// services are those that the argument names.
func (o serveOptions) services() ([]string, error) {
	switch {
	case o.what == everyService:
		if o.gatewayKey != "" {
			return servable, nil
		}
		return allServices, nil
	case slices.Contains(servable, o.what):
		return []string{o.what}, nil
	}
	return nil, usagef("there is no service %q: use %s or %s", o.what, strings.Join(servable, ", "), everyService)
}

// serve runs services until ctx ends. It changes no stream: one that is not as it must be is an error.
func serve(ctx context.Context, o serveOptions, out io.Writer) error {
	services, err := o.services()
	if err != nil {
		return err
	}
	cfg, err := o.config(services)
	if err != nil {
		return err
	}
	health, err := listenAdmin(ctx, o.admin)
	if err != nil {
		return err
	}
	defer health.Close()
	w, err := newWorker(ctx, cfg, services...)
	if err != nil {
		return err
	}
	if err := w.Verify(ctx); err != nil {
		w.close()
		return err
	}
	health.worker.Store(w)
	_, _ = fmt.Fprintln(out, o.banner(w, health.Addr()))
	return service.All(ctx, w.Run, health.Run)
}

// banner says what runs here.
func (o serveOptions) banner(w *worker, health string) string {
	var names []string
	for _, p := range w.parts {
		name := p.name
		if p.pool != "" {
			name += " of pool " + p.pool
		}
		names = append(names, name)
	}
	text := "weir serve: " + strings.Join(names, ", ")
	if addr := w.gateway(); addr != "" {
		text += "; HTTP on http://" + addr
	}
	if health != "" {
		text += "; health on http://" + health + "/readyz"
	}
	if o.http.Open != "" && w.gateway() != "" {
		text += "\nWARNING: nobody logs in: whoever reaches " + w.gateway() + " on this machine is " + o.http.Open
	}
	return text
}

// config reads what the services need from file, flags and environment.
func (o serveOptions) config(services []string) (workerConfig, error) {
	file, err := loadFile(o.file, o.lookup)
	if err != nil {
		return workerConfig{}, err
	}
	cfg := workerConfig{Retention: retentionIn(file), Lease: o.lease, Pools: settingsIn(file).Pools, Log: o.log}
	if o.retention > 0 {
		cfg.Retention = o.retention
	}
	ns := namespaceOf(file)
	cfg.Dial = func(ctx context.Context, name string) (*jetstream.Conn, error) { return o.dial(ctx, name, ns) }
	if slices.Contains(services, planner.Name) {
		if cfg.Models, err = modelsOf(file, o.lookup); err != nil {
			return cfg, err
		}
	}
	if err := o.addKeys(&cfg, services); err != nil {
		return cfg, err
	}
	if slices.Contains(services, toolexecutor.Name) {
		err = o.addTools(&cfg, file)
	}
	return cfg, err
}

// addKeys reads the key of the gate, and the public keys of the gates whose releases count.
func (o serveOptions) addKeys(cfg *workerConfig, services []string) error {
	publics := slices.Clone(o.gateKeys)
	if slices.Contains(services, approval.Name) {
		if o.keyFile == "" {
			return usagef("the gate needs a key to sign with: make one with weir keys new FILE, and name it with --gate-key FILE")
		}
		key, err := jetstream.LoadKey(o.keyFile)
		if err != nil {
			return err
		}
		cfg.Key = &key
		publics = append(publics, key.Public)
	}
	for _, of := range []struct{ service, needs string }{
		{toolexecutor.Name, "an executor needs the public keys of the gates whose releases it may run"},
		{planner.Name, "a planner needs the public keys of the gates whose delegations count"},
	} {
		if slices.Contains(services, of.service) && len(publics) == 0 {
			return usagef("%s: --gate-public-key U…", of.needs)
		}
	}
	var err error
	if cfg.GateKeys, err = publicKeys(publics...); err != nil {
		return usagef("--gate-public-key: %v", err)
	}
	return o.addGateway(cfg, services)
}

// addGateway reads the key of the gateway, and the public keys of the gateways whose decisions count.
func (o serveOptions) addGateway(cfg *workerConfig, services []string) (err error) {
	publics := slices.Clone(o.gatewayKeys)
	if slices.Contains(services, gateway.Name) {
		cfg.Gateway = o.http
		cfg.Gateway.GateKeys = cfg.GateKeys
		switch {
		case o.gatewayKey != "":
			key, err := jetstream.LoadKey(o.gatewayKey)
			if err != nil {
				return err
			}
			cfg.Gateway.Key = &key
			publics = append(publics, key.Public)
		case o.http.Open == "":
			return usagef("the gateway needs a key to sign with for whom it has logged in: make one with weir keys new FILE, name it " +
				"with --gateway-key FILE, and give its public key to the gates with --gateway-public-key")
		}
	}
	if cfg.Gateways, err = publicKeys(publics...); err != nil {
		return usagef("--gateway-public-key: %v", err)
	}
	return nil
}

// addTools adds those that this process hosts.
func (o serveOptions) addTools(cfg *workerConfig, file *config.File) (err error) {
	if cfg.Tools, err = toolsIn(file); err != nil {
		return err
	}
	if cfg.MCP, err = serversIn(file); err != nil {
		return err
	}
	where := "-f names no weir.yaml, and there is none here"
	if file != nil {
		where = file.Name
	}
	if o.pool != "" {
		cfg.Tools, cfg.MCP, where = toolsOf(cfg.Tools, o.pool), serversOf(cfg.MCP, o.pool), where+", pool "+o.pool
	}
	if len(cfg.Tools)+len(cfg.MCP) == 0 {
		return fmt.Errorf("there are no tools to host (%s)", where)
	}
	return nil
}
