package config

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/egress"
)

// Forms that schemas/config.json repeats.
var (
	poolForm   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	// ownHeader are headers that a request has by itself.
	ownHeader = regexp.MustCompile(`(?i)^(weir-.*|idempotency-key|content-length|content-type|connection|host|keep-alive|` +
		`proxy-connection|te|trailer|transfer-encoding|upgrade)$`)
)

var toolKeys = []string{
	"title", "description", "version", "inputSchema", "outputSchema", "requestContextSchema", "effect", "requireApproval",
	"pool", "timeout", "startTimeout", "expires", "onExpiry", "maxAttempts", "strict", "providerOptions", "inputExamples",
	"preview", "toModelOutput", "transform", "background", "exec", "http", "nats", "client",
}

// notOfClients are what only a tool has that somebody hosts.
var notOfClients = []string{"requireApproval", "pool", "timeout", "startTimeout", "maxAttempts", "effect", "background"}

// readTools reads the section tools.
func (o object) readTools(f *File) {
	for _, p := range o.r.entries(o.fields["tools"], "tools") {
		t := o.r.object(p.value, join("tools", p.name), toolKeys...)
		def := ToolDef{Manifest: t.manifest(p.name)}
		t.kind(f, &def)
		t.checkTool(f, &def)
		f.Tools = append(f.Tools, def)
	}
}

// kinds of tools that need no code of ours.
var toolKinds = []string{"exec", "http", "nats", "client"}

// kind reads what a tool is: one of its kinds.
func (o object) kind(f *File, def *ToolDef) {
	kinds := slices.DeleteFunc(slices.Clone(toolKinds), func(kind string) bool { return !o.has(kind) })
	switch len(kinds) {
	case 0:
		o.r.fail(o.node, o.path, "has none of exec, http, nats and client; a tool written in Go is registered by its workers")
		return
	case 1:
	default:
		o.r.fail(o.node, o.path, "has %s; a tool is one of them", strings.Join(kinds, " and "))
		return
	}
	def.Manifest.Source.Kind = kinds[0]
	switch kinds[0] {
	case "exec":
		def.Exec = o.exec(f)
	case "http":
		def.HTTP = o.http()
	case "nats":
		def.NATS = o.nats()
	case events.SourceClient:
		o.client()
	}
}

func (o object) manifest(id string) events.Manifest {
	return events.Manifest{
		ID: id, Title: o.text("title"), Description: o.text("description"), Version: o.text("version"),
		InputSchema: o.jsonObject("inputSchema"), OutputSchema: o.jsonObject("outputSchema"),
		RequestContextSchema: o.jsonObject("requestContextSchema"),
		Effect:               events.Effect(o.choice("effect", "read_only", "idempotent", "effectful")),
		RequireApproval:      o.approval("requireApproval"), Pool: o.text("pool"),
		Timeout: events.Duration(o.duration("timeout")), StartTimeout: events.Duration(o.duration("startTimeout")),
		Expires: events.Duration(o.duration("expires")), OnExpiry: o.choice("onExpiry", events.OnExpiryDecline, events.OnExpiryFail),
		MaxAttempts: o.count("maxAttempts"), Strict: o.on("strict"), ProviderOptions: o.jsonObject("providerOptions"),
		InputExamples: o.json("inputExamples"), Preview: o.preview(),
		ToModelOutput: o.toModelOutput(), Transform: o.transform(), Background: o.background(),
	}
}

// client checks a tool that the clients of runs execute.
func (o object) client() {
	if !o.on("client") && !o.r.problems.about(o.sub("client")) {
		o.fail("client", "want true; leave it out for a tool that is executed here")
	}
	for _, key := range notOfClients {
		if o.has(key) {
			text := "is not for a client tool, which nobody hosts"
			if key == "requireApproval" {
				text = "a client tool has no approval of its own; hold its calls by a rule"
			}
			o.fail(key, "%s", text)
		}
	}
}

// preview reads how people are shown what a call would do. A function can be had in Go only.
func (o object) preview() json.RawMessage {
	if !o.has("preview") {
		return nil
	}
	p := o.r.object(o.fields["preview"], o.sub("preview"), "template")
	p.require("template")
	raw, err := events.Marshal(events.PreviewForm{Template: p.code("template")})
	if err != nil || p.r.problems.about(p.path) || p.r.problems.about(p.sub("template")) {
		return nil
	}
	return raw
}

// checkTool completes and checks a tool as its host will.
func (o object) checkTool(f *File, def *ToolDef) {
	for _, key := range []string{"version", "pool"} {
		if o.has(key) && o.text(key) == "" && !o.r.problems.about(o.sub(key)) {
			o.fail(key, "must not be empty")
		}
	}
	def.Manifest = agent.Complete(def.Manifest)
	m := def.Manifest
	o.issues(agent.Check(described{manifest: m}))
	if !slices.Contains(f.Pools, m.Pool) && !o.r.problems.about(o.sub("pool")) {
		o.fail("pool", "there is no pool %q%s (pools are named in pools)", m.Pool, suggest(m.Pool, f.Pools))
	}
	for key, d := range map[string]events.Duration{"timeout": m.Timeout, "startTimeout": m.StartTimeout} {
		if time.Duration(d) > f.half() && !o.r.problems.about(o.sub(key)) {
			o.fail(key, "%s is more than half of the retention, %s", time.Duration(d), 2*f.half())
		}
	}
}

// described is a tool without code, to be checked.
type described struct {
	agent.Tool

	manifest events.Manifest
}

// Manifest is the manifest.
func (d described) Manifest() events.Manifest { return d.manifest }

func (o object) exec(f *File) *Exec {
	e := o.r.object(o.fields["exec"], o.sub("exec"), "command", "cwd", "env")
	def := &Exec{Command: e.texts("command"), Dir: e.text("cwd")}
	e.require("command")
	if len(def.Command) == 0 && e.has("command") && !o.r.problems.about(e.sub("command")) {
		e.fail("command", "names no program")
	}
	def.Dir = f.within(def.Dir)
	e.env(def)
	return def
}

// env reads an environment: a list of variables that are passed on, or a mapping of names to texts with references.
func (o object) env(def *Exec) {
	if !o.has("env") {
		return
	}
	n := real(o.fields["env"])
	if n.Kind == yaml.SequenceNode {
		def.Pass = o.texts("env")
		for i, name := range def.Pass {
			path := fmt.Sprintf("%s[%d]", o.sub("env"), i)
			at := o.find(fmt.Sprintf("env.%d", i))
			o.r.variable(at, path, name)
			o.r.refer(at, path, name, false)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		o.fail("env", "want a list of variables that are passed on, or a mapping of names to values, got %s", kindOf(n))
		return
	}
	list := o.r.pairs(n, o.sub("env"))
	def.Env = make(map[string]string, len(list))
	for _, p := range list {
		path := join(o.sub("env"), p.name)
		o.r.variable(p.key, path, p.name)
		def.Env[p.name] = o.r.secret(p.value, path)
		if strings.ContainsRune(def.Env[p.name], 0) {
			o.r.fail(p.value, path, "has a NUL character")
		}
	}
}

func (r *reader) variable(n *yaml.Node, path, name string) {
	if !variable(name) {
		r.fail(n, path, "%q is not a name of a variable", name)
	}
}

func (o object) http() *HTTP {
	h := o.r.object(o.fields["http"], o.sub("http"), "method", "url", "headers", "allow", "timeout")
	h.require("url")
	def := &HTTP{
		Method: h.choice("method", http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete),
		URL:    h.text("url"), Headers: h.headers(), Allow: h.texts("allow"), Timeout: h.duration("timeout"),
	}
	h.notOwn(def.Headers)
	h.checkAllow(def)
	if !h.r.problems.about(h.path) {
		h.reachable(def)
	}
	return def
}

// notOwn refuses headers that a request has by itself.
func (o object) notOwn(headers map[string]string) {
	for name := range headers {
		if ownHeader.MatchString(name) {
			o.r.fail(o.find("headers."+name), join(o.sub("headers"), name), "is set by the request itself")
		}
	}
}

// serverHeader are headers that tell streams and clients what to do.
var serverHeader = regexp.MustCompile(`(?i)^nats-`)

func (o object) nats() *NATS {
	n := o.r.object(o.fields["nats"], o.sub("nats"), "subject", "headers", "timeout")
	n.require("subject")
	def := &NATS{Subject: n.text("subject"), Headers: n.headers(), Timeout: n.duration("timeout")}
	n.notOwn(def.Headers)
	for name := range def.Headers {
		if serverHeader.MatchString(name) {
			n.r.fail(n.find("headers."+name), join(n.sub("headers"), name), "is for the server")
		}
	}
	if n.has("subject") && !n.r.problems.about(n.sub("subject")) {
		if err := events.CheckForeign(def.Subject); err != nil {
			n.fail("subject", "%v", err)
		}
	}
	return def
}

func (o object) checkAllow(def *HTTP) {
	for i, entry := range def.Allow {
		if _, err := egress.ParseEntry(entry); err != nil {
			o.r.fail(o.find(fmt.Sprintf("allow.%d", i)), fmt.Sprintf("%s[%d]", o.sub("allow"), i), "%v", err)
		}
	}
}

// reachable checks the address of a tool as far as its text tells.
func (o object) reachable(def *HTTP) {
	if text := urlProblem(def.URL); text != "" {
		o.fail("url", "%s", text)
		return
	}
	u, err := url.Parse(def.URL)
	if err != nil {
		return // a problem above
	}
	guard, err := egress.New(def.Allow...)
	if err == nil {
		err = guard.CheckURL(u)
	}
	if err != nil {
		o.fail("url", "%v; list it in allow if it is meant", err)
	}
}

// urlProblem says what is wrong with a URL. It does not quote it: it may hold what it should not.
func urlProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "want a URL that begins with http:// or https://"
	case u.User != nil:
		return "a URL must not hold a user or a password; send a header"
	}
	return ""
}
