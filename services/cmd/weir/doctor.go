package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func newDoctorCommand(a *app) *cobra.Command {
	var o streamOptions
	var gateKeys []string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong, and say what to do about it", Args: cobra.NoArgs,
		Long: `Look for what is wrong, and say what to do about it: connection and clocks, streams and consumers, durability,
services and their keys, agents whose tools nobody hosts, rules that match nothing, calls in doubt, dead letters, and what
the user is not allowed to do. It changes nothing. With an error among the findings the exit code is 1.

JSON: {"findings": [{"level": "ok|warning|error", "check", "text", "do"}]}.`,
		Example: `  weir doctor
  weir doctor --gate-public-key U… -o json | jq '.findings[] | select(.level == "error")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.lookup = a.lookup
			return a.doctor(cmd.Context(), o, gateKeys)
		},
	}
	o.define(cmd)
	cmd.Flags().StringSliceVar(&gateKeys, "gate-public-key", nil, "public keys of the gates that should be there")
	return cmd
}

// doctor prints the findings.
func (a *app) doctor(ctx context.Context, o streamOptions, gateKeys []string) error {
	settings, file, err := o.settings()
	if err != nil {
		return err
	}
	keys, err := publicKeys(gateKeys...)
	if err != nil {
		return usagef("--gate-public-key: %v", err)
	}
	var found []finding
	if conn, err := a.dial(ctx, "doctor", namespaceOf(file)); err != nil {
		found = []finding{{levelError, "connection", err.Error(), "start the server, or name it with --server, --context or NATS_URL"}}
	} else {
		defer hangUp(conn)
		d := &doctor{conn: conn, settings: settings, gateKeys: keys}
		found = d.examine(ctx)
	}
	if err := a.print(struct {
		Findings []finding `json:"findings"`
	}{found}, func(io.Writer) { a.table(findingHead, findingRows(found)) }); err != nil {
		return err
	}
	for _, f := range found {
		if f.Level == levelError {
			return &exit{code: exitFailed}
		}
	}
	return nil
}

var findingHead = []string{"", "CHECK", "FINDING"}

// findingRows are the findings as a table; what to do stands below what it is about.
func findingRows(found []finding) (rows [][]string) {
	for _, f := range found {
		rows = append(rows, []string{f.Level, f.Check, f.Text})
		if f.Do != "" {
			rows = append(rows, []string{"", "", "→ " + f.Do})
		}
	}
	return rows
}

// Levels of findings, the worst last.
const (
	levelOK    = "ok"
	levelWarn  = "warning"
	levelError = "error"
)

// finding is one thing that the doctor has looked at.
type finding struct {
	Level string `json:"level"` // ok, warning or error
	Check string `json:"check"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // what to do about it
}

// Bounds of what is looked at.
const (
	maxSkew    = time.Second // between this clock and the server's
	maxBacklog = 1000        // deliveries that a consumer may be behind
	maxSigned  = 20          // asks whose signatures are looked at
)

// doctor examines an installation. Each check writes its findings, and goes on after an error.
type doctor struct {
	conn     *jetstream.Conn
	settings jetstream.Settings
	gateKeys events.Keys // that are known to be right; may be empty

	found []finding
	reg   registry
}

// registry is what the registry holds, as far as it can be read.
type registry struct {
	agents map[string]events.AgentDef
	tools  map[string]events.Manifest
	rules  []events.RuleSet
	people map[string]events.PrincipalDef
	live   map[string][]events.Live // by service
}

// checkup is one thing that the doctor looks at.
type checkup struct {
	name string
	look func(*doctor, context.Context) error
}

// checkups are in the order in which a person would look.
var checkups = []checkup{
	{"clock", (*doctor).clock},
	{"streams", (*doctor).streams},
	{"durability", (*doctor).durability},
	{"registry", (*doctor).readRegistry},
	{"services", (*doctor).services},
	{"backlog", (*doctor).backlog},
	{"gate keys", (*doctor).keys},
	{"agents", (*doctor).agents},
	{"rules", (*doctor).rules},
	{"principals", (*doctor).principals},
	{"asks", (*doctor).asks},
	{"dead letters", (*doctor).dead},
	{"permissions", (*doctor).permissions},
}

// examine makes every check.
func (d *doctor) examine(ctx context.Context) []finding {
	for _, c := range checkups {
		before := len(d.found)
		err := c.look(d, ctx)
		for i := range d.found[before:] {
			d.found[before+i].Check = c.name
		}
		if err != nil {
			d.found = append(d.found, finding{levelError, c.name, err.Error(), "mend this first: it hides what comes after it"})
		}
	}
	return d.found
}

func (d *doctor) tell(level, do, format string, args ...any) {
	d.found = append(d.found, finding{Level: level, Text: fmt.Sprintf(format, args...), Do: do})
}
