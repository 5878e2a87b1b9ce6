package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/approval"
	"github.com/weirkeeper/weir/services/models"
	"github.com/weirkeeper/weir/services/planner"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// A story is a file of testdata/script: prose, then the section -- story --, which is what somebody types and sees, then
// files that the story needs. In the section a line is
//
//	$ weir …      a command; quotes as in a shell, $WORK is the folder of the files, $GATE the gate's public key
//	< …           a line that is typed: then a person sits at the terminal
//	> …           a line on the standard output
//	2> …          a line on the standard error
//	! 3           the exit code, when it is not 0
//	# …           a remark
//	= NAME=…      a variable of the environment, from here on
//
// A file rules.json is a set of rules that is in force from the beginning.
//
// In what is seen, … stands for any text of a line, and a line that is only … for any number of lines. Every story has a
// NATS server and services of its own, with the agents support and clerk.
var stories = flag.String("weir.stories", "*", "glob of the stories to run")

func TestStories(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "script", *stories+".txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := newStory(t, path, string(text))
			for _, c := range s.commands {
				s.play(c)
			}
		})
	}
}

// command is a line that is typed, and what is seen then.
type command struct {
	line          int
	args          []string
	env           map[string]string // that is set before it
	typed         []string
	out, err      []string
	code          int
	atTheTerminal bool
}

type story struct {
	t        *testing.T
	path     string
	commands []command
	env      map[string]string
}

func newStory(t *testing.T, path, text string) *story {
	t.Helper()
	sections, lines := sectionsOf(text)
	url, gate := startStoryServer(t, sections["rules.json"])
	s := &story{t: t, path: path, env: map[string]string{
		"NATS_URL": url, "WEIR_PRINCIPAL": "alice", "XDG_CONFIG_HOME": t.TempDir(),
	}}
	work := t.TempDir()
	for name, content := range sections {
		if name == "story" {
			continue
		}
		if err := os.WriteFile(filepath.Join(work, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.parse(strings.NewReplacer("$WORK", work, "$GATE", gate).Replace(sections["story"]), lines["story"])
	if len(s.commands) == 0 {
		t.Fatalf("%s: no command in the section -- story --", path)
	}
	return s
}

var sectionHead = regexp.MustCompile(`^-- (\S+) --$`)

// sectionsOf splits a story file; lines are the numbers of the first lines of the sections.
func sectionsOf(text string) (sections map[string]string, lines map[string]int) {
	sections, lines = map[string]string{}, map[string]int{}
	name, n := "", 0
	for line := range strings.Lines(text) {
		n++
		if m := sectionHead.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			name = m[1]
			lines[name] = n + 1
			continue
		}
		sections[name] += line
	}
	delete(sections, "")
	return sections, lines
}

func (s *story) parse(text string, first int) {
	n, env := first-1, map[string]string{}
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		mark, rest, _ := strings.Cut(line, " ")
		if mark == "$" {
			args := fields(rest)
			if len(args) == 0 || args[0] != "weir" {
				s.t.Fatalf("%s:%d: a command begins with weir", s.path, n)
			}
			s.commands = append(s.commands, command{line: n, args: args[1:], env: maps.Clone(env)})
			continue
		}
		if mark == "=" {
			name, value, _ := strings.Cut(rest, "=")
			env[name] = value
			continue
		}
		if line == "" || mark == "#" {
			continue
		}
		if len(s.commands) == 0 {
			s.t.Fatalf("%s:%d: nothing has been typed yet", s.path, n)
		}
		c := &s.commands[len(s.commands)-1]
		switch mark {
		case "<":
			c.typed, c.atTheTerminal = append(c.typed, rest), true
		case ">":
			c.out = append(c.out, rest)
		case "2>":
			c.err = append(c.err, rest)
		case "!":
			if _, err := fmt.Sscan(rest, &c.code); err != nil {
				s.t.Fatalf("%s:%d: %v", s.path, n, err)
			}
		default:
			s.t.Fatalf("%s:%d: %q is no line of a story", s.path, n, line)
		}
	}
}

// fields splits a command line; single and double quotes hold words together.
func fields(line string) (words []string) {
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// screenOf is a stream of a story: a terminal, or not.
type screenOf struct {
	io.Reader
	*bytes.Buffer
	terminal bool
}

func (s screenOf) Terminal() bool { return s.terminal }

// Read tells apart the two embedded readers.
func (s screenOf) Read(b []byte) (int, error) { return s.Reader.Read(b) }

func (s *story) play(c command) {
	s.t.Helper()
	typed := strings.Join(append(c.typed, ""), "\n")
	var out, errs bytes.Buffer
	io := stdio{
		in:  screenOf{Reader: strings.NewReader(typed), terminal: c.atTheTerminal},
		out: screenOf{Buffer: &out, terminal: c.atTheTerminal},
		err: screenOf{Buffer: &errs, terminal: c.atTheTerminal},
		lookup: func(name string) (string, bool) {
			if v, ok := c.env[name]; ok {
				return v, true
			}
			v, ok := s.env[name]
			return v, ok
		},
	}
	code := run(s.t.Context(), c.args, io)
	where := fmt.Sprintf("%s:%d: weir %s", s.path, c.line, strings.Join(c.args, " "))
	if code != c.code {
		s.t.Fatalf("%s\nexit code %d, want %d\n%s%s", where, code, c.code, out.String(), errs.String())
	}
	s.compare(where+"\nstandard output", c.out, out.String())
	s.compare(where+"\nstandard error", c.err, errs.String())
}

func (s *story) compare(what string, want []string, got string) {
	s.t.Helper()
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range want {
		if line == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*") + `\n`)
	}
	pattern.WriteString(`\z`)
	if got != "" && !strings.HasSuffix(got, "\n") {
		got += "\n"
	}
	if !regexp.MustCompile(pattern.String()).MatchString(got) {
		s.t.Errorf("%s is\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
	}
}

// storyClerk is a model that calls tools as it is told to.
const storyClerk = `{"rules":[
	{"when":{"user":"(?s)^\\{\"calls\":\\[\\{\"toolCallId\":\"(?P<call>[^\"]+)\".*\"message\":\"(?P<city>[A-Z][a-z]+)\"\\}$","before":["*"]},
		"say":"{\"answers\":[{\"toolCallId\":{{json .call}},\"resumeData\":{\"name\":{{json .city}}}}]}"},
	{"when":{"user":"^\\{\"calls\":"},"say":"{\"answers\":[]}"},
	{"when":{"user":"^pay two$","before":["*"]},"calls":[
		{"tool":"issue_refund","args":{"orderId":"1","amount":1}},{"tool":"issue_refund","args":{"orderId":"2","amount":2}}]},
	{"when":{"user":"^pay exactly$","before":["*"]},"calls":[
		{"tool":"issue_refund","args":{"orderId":"1","amount":12345678901234567.10}}]},
	{"when":{"user":"^pay$","before":["*"]},"calls":[{"tool":"issue_refund","args":{"orderId":"1","amount":1}}]},
	{"when":{"user":"^city$","before":["*"]},"calls":[{"tool":"ask_city","args":{}}]},
	{"when":{"user":"^fail$"},"fail":{"status":400,"message":"no"}},
	{"say":"Done."}]}`

type storyOrder struct {
	OrderID string  `json:"orderId"`
	Amount  float64 `json:"amount"`
}

type storyCity struct {
	Name string `json:"name"`
}

func storyTools() []agent.Tool {
	return []agent.Tool{
		agent.NewTool("lookup_order", "Look up an order",
			func(_ context.Context, _ *agent.Call, in struct {
				OrderID string `json:"orderId"`
			},
			) (storyOrder, error) {
				return storyOrder{OrderID: in.OrderID, Amount: 612.5}, nil
			}, &agent.ToolOptions{Effect: agent.ReadOnly}),
		agent.NewTool("issue_refund", "Refund an order",
			func(_ context.Context, _ *agent.Call, in storyOrder) (storyOrder, error) { return in, nil },
			&agent.ToolOptions{RequireApproval: agent.Always()}),
		agent.NewTool("ask_city", "Ask for a city",
			func(_ context.Context, call *agent.Call, _ struct{}) (storyCity, error) {
				if !call.Resumed() {
					return storyCity{}, call.Suspend(map[string]string{"question": "Which city?"})
				}
				return agent.ResumeData[storyCity](call)
			}, &agent.ToolOptions{Effect: agent.ReadOnly, ResumeSchema: json.RawMessage(
				`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}`)}),
	}
}

// startStoryServer starts a server with all services, which may have a set of rules, and gives its URL and the public key of
// its gate.
func startStoryServer(t *testing.T, rules ...string) (url, gateKey string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	srv := jetstreamtest.StartListening(t)
	conn, err := jetstream.Connect(t.Context(), jetstream.Options{InProcess: srv.InProcess()})
	must(err)
	t.Cleanup(func() { _ = conn.Close() })
	must(conn.Ensure(t.Context(), jetstream.Settings{Audit: true}))
	for i, set := range rules {
		if set != "" {
			must(conn.PutNamed(t.Context(), events.RegistryRule, fmt.Sprint("rules", i), []byte(set)))
		}
	}
	key, err := jetstream.NewKey()
	must(err)
	pub, err := jetstream.ParsePublic(key.Public)
	must(err)
	known, err := models.New(models.Config{Models: map[string]models.ModelConfig{
		"scripted/clerk": {Playbook: json.RawMessage(storyClerk)},
	}})
	must(err)
	plan, err := planner.New(conn, planner.Config{Models: known, GateKeys: events.Keys{key.Public: pub}})
	must(err)
	gate, err := approval.New(conn, approval.Config{Key: key, Dev: true})
	must(err)
	exec, err := toolexecutor.New(conn, toolexecutor.Config{Tools: storyTools(), GateKeys: events.Keys{key.Public: pub}})
	must(err)
	must(exec.Register(t.Context()))
	tools := agent.Tools{}
	for _, tool := range storyTools() {
		tools[tool.Manifest().ID] = tool
	}
	for _, id := range []string{"support", "clerk"} {
		def, err := (&agent.Agent{ID: id, Model: "scripted/" + id, Tools: tools}).Def()
		must(err)
		raw, err := events.Marshal(def)
		must(err)
		_, err = conn.PutDef(t.Context(), raw)
		must(err)
		must(conn.PutNamed(t.Context(), events.RegistryAgent, id, raw))
	}
	jetstreamtest.Background(t, plan.Run, gate.Run, exec.Run)
	return srv.ClientURL(), key.Public
}
