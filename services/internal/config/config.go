// Package config reads weir.yaml: the models, agents, tools, rules and principals of an installation. The published
// JSON Schema of the file is schemas/config.json; a test holds reader and schema together.
//
//	file, err := config.Load("weir.yaml", os.LookupEnv) // err is an *Error: everything that is wrong, with its place
//	report, err := config.Apply(ctx, conn, file, nil)
//
// What the package promises:
//
//   - Strict: unknown keys, doubled keys and values of another type are refused, never guessed.
//   - Whole: all problems are told at once, in the order of the file, with line and column.
//   - No secrets in what is applied: ${NAME} is read in the fields made for it only (apiKey, headers, env), the texts
//     of a [File] keep the reference, and the values are in its [Secrets]. The package reads no environment itself.
//   - What services would refuse later is refused now: expressions, schemas, names, models, addresses.
package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
)

// DefaultRetention is how long the log keeps runs when the file does not say.
const DefaultRetention = 24 * time.Hour

// maxFile bounds the size of a file.
const maxFile = 4 << 20

// File is what a weir.yaml says. Nothing in it but Secrets holds a value of the environment.
type File struct {
	Name      string           // of the file
	Namespace events.Namespace // default "default"

	// How long the streams keep what they hold. Zero: their defaults.
	Retention, AuditRetention, ChunkRetention time.Duration

	Pools      []string // default: "default" alone
	Models     []Model
	Agents     []events.AgentDef
	Tools      []ToolDef
	Builtins   []string // ids of the built-in tools that agents name and Tools does not define, sorted
	MCPServers []MCPServer
	Rules      []events.RuleSet
	Principals []events.PrincipalDef

	Secrets Secrets
	// Warnings are what may be right, but looks like a mistake: tools, agents and principals that the file does not know,
	// which the registry may, and variables that are not set.
	Warnings Problems

	other      Problems // warnings that the registry does not settle
	references []reference

	transform *events.TransformPolicy // of agents that have none
}

// ToolDef is a tool that needs no code of ours. Its manifest is complete; how it runs never leaves the process.
type ToolDef struct {
	Manifest events.Manifest
	Exec     *Exec // one of the three, or none: clients execute the tool
	HTTP     *HTTP
	NATS     *NATS
}

// Exec is a program that is a tool.
type Exec struct {
	Command []string
	Dir     string            // a relative one in the file starts at the file's folder; default: that folder
	Env     map[string]string // with references; see [Secrets.Environ]
	Pass    []string          // variables that are passed on when they are set
}

// HTTP is a request to a server that is a tool.
type HTTP struct {
	Method  string // default POST
	URL     string
	Headers map[string]string // with references; see [Secrets.Headers]
	Allow   []string
	Timeout time.Duration // zero: that of the tool
}

// NATS is a request to a NATS service of others that is a tool.
type NATS struct {
	Subject string
	Headers map[string]string // with references; see [Secrets.Headers]
	Timeout time.Duration     // zero: that of the tool
}

// Load reads a file. The error is an [*Error], unless the file cannot be read at all.
func Load(path string, lookup Lookup) (*File, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data, lookup)
}

// Parse reads the text of a file that has a name. A nil lookup resolves nothing, for uses that need no secret.
func Parse(name string, data []byte, lookup Lookup) (*File, error) {
	r := &reader{
		file: name, lookup: lookup, left: maxNodes,
		secrets: Secrets{values: map[string]string{}, places: map[string]string{}},
	}
	f := &File{Name: name}
	root := r.root(data)
	f.settings(root)
	models := root.readModels(f)
	root.readTools(f)
	root.readMCPServers(f)
	f.transform = root.policy(f)
	root.readAgents(f, models)
	f.addBuiltins()
	root.readPrincipals(f)
	root.readRules(f)
	if len(r.problems) > 0 {
		return nil, &Error{r.problems.sorted()}
	}
	missing, odd := f.unmatched(f.inFile())
	f.Secrets, f.other = r.secrets, r.warnings
	f.Warnings = slices.Concat(f.other, missing, odd).sorted()
	return f, nil
}

var sections = []string{
	"namespace", "retention", "auditRetention", "chunkRetention", "pools", "models", "agents", "tools", "mcpServers", "rules", "principals",
	"transform",
}

// root reads the outermost mapping. An empty file is an empty one.
func (r *reader) root(data []byte) object {
	doc := r.document(data)
	if doc == nil {
		return object{r: r}
	}
	return r.object(doc, "", sections...)
}

func (f *File) settings(o object) {
	f.Namespace = events.DefaultNamespace
	if o.has("namespace") {
		ns, err := events.ParseNamespace(o.text("namespace"))
		if err != nil && !o.r.problems.about("namespace") {
			o.fail("namespace", "want 1 to 32 lower-case letters, digits and hyphens")
		}
		f.Namespace = ns
	}
	f.Retention = o.duration("retention")
	f.AuditRetention = o.duration("auditRetention")
	f.ChunkRetention = o.duration("chunkRetention")
	f.Pools = o.texts("pools")
	for i, pool := range f.Pools {
		path := fmt.Sprintf("pools[%d]", i)
		switch {
		case !poolForm.MatchString(pool):
			o.r.fail(o.find(fmt.Sprintf("pools.%d", i)), path, "want 1 to 64 letters, digits, _ or -, got %q", pool)
		case slices.Index(f.Pools, pool) < i:
			o.r.fail(o.find(fmt.Sprintf("pools.%d", i)), path, "the pool %q is named twice", pool)
		}
	}
	if len(f.Pools) == 0 {
		f.Pools = []string{events.DefaultPool}
	}
}

// half is the longest that a released or running call may wait: what is open must not age out.
func (f *File) half() time.Duration { return cmp.Or(f.Retention, DefaultRetention) / 2 }

// within is a path of the file, which starts at its folder unless it is absolute.
func (f *File) within(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(f.folder(), path)
}

// folder is where relative paths of the file start.
func (f *File) folder() string { return filepath.Dir(f.Name) }
