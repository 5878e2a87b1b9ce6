package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/internal/sim"
)

// TestDoctorTellsWhatGatesTell has a gate with a rule that matches nothing, and one whose rules cannot be read: each says so
// in its live entry. The doctor tells it while the gate does, also when the registry looks well again, and once.
func TestDoctorTellsWhatGatesTell(t *testing.T) {
	ghost := events.RuleSet{Name: "default", Rules: []events.Rule{{Name: "ghosts", Tools: []string{"ghost"}, Action: events.RuleAsk}}}
	raw, err := events.Marshal(ghost)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ stored, want string }{
		"matches nothing": {string(raw), `rule ghosts of set default: no tool matches "ghost"`},
		"unreadable":      {`{"name":"default","rules":[{"name":"ghosts","action":"ask","unless":"true"}]}`, "so nothing passes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := sim.New(t, sim.Options{Gate: func(c *approval.Config) { c.ID = "gate-1" }})
				apply := func() {
					if err := w.Conn().PutNamed(t.Context(), events.RegistryRule, "default", []byte(test.stored)); err != nil {
						t.Fatal(err)
					}
				}
				apply()
				w.Start(approval.Name)
				time.Sleep(time.Second) // fake
				if err := w.Conn().DeleteNamed(t.Context(), events.RegistryRule, "default"); err != nil {
					t.Fatal(err)
				}
				told := rulesByGates(t, w)
				if len(told) != 1 || told[0].Level != levelWarn || !strings.HasPrefix(told[0].Text, "gate gate-1: ") ||
					!strings.Contains(told[0].Text, test.want) || told[0].Do == "" {
					t.Errorf("while the gate tells: %+v", told)
				}
				time.Sleep(2 * time.Minute) // fake
				if told := rulesByGates(t, w); len(told) != 0 {
					t.Errorf("when all is well: %+v", told)
				}
			})
		})
	}
}

// rulesByGates is what the doctor finds about rules that is not well, with what gates tell.
func rulesByGates(t *testing.T, w *sim.World) (told []finding) {
	t.Helper()
	d := &doctor{conn: w.Conn()}
	if err := d.readRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.rules(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range d.found {
		if f.Level != levelOK {
			told = append(told, f)
		}
	}
	return told
}
