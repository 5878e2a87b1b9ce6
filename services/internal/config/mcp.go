package config

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// MCPServer is a server of tools. How it is reached never leaves the process.
type MCPServer struct {
	ID   string
	Exec *Exec // one of the two
	HTTP *HTTP

	Effects                        map[string]events.Effect // by raw names of tools; * for all others
	RequireToolApproval            *events.Approval
	Pool                           string
	Timeout, StartTimeout, Expires time.Duration
}

// serverForm keeps ids of servers apart from names of tools in rules and ids.
var serverForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

var mcpKeys = []string{
	"type", "url", "headers", "allow", "command", "args", "env", "cwd", "effects", "requireToolApproval", "pool", "timeout",
	"startTimeout", "expires",
}

// mcpPassed are variables that programs of servers get unless env lists what is passed on: most do not start without.
var mcpPassed = []string{"HOME", "PATH"}

// readMCPServers reads the section mcpServers, in the shape that other programs read too.
func (o object) readMCPServers(f *File) {
	for _, p := range o.r.entries(o.fields["mcpServers"], "mcpServers") {
		if !serverForm.MatchString(p.name) {
			o.r.fail(p.key, join("mcpServers", p.name), "want 1 to 64 letters, digits, _ or - as the id of a server")
			continue
		}
		s := o.r.object(p.value, join("mcpServers", p.name), mcpKeys...)
		def := MCPServer{
			ID: p.name, Effects: s.effects(), RequireToolApproval: s.approval("requireToolApproval"), Pool: s.text("pool"),
			Timeout: s.duration("timeout"), StartTimeout: s.duration("startTimeout"), Expires: s.duration("expires"),
		}
		s.connection(f, &def)
		s.checkLimits(f, def)
		f.MCPServers = append(f.MCPServers, def)
	}
}

// connection reads how a server is reached: by url or by command.
func (o object) connection(f *File, def *MCPServer) {
	kind := o.choice("type", "stdio", "http", "streamable-http")
	web, program := o.has("url"), o.has("command")
	switch {
	case web && program:
		o.r.fail(o.node, o.path, "has url and command; a server is reached by one of the two")
	case web:
		def.HTTP = o.mcpWeb()
	case program:
		def.Exec = o.mcpProgram(f)
	default:
		o.r.fail(o.node, o.path, "has neither url nor command")
	}
	if kind != "" && web != program && web != (kind != "stdio") {
		o.fail("type", "is %q, which does not fit to the rest", kind)
	}
	wrong := map[bool][]string{true: {"args", "env", "cwd"}, false: {"headers", "allow"}}[web]
	for _, key := range wrong {
		if o.has(key) && web != program {
			o.fail(key, "has no meaning here")
		}
	}
}

func (o object) mcpWeb() *HTTP {
	def := &HTTP{URL: o.text("url"), Headers: o.headers(), Allow: o.texts("allow")}
	for name := range def.Headers {
		if ownHeader.MatchString(name) {
			o.r.fail(o.find("headers."+name), join(o.sub("headers"), name), "is set by the request itself")
		}
	}
	o.checkAllow(def)
	if !o.r.problems.about(o.path) {
		o.reachable(def)
	}
	return def
}

func (o object) mcpProgram(f *File) *Exec {
	def := &Exec{Command: append([]string{o.text("command")}, o.texts("args")...), Dir: o.text("cwd")}
	if def.Command[0] == "" && !o.r.problems.about(o.sub("command")) {
		o.fail("command", "names no program")
	}
	def.Dir = f.within(def.Dir)
	o.env(def)
	if def.Pass == nil {
		for _, name := range mcpPassed {
			if _, given := def.Env[name]; !given {
				def.Pass = append(def.Pass, name)
				o.r.refer(o.node, o.path, name, false)
			}
		}
	}
	return def
}

// effects reads what running a call of each tool twice would do.
func (o object) effects() map[string]events.Effect {
	if !o.has("effects") {
		return nil
	}
	list := o.r.pairs(o.fields["effects"], o.sub("effects"))
	all := make(map[string]events.Effect, len(list))
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.name
	}
	e := o.r.object(o.fields["effects"], o.sub("effects"), names...)
	for _, name := range names {
		all[name] = events.Effect(e.choice(name, "read_only", "idempotent", "effectful"))
	}
	return all
}

func (o object) checkLimits(f *File, def MCPServer) {
	if o.has("pool") && !o.r.problems.about(o.sub("pool")) && !slices.Contains(f.Pools, def.Pool) {
		o.fail("pool", "there is no pool %q%s (pools are named in pools)", def.Pool, suggest(def.Pool, f.Pools))
	}
	if !o.has("pool") && !slices.Contains(f.Pools, events.DefaultPool) {
		o.r.fail(o.node, o.path, "names no pool, and there is no pool %q", events.DefaultPool)
	}
	for key, d := range map[string]time.Duration{"timeout": def.Timeout, "startTimeout": def.StartTimeout} {
		if d > f.half() && !o.r.problems.about(o.sub(key)) {
			o.fail(key, "%s is more than half of the retention, %s", d, 2*f.half())
		}
	}
}

// acceptMCP accepts what the file's servers list now: the tools of each are used as they are, until one changes. What
// nobody has listed yet is accepted when it is listed first. The texts tell of tools that are others than before.
func (f *File) acceptMCP(ctx context.Context, store Store, there map[string][]byte) (list []Applied, notes []string, err error) {
	for _, s := range f.MCPServers {
		var record events.MCPServer
		body, known := there[events.Token(s.ID)]
		if known && json.Unmarshal(body, &record) != nil {
			record = events.MCPServer{} // what nobody can read is replaced
		}
		record.ID = s.ID
		next, changed := record.Accept()
		raw, err := events.Marshal(next)
		if err != nil {
			return list, notes, fmt.Errorf("encode mcp server %s: %w", s.ID, err)
		}
		a, err := definition{kind: events.RegistryMCP, id: s.ID, body: raw}.apply(ctx, store, there)
		if err != nil {
			return list, notes, err
		}
		list = append(list, a)
		slices.Sort(changed)
		for _, name := range changed {
			notes = append(notes, fmt.Sprintf("mcpServers.%s: the tool %q is new or has changed, and is accepted as it is now", s.ID, name))
		}
	}
	return list, notes, nil
}

// listedTools are the tools that servers have listed, and the servers of which nobody has heard.
func (f *File) listedTools(there map[string][]byte) (tools []rule.Tool, unheard []string) {
	for _, s := range f.MCPServers {
		var record events.MCPServer
		if body := there[events.Token(s.ID)]; body == nil || json.Unmarshal(body, &record) != nil || record.Listed == nil {
			unheard = append(unheard, s.ID)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(record.Listed)) {
			tools = append(tools, rule.Tool{ID: record.Listed[name].ToolID, Kind: "mcp", Server: s.ID, Name: name})
		}
	}
	return tools, unheard
}

// mayBeOf reports whether a name or a pattern may stand for a tool of a server that nobody has listed.
func mayBeOf(server, name string) bool {
	rest, ofMCP := strings.CutPrefix(name, "mcp:")
	if !ofMCP {
		return strings.HasPrefix(name, server+"_")
	}
	pattern, _, _ := strings.Cut(rest, "/")
	return rule.Matches(pattern, server)
}
