package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/config"
)

// row is a command and the group under which help shows it.
type row struct {
	group string
	make  func(*app) *cobra.Command
}

// Groups of commands.
const (
	groupUse   = "use"
	groupServe = "serve"
	groupOther = "other"
)

var groups = []*cobra.Group{
	{ID: groupUse, Title: "Use:"},
	{ID: groupServe, Title: "Serve and look after:"},
	{ID: groupOther, Title: "Other:"},
}

// stdio is what a process is given by the one that starts it.
type stdio struct {
	in       io.Reader
	out, err io.Writer
	lookup   config.Lookup // of the environment
}

// app is one call of the program: its flags, and what commands share. Commands may use it once they run, not before:
// then flags and environment are read.
type app struct {
	stdio
	flags
	started bool             // flags and arguments are as they should be
	lines   *bufio.Reader    // of in; see readLine
	trace   jetstream.Tracer // of a service; nil: nothing is traced
}

// run is the whole program. The result is its exit code.
func run(ctx context.Context, args []string, io stdio) int {
	a := &app{stdio: io}
	root := newRootCommand(a)
	root.SetArgs(args)
	return a.finish(root.ExecuteContext(ctx))
}

const rootHelp = `Weir runs the tool calls of agents as events on NATS JetStream, and holds back the calls that people must approve.

Where the bus is, and as whom to connect, is said by flags, by the environment names of the nats command (NATS_URL,
NATS_CONTEXT, NATS_CREDS, …) and by its selected context, in this order. Without all of them it is nats://127.0.0.1:4222,
where "weir dev" listens.

Text on a terminal is for people. Piped, tables have no head and tabs between their columns, and nothing is said that is
not a result. With -o json every command prints JSON of one shape, which its help names; errors are JSON too, on the
standard error.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 suspended and waiting for a decision, 4 refused, 5 not found.`

const rootExample = `  weir dev                                     everything in one process
  weir run support "Refund order 1042"         in another terminal
  weir approvals ls                            what waits for people
  weir approvals approve <toolCallId>`

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use: "weir", Short: "Agents' tool calls over NATS JetStream, with human approval", Long: rootHelp, Example: rootExample,
		SilenceErrors: true, SilenceUsage: true, // finish prints errors, once
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateRequiredFlags(); err != nil { // cobra looks at them later only, when it is no usage error
				return err
			}
			a.started = true
			return a.readEnvironment(a.lookup)
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.AddGroup(groups...)
	a.define(root)
	for _, r := range commands {
		cmd := r.make(a)
		cmd.GroupID = r.group
		root.AddCommand(cmd)
	}
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	return root
}

// parent makes a command that only holds others.
func parent(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("there is no command %q: see %s --help", cmd.CommandPath()+" "+args[0], cmd.CommandPath())
		}
		return cmd.Help()
	}
	cmd.AddCommand(children...)
	return cmd
}

// connect connects to the bus in the namespace of the flags.
func (a *app) connect(ctx context.Context) (*jetstream.Conn, error) { return a.dial(ctx, "cli", "") }

// dial connects as a service of that name. The namespace of the flags, when one is given, wins over ns.
func (a *app) dial(ctx context.Context, name string, ns events.Namespace) (*jetstream.Conn, error) {
	o := a.options()
	o.Name, o.Log = "weir-"+name, a.logger(slog.LevelError)
	if o.Namespace == "" {
		o.Namespace = ns
	}
	try, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	conn, err := jetstream.Connect(try, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.where(), err)
	}
	return conn, nil
}

// where names the bus for messages to people.
func (a *app) where() string {
	switch {
	case a.server != "":
		return "NATS at " + a.server
	case a.context != "":
		return "NATS context " + a.context
	}
	return "NATS at nats://" + defaultListen + ` (none was named; "weir dev" starts one)`
}

// client connects as a client; stop closes both.
func (a *app) client(ctx context.Context) (c *client.Client, stop func(), err error) {
	cfg, err := a.clientConfig()
	if err != nil {
		return nil, nil, err
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	cfg.Log = a.logger(slog.LevelError)
	c = client.New(conn, cfg)
	return c, func() { //nolint:contextcheck // closing bounds itself
		c.Close()
		_ = conn.Close() // it never fails
	}, nil
}

// clientConfig is in whose name requests are made.
func (a *app) clientConfig() (client.Config, error) {
	cfg := client.Config{Principal: a.principal, LiveOnly: a.liveOnly, Service: "cli"}
	if cfg.Principal == "" { // as in a container, which has no such variable
		system, err := user.Current()
		if err != nil || system.Username == "" {
			return cfg, usagef("in whose name? Say --principal or set WEIR_PRINCIPAL")
		}
		cfg.Principal = system.Username
	}
	if a.signKey != "" {
		key, err := jetstream.LoadKey(a.signKey)
		if err != nil {
			return cfg, err
		}
		cfg.Key = &key
	}
	if a.gateKeys != "" {
		keys, err := publicKeys(strings.Split(a.gateKeys, ",")...)
		if err != nil {
			return cfg, usagef("--gate-keys: %v", err)
		}
		cfg.GateKeys = keys
	}
	return cfg, nil
}

// logger writes to the standard error from a level on, from debug on with --verbose: for people on a terminal, else JSON.
func (a *app) logger(level slog.Level) *slog.Logger {
	if a.verbose {
		level = slog.LevelDebug
	}
	if isTerminal(a.err) {
		return slog.New(tint.NewTextHandler(a.err, &tint.Options{Level: level, TimeFormat: "15:04:05.000"}))
	}
	return slog.New(slog.NewJSONHandler(a.err, &slog.HandlerOptions{Level: level}))
}

// interactive reports whether a person can be asked.
func (a *app) interactive() bool { return isTerminal(a.in) && isTerminal(a.out) && !a.json }

// isTerminal reports whether people sit behind a stream. Tests have streams that say so themselves.
func isTerminal(stream any) bool {
	if t, ok := stream.(interface{ Terminal() bool }); ok {
		return t.Terminal()
	}
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device too, and nobody sits there
	return err != nil || !os.SameFile(info, null)
}

// selectedContext is the one that the nats command has selected, if any.
func selectedContext(lookup config.Lookup) string {
	dir, ok := lookup("XDG_CONFIG_HOME")
	if !ok || dir == "" {
		home, ok := lookup("HOME")
		if !ok || home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	name, err := os.ReadFile(filepath.Join(dir, "nats", "context.txt")) //nolint:gosec // where the nats command keeps it
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
