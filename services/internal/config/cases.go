package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/judge"
	"github.com/weirkeeper/weir/services/internal/rule"
)

// Case is a case of a file of cases, and where it stands there.
type Case struct {
	judge.Case

	Place string // file, line and column
}

var (
	caseKeys = []string{
		"name", "tool", "toolName", "source", "args", "agent", "run", "context", "annotations", "requireApproval",
		"requireToolApproval", "want",
	}
	caseRunKeys = []string{"id", "requester", "thread", "resource"}
	wantTerms   = []string{"approvers", "quorum", "notRequester", "signed", "expires", "onExpiry", "decisions", "grants"}
)

// LoadCases reads a file of cases for rules. The error is an [*Error], unless the file cannot be read at all.
func LoadCases(path string) ([]Case, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cases: %w", err)
	}
	return ParseCases(path, data)
}

// readFile reads a file of a sane size.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), maxFile)
	}
	return os.ReadFile(path) //nolint:gosec // the operator names the file
}

// ParseCases reads the text of a file of cases that has a name.
func ParseCases(name string, data []byte) ([]Case, error) {
	r := &reader{file: name, left: maxNodes, secrets: Secrets{values: map[string]string{}, places: map[string]string{}}}
	root := object{r: r}
	if doc := r.document(data); doc != nil {
		root = r.object(doc, "", "cases")
	}
	if root.node != nil {
		root.require("cases")
	}
	var list []Case
	lines := map[string]int{}
	for i, n := range root.items("cases") {
		o := r.object(n, fmt.Sprintf("cases[%d]", i), caseKeys...)
		c := o.readCase()
		if line := lines[c.Name]; line > 0 && c.Name != "" {
			o.fail("name", "the name %q is that of the case in line %d", c.Name, line)
		}
		lines[c.Name] = o.node.Line
		list = append(list, Case{c, r.problem(o.node, "", "").Place()})
	}
	if len(list) == 0 && len(r.problems) == 0 {
		r.fail(root.node, "", "there is no case: list them in cases")
	}
	if len(r.problems) > 0 {
		return nil, &Error{r.problems.sorted()}
	}
	return list, nil
}

func (o object) readCase() judge.Case {
	o.require("name", "tool", "want")
	c := judge.Case{
		Name: o.text("name"), Tool: o.text("tool"), ToolName: o.text("toolName"), Source: o.source("source"),
		Args: o.jsonObject("args"), AgentID: o.text("agent"), Context: o.jsonObject("context"),
		Annotations: o.jsonObject("annotations"), RequireApproval: o.approval("requireApproval"),
		RequireToolApproval: o.approval("requireToolApproval"),
	}
	for _, key := range []string{"name", "tool"} {
		if o.has(key) && o.text(key) == "" && !o.r.problems.about(o.sub(key)) {
			o.fail(key, "must not be empty")
		}
	}
	if o.has("run") {
		run := o.r.object(o.fields["run"], o.sub("run"), caseRunKeys...)
		c.Run = judge.Run{ID: run.text("id"), Requester: run.text("requester"), Thread: run.text("thread"), Resource: run.text("resource")}
	}
	if o.has("want") {
		c.Want = o.r.object(o.fields["want"], o.sub("want"), append([]string{"action", "rule"}, wantTerms...)...).want()
	}
	return c
}

// source reads where a tool's code is: a kind, or mcp:<server>/<name>.
func (o object) source(key string) (s events.Source) {
	text := o.text(key)
	if !o.has(key) || o.r.problems.about(o.sub(key)) {
		return s
	}
	kinds := []string{"go", "http", "exec", "nats", "builtin", "client"}
	server, name, ok := strings.Cut(strings.TrimPrefix(text, "mcp:"), "/")
	switch {
	case strings.HasPrefix(text, "mcp:") && ok && server != "" && name != "":
		return events.Source{Kind: "mcp", Server: server, Name: name}
	case slices.Contains(kinds, text):
		return events.Source{Kind: text}
	}
	o.fail(key, "want %s or mcp:<server>/<tool>, got %q", strings.Join(kinds, ", "), text)
	return s
}

func (o object) want() judge.Want {
	o.require("action")
	w := judge.Want{
		Action: rule.Action(o.choice("action", string(rule.Allow), string(rule.Ask), string(rule.Block))), Rule: o.text("rule"),
		NotRequester: o.flag("notRequester"), Signed: o.flag("signed"), Grants: o.flag("grants"),
		Quorum: o.countTo("quorum", maxQuorum), Decisions: o.decisions("decisions"),
		Expires:  events.Duration(o.duration("expires")),
		OnExpiry: o.choice("onExpiry", events.OnExpiryDecline, events.OnExpiryFail, events.OnExpiryEscalate),
	}
	if o.has("approvers") && len(o.items("approvers")) == 0 {
		w.Approvers = []string{} // everybody
	} else {
		w.Approvers = o.people("approvers", &File{})
	}
	for _, key := range wantTerms {
		if o.has(key) && (w.Action == rule.Allow || w.Action == rule.Block) {
			o.fail(key, "is of a call that people are asked about; this one wants action: %s", w.Action)
		}
	}
	own := []string{"requireApproval", "requireToolApproval", judge.NoRule}
	if o.has("rule") && !o.r.problems.about(o.sub("rule")) && !slices.Contains(own, w.Rule) && !strings.Contains(w.Rule, "/") {
		o.fail("rule", "want <set>/<rule>, requireApproval, requireToolApproval or %s, got %q", judge.NoRule, w.Rule)
	}
	return w
}

// Definitions are the tools and agents of a file, for cases that name them.
func (f *File) Definitions() judge.Definitions {
	d := judge.Definitions{Tools: map[string]events.Manifest{}, Agents: map[string]events.AgentDef{}}
	for _, t := range f.Tools {
		d.Tools[t.Manifest.ID] = t.Manifest
	}
	for _, m := range f.builtins() {
		d.Tools[m.ID] = m
	}
	for _, a := range f.Agents {
		d.Agents[a.ID] = a
	}
	return d
}

// RuleSets are the file's rule sets as apply stores them, by the names under which it does.
func (f *File) RuleSets() (map[string][]byte, error) {
	stored := map[string][]byte{}
	for _, set := range f.Rules {
		raw, err := events.Marshal(set)
		if err != nil {
			return nil, fmt.Errorf("encode rule set %s: %w", set.Name, err)
		}
		stored[events.Token(set.Name)] = raw
	}
	return stored, nil
}
