package imports

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weirkeeper/weir"

// everything stands for all packages of ours that are part of the product.
const everything = "*"

// ours is the import table: package → the packages of ours that it may import. A package without a row fails, and
// so the table cannot rot; a row may be there before its package.
//
// Four sentences to remember: services never import services; only jetstream talks NATS; agent never imports
// jetstream; cmd is the only place that knows all.
var ours = map[string][]string{
	"schemas": {},
	"events":  {"schemas"},

	"jetstream":               {"events"},
	"jetstream/embedded":      {},
	"jetstream/jetstreamtest": {"events", "jetstream", "jetstream/embedded"},

	"services/agent":           {"events"},
	"services/agent/agenttest": {"events", "services/agent"},
	"services/tools":           {"events", "services/agent", "services/internal/egress"}, // models say what is fetched
	"services/models": {
		"events", "services/agent", "services/models/anthropic", "services/models/google", "services/models/openai",
		"services/models/responses",
		"services/models/scripted",
	},
	"services/models/anthropic": {"events", "services/agent", "services/models/internal/adapter"},
	"services/models/google":    {"events", "services/agent", "services/models/internal/adapter"},
	"services/models/modeltest": {"events", "services/agent"},
	"services/models/openai":    {"events", "services/agent", "services/models/internal/adapter"},
	"services/models/responses": {"events", "services/agent", "services/models/internal/adapter", "services/models/openai"},
	"services/models/scripted":  {"events", "services/agent"},

	"services/models/internal/adapter": {"events", "services/agent"},

	"services/client": {"events", "jetstream"},
	"services/planner": {
		"events", "jetstream", "services/agent", "services/internal/jq",
		"services/internal/lru", "services/internal/rule", "services/internal/service", "services/internal/telemetry",
		"services/internal/toolsearch", "services/internal/transform",
	},
	"services/approval": {
		"events", "jetstream", "services/internal/jq", "services/internal/judge", "services/internal/lru",
		"services/internal/rule", "services/internal/service", "services/internal/telemetry",
		"services/internal/toolsearch", "services/internal/transform",
	},
	"services/toolexecutor": {
		"events", "jetstream", "services/agent", "services/internal/egress",
		"services/internal/jq", "services/internal/lru", "services/internal/service", "services/internal/telemetry",
		"services/internal/transform",
	},
	"services/toolexecutor/tooltest": {"events", "services/agent"},
	"services/gateway": {
		"events", "services/client", "services/gateway/console", "services/internal/rule",
		"services/internal/service", "services/internal/telemetry",
	},
	"services/gateway/console": {
		"events", "services/client", "services/internal/rule", "services/internal/service",
		"services/internal/telemetry",
	},

	"services/internal/acceptance": {},
	"services/internal/config": {
		"events", "services/agent", "services/internal/egress", "services/internal/jq", "services/internal/judge",
		"services/internal/rule", "services/models", "services/tools",
	},
	"services/internal/egress":     {},
	"services/internal/imports":    {},
	"services/internal/jq":         {},
	"services/internal/judge":      {"events", "services/internal/rule"}, // the gate's judgement, for tests of rules too
	"services/internal/lru":        {},
	"services/internal/rule":       {},
	"services/internal/service":    {},
	"services/internal/sim":        {everything},
	"services/internal/story":      {},
	"services/internal/telemetry":  {},
	"services/internal/toolsearch": {"events", "services/agent", "services/internal/judge", "services/internal/rule"},
	"services/internal/transform":  {"events", "services/internal/jq", "services/internal/lru", "services/internal/rule"},

	"services/internal/egress/egresstest": {"services/internal/egress"},

	"services/cmd/weir": {everything},
}

// testkits are packages for tests that are not test files. Only they may import each other and what is meant for
// tests; the product never links them.
var testkits = []string{
	"jetstream/jetstreamtest", "services/agent/agenttest", "services/internal/egress/egresstest", "services/internal/sim",
	"services/internal/story", "services/models/modeltest", "services/toolexecutor/tooltest",
}

// owners says who may import what from outside: module or package prefix → packages, or single files, of ours. The
// longest prefix counts, so a row for a package of a module narrows the row of the module. What has no row is not
// imported at all: a new module needs a row, one owner and a reason.
var owners = map[string][]string{
	"github.com/nats-io/nats.go":                 {"jetstream", "jetstream/embedded", "jetstream/jetstreamtest"},
	"github.com/nats-io/nats-server/v2":          {"jetstream/embedded"},
	"github.com/nats-io/nkeys":                   {"jetstream"},
	"github.com/nats-io/jwt/v2":                  {"jetstream"},
	"github.com/synadia-io/orbit.go":             {},
	"github.com/synadia-io/orbit.go/natscontext": {"jetstream"},

	"github.com/cloudevents/sdk-go/v2":         {}, // its client and transports would be a second NATS
	"github.com/cloudevents/sdk-go/v2/event":   {"events"},
	"github.com/cloudevents/sdk-go/v2/types":   {"events"},
	"github.com/santhosh-tekuri/jsonschema/v5": {"events", "services/agent"},
	"github.com/invopop/jsonschema":            {"services/agent"},

	"cel.dev/cel-go":            {"services/internal/rule"},
	"github.com/itchyny/gojq":   {"services/internal/jq"},
	"go.yaml.in/yaml/v3":        {"services/internal/config"},
	"github.com/spf13/cobra":    {"services/cmd/weir"},
	"github.com/lmittmann/tint": {"services/cmd/weir"},

	"github.com/openai/openai-go/v3":            {}, // the root package alone costs 18 MiB
	"github.com/openai/openai-go/v3/responses":  {"services/models/openai"},
	"github.com/anthropics/anthropic-sdk-go/v2": {"services/models/anthropic"},
	"google.golang.org/genai":                   {"services/models/google"},

	"github.com/modelcontextprotocol/go-sdk": {
		"services/toolexecutor/mcp.go", "services/toolexecutor/mcp_ask.go", "services/toolexecutor/mcp_call.go",
		"services/toolexecutor/mcp_conn.go", "services/gateway/mcp.go",
	},
	"github.com/coreos/go-oidc/v3": {"services/gateway/auth.go"},
	"golang.org/x/oauth2":          {"services/gateway/auth.go"},
	"go.opentelemetry.io":          {"services/internal/telemetry"},
	"github.com/prometheus":        {"services/internal/telemetry"},

	"golang.org/x/text/encoding/htmlindex": {"services/tools"}, // charsets of web pages

	"github.com/google/go-cmp":          testkits,
	"pgregory.net/rapid":                testkits,
	"github.com/anishathalye/porcupine": testkits,
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if _, ok := ours[s.pkg]; !ok {
			t.Errorf("%s: package %s has no row in the import table", s.path, s.pkg)
			continue
		}
		if s.isTest() {
			continue
		}
		for _, spec := range s.file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := refuse(s.path, name); why != "" {
				t.Errorf("%s:%d: %s", s.path, s.line(spec), why)
			}
		}
	}
}

// refuse says why a file may not import a package, or nothing.
func refuse(file, imported string) string {
	pkg := path.Dir(file)
	if isStd(imported) {
		return ""
	}
	if within(imported, module) {
		return refuseOurs(pkg, strings.TrimPrefix(strings.TrimPrefix(imported, module), "/"))
	}
	row := ""
	for prefix := range owners {
		if within(imported, prefix) && len(prefix) > len(row) {
			row = prefix
		}
	}
	if row == "" {
		return fmt.Sprintf("%s is in no row: who owns it, and why ten lines of our own are not enough", imported)
	}
	if !slices.Contains(owners[row], pkg) && !slices.Contains(owners[row], file) {
		return fmt.Sprintf("%s imports %s, which belongs to %v", pkg, imported, owners[row])
	}
	return ""
}

func refuseOurs(pkg, imported string) string {
	if slices.Contains(testkits, imported) && !slices.Contains(testkits, pkg) {
		return fmt.Sprintf("%s imports %s, which is for tests", pkg, imported)
	}
	if slices.Contains(ours[pkg], everything) || slices.Contains(ours[pkg], imported) {
		return ""
	}
	return fmt.Sprintf("%s imports %s, which its row does not list", pkg, imported)
}

// isStd tells standard packages by the dot that the first element of every other path has.
func isStd(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// within tells whether a path is the prefix or below it: nats.go/jetstream is within nats.go, nats.golang is not.
func within(imported, prefix string) bool {
	return imported == prefix || strings.HasPrefix(imported, prefix+"/")
}

// TestRefuse shows that the table can fail: each rule refuses its breach and lets its neighbour pass.
func TestRefuse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		file, imported string
		refused        bool
	}{
		{"schemas/schemas.go", "embed", false},
		{"events/event.go", module + "/schemas", false},
		{"schemas/schemas.go", module + "/events", true},
		{"services/agent/agent.go", module + "/jetstream", true},
		{"services/planner/planner.go", module + "/services/approval", true},
		{"services/cmd/weir/serve.go", module + "/services/approval", false},
		{"services/cmd/weir/serve.go", module + "/jetstream/jetstreamtest", true},
		{"services/internal/sim/sim.go", module + "/jetstream/jetstreamtest", false},
		{"services/new/new.go", module + "/events", true},
		{"events/event.go", module, true},
		{"jetstream/conn.go", "github.com/nats-io/nats.go/jetstream", false},
		{"services/client/client.go", "github.com/nats-io/nats.go", true},
		{"jetstream/conn.go", "github.com/nats-io/nats.golang", true},
		{"jetstream/conn.go", "github.com/nats-io/nats-server/v2/server", true},
		{"events/event.go", "github.com/cloudevents/sdk-go/v2/event", false},
		{"events/event.go", "github.com/cloudevents/sdk-go/v2/client", true},
		{"services/toolexecutor/mcp.go", "github.com/modelcontextprotocol/go-sdk/mcp", false},
		{"services/toolexecutor/execute.go", "github.com/modelcontextprotocol/go-sdk/mcp", true},
		{"services/planner/loop.go", "pgregory.net/rapid", true},
		{"services/client/client.go", "github.com/stretchr/testify/assert", true},
	}
	for _, test := range tests {
		if why := refuse(test.file, test.imported); (why != "") != test.refused {
			t.Errorf("refuse(%s, %s) = %q, want refused = %v", test.file, test.imported, why, test.refused)
		}
	}
}

// TestTable checks the table itself: rows name rows, and nobody imports in a circle.
func TestTable(t *testing.T) {
	t.Parallel()
	for pkg, row := range ours {
		for _, imported := range row {
			if _, ok := ours[imported]; !ok && imported != everything {
				t.Errorf("row %s lists %s, which has no row", pkg, imported)
			}
			if slices.Contains(ours[imported], pkg) {
				t.Errorf("rows %s and %s list each other", pkg, imported)
			}
		}
	}
	for prefix, row := range owners {
		for _, owner := range row {
			pkg := owner
			if path.Ext(owner) == ".go" {
				pkg = path.Dir(owner)
			}
			if _, ok := ours[pkg]; !ok {
				t.Errorf("%s belongs to %s, which has no row", prefix, owner)
			}
		}
	}
}
