package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/internal/story"
)

// A stored run of a release is a story: prose, the definitions that it is pinned to, the facts of its log, and its entry in
// the bucket of suspended runs, all byte for byte. Only signatures are made anew, because their key is nobody's. What a
// release has written stays as it is for ever; a release that changes the form writes one more file.

var capture = flag.Bool("weir.capture", false, "write the stored run of this release, when there is none yet")

const storedRuns = "testdata/resume"

// storedOptions are those of the world of stored runs. The tools have given schemas, so that releases agree on them.
func storedOptions(b **bench, seen *[]string) []agent.Tool {
	const schema = `{"type":"object","properties":{"orderId":{"type":"string"},"amount":{"type":"number"}},"required":["orderId"]}`
	o := func(more agent.ToolOptions) *agent.ToolOptions {
		more.InputSchema, more.OutputSchema = json.RawMessage(schema), json.RawMessage(`{}`)
		return &more
	}
	run := func(name string) func(context.Context, *agent.Call, json.RawMessage) (any, error) {
		return func(_ context.Context, call *agent.Call, in json.RawMessage) (any, error) {
			if name == "pay" && !call.Resumed() {
				return nil, call.Suspend(map[string]any{"question": "Which account?", "limit": json.Number("1.50")})
			}
			(*b).mu.Lock()
			defer (*b).mu.Unlock()
			*seen = append(*seen, fmt.Sprintf("%s %s context %s payload %s", name, in, call.RequestContext(), call.SuspendPayload()))
			(*b).Effects.Add(call.IdempotencyKey())
			return map[string]any{"did": name}, nil
		}
	}
	return []agent.Tool{
		agent.NewTool("lookup", "Look up", run("lookup"), o(agent.ToolOptions{Effect: agent.ReadOnly})),
		agent.NewTool("refund", "Refund", run("refund"), o(agent.ToolOptions{
			RequireApproval: agent.Always(), Preview: agent.PreviewTemplate("refund {{.amount}}"),
		})),
		agent.NewTool("pay", "Pay", run("pay"), o(agent.ToolOptions{
			Effect: agent.Idempotent, ResumeSchema: json.RawMessage(`{"type":"object","properties":{"account":{"type":"string"}},"required":["account"]}`),
		})),
		agent.NewTool("hidden", "Hidden", run("hidden"), o(agent.ToolOptions{})),
	}
}

const storedRun = "stored-run"

func storedCall(step, index int) events.CallID {
	return events.CallID{Run: storedRun, Step: step, Index: index}
}

// TestB10_6_B10_8StoredRunsGoOn takes the stored run of every release into an empty server: it is listed, each of its calls
// is decided, and it ends with today's code, under the options that it began with.
func TestB10_6_B10_8StoredRunsGoOn(t *testing.T) {
	t.Parallel()
	if *capture {
		synctest.Test(t, captureRun)
	}
	files, err := filepath.Glob(filepath.Join(storedRuns, "v*.txtar"))
	if err != nil || len(files) != events.SnapshotVersion {
		t.Fatalf("stored runs of %d versions, want %d: %v (write that of this release with -weir.capture)", len(files), events.SnapshotVersion, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { goOn(t, story.Parse(text)) })
		})
	}
}

func goOn(t *testing.T, s story.Story) {
	t.Helper()
	var b *bench
	var seen []string
	b = newPreviews(t, Options{}, storedOptions(&b, &seen), agenttest.Say("done"))
	b.restore(s)
	b.StartAll()
	c := client.New(b.Conn(), client.Config{Principal: "alice"})
	t.Cleanup(c.Close)
	page, err := c.Suspended(t.Context(), client.Filter{Agent: "support", Resource: "user.456", Thread: "thread 9"})
	b.must(err)
	var listed []string
	for _, r := range page.Runs {
		for _, call := range r.ToolCalls {
			listed = append(listed, fmt.Sprintf("%s %s %s %v %s %s", call.ToolCallID, call.ToolName, call.Args, call.RequiresApproval,
				call.SuspendPayload, call.Ask.Preview))
		}
	}
	if diff := cmp.Diff([]string{
		storedRun + `=2-1 refund {"amount":612.50,"orderId":"o-1"} true  {"text":"refund 612.50"}`,
		storedRun + `=2-2 pay {"orderId":"o-1"} false {"limit":1.50,"question":"Which account?"} `,
	}, listed); diff != "" {
		t.Error(diff)
	}
	b.send("alice", events.ResumeD, storedCall(2, 2), withData(`{"account":"savings"}`))
	b.send("alice", events.Approve, storedCall(2, 1), nil)
	b.completed(storedRun)
	const given = `context {"tenant":"acme","limit":1.50}`
	equal(t, "what the tools saw", sorted(seen), sorted([]string{
		`refund {"amount":612.50,"orderId":"o-1"} ` + given + ` payload `,
		`pay {"orderId":"o-1"} ` + given + ` payload {"limit":1.50,"question":"Which account?"}`,
	}))
	req := b.model.Requests()[0]
	var tools []string
	for _, tool := range req.Tools {
		tools = append(tools, tool.Name)
	}
	equal(t, "instructions and tools", []any{req.Instructions, tools}, []any{"Be brief.", []string{"lookup", "pay", "refund"}})
	var said []string
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			text := p.Text + p.Args
			if p.Output != nil {
				text = string(p.Output.Value)
			}
			said = append(said, fmt.Sprintf("%s %s %s", m.Role, p.ToolName, text))
		}
	}
	if diff := cmp.Diff([]string{
		"user  Refund order o-1", `assistant  I look.`, `assistant lookup {"orderId":"o-1"}`, `tool lookup {"did":"lookup"}`,
		"assistant  I pay it back.", `assistant refund {"orderId":"o-1","amount":612.50}`, `assistant pay {"orderId":"o-1"}`,
		`tool refund {"did":"refund"}`, `tool pay {"did":"pay"}`,
	}, said); diff != "" {
		t.Error(diff)
	}
	keys, err := b.Conn().ListSuspended(t.Context(), "", "", "")
	b.must(err)
	for _, key := range keys {
		if _, err := b.Conn().Listed(t.Context(), key); !errors.Is(err, jetstream.ErrNotFound) {
			t.Errorf("%s is left, %v", key, err)
		}
	}
}

// restore puts a stored run into a server on which nothing has happened yet. Facts get the sequences that they had, because
// they name each other by them.
func (b *bench) restore(s story.Story) {
	b.T.Helper()
	ctx := b.T.Context()
	for def := range bytes.Lines(s.File("definitions")) {
		_, err := b.Conn().PutDef(ctx, bytes.TrimSpace(def))
		b.must(err)
	}
	nc := b.raw()
	last := map[string]events.Event{}
	at := uint64(0)
	for line := range bytes.Lines(s.File("facts")) {
		seq, rest, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		subject, payload, _ := strings.Cut(rest, " ")
		want, err := strconv.ParseUint(seq, 10, 64)
		b.must(err)
		for at++; at < want; at++ {
			_, err := nc.RequestWithContext(ctx, b.Conn().Namespace().Probe("test", seq).Ingest(), nil)
			b.must(err)
		}
		e, err := events.Decode([]byte(payload))
		b.must(err)
		e.Place, err = events.ParsePlace(subject)
		b.must(err)
		e.Payload = []byte(payload)
		if row, _ := events.RowOf(e.Type); row.Domain != "" {
			e.Signature = events.Sign(b.Key, row.Domain, subject, e.Payload)
		}
		guard := events.First(e.Place)
		if prev, ok := last[e.Place.Chain()]; ok {
			guard = events.After(prev)
		}
		done, err := b.Conn().Append(ctx, guard, e)
		b.must(err)
		if done.Outcome != jetstream.Stored || done.Last.Seq != want {
			b.T.Fatalf("%s is stored as %d (%v), want %d", subject, done.Last.Seq, done.Outcome, want)
		}
		last[e.Place.Chain()] = done.Last
	}
	key, value, _ := bytes.Cut(bytes.TrimSpace(s.File("entry")), []byte(" "))
	_, err := nc.RequestWithContext(ctx, "$KV."+b.Conn().Namespace().Store(events.BucketSuspended)+"."+string(key), value)
	b.must(err)
}

// captureRun lets this release make a stored run.
func captureRun(t *testing.T) {
	path := filepath.Join(storedRuns, fmt.Sprintf("v%d.txtar", events.SnapshotVersion))
	if _, err := os.Stat(path); err == nil {
		return
	}
	var b *bench
	var seen []string
	first := asks(callTo("lookup", `{"orderId":"o-1"}`))
	first.Text = "I look."
	second := asks(callTo("refund", `{"orderId":"o-1","amount":612.50}`), callTo("pay", `{"orderId":"o-1"}`))
	second.Text = "I pay it back."
	b = newPreviews(t, Options{}, storedOptions(&b, &seen), first, second)
	copies := b.StartAll()
	b.RequestAs("bob", events.RunRequested{
		AgentID: "support", RunID: storedRun, ThreadID: "thread 9", ResourceID: "user.456", Instructions: new("Be brief."),
		ActiveTools: &[]string{"lookup", "refund", "pay"}, RequestContext: json.RawMessage(`{"tenant":"acme","limit":1.50}`),
		Limits: &events.Limits{Steps: 7}, Messages: events.Prompt{events.TextMessage(events.RoleUser, "Refund order o-1")},
	})
	b.AwaitAsk(storedCall(2, 1), moment)
	b.awaitRound(storedCall(2, 2), 1)
	b.pause(moment / 10)
	for _, c := range copies {
		b.must(c.Stop())
	}
	b.must(os.WriteFile(path, b.stored().Format(), 0o600))
}

// stored is what the world has stored of its one run.
func (b *bench) stored() story.Story {
	b.T.Helper()
	ctx := b.T.Context()
	s := story.Story{Prose: fmt.Appendf(nil, "A run that version %d of the stored state left behind: an order is looked up, its refund "+
		"waits for\nan approval, and a payment that has suspended itself for data. Never change this file.\n\n", events.SnapshotVersion)}
	var facts, defs []byte
	for seq := uint64(0); ; {
		e, err := b.Conn().NextFact(ctx, seq, b.Conn().Namespace().RunAll())
		if errors.Is(err, jetstream.ErrNotFound) {
			break
		}
		if seq = e.Seq; e.Place.Kind == events.KindProbe {
			continue
		}
		b.must(err)
		facts = fmt.Appendf(facts, "%d %s %s\n", e.Seq, e.Place.Subject(), e.Payload)
		if e.Place.Kind != events.KindStart {
			continue
		}
		d, err := events.Data[events.RunStarted](e)
		b.must(err)
		for _, digest := range append([]string{d.Definitions.Agent}, sorted(values(d.Definitions.Tools))...) {
			def, err := b.Conn().Def(ctx, digest)
			b.must(err)
			defs = append(append(defs, def...), '\n')
		}
	}
	keys, err := b.Conn().ListSuspended(ctx, "", "", "")
	b.must(err)
	msg, err := b.js().Stream(ctx, "KV_"+b.Conn().Namespace().Store(events.BucketSuspended))
	b.must(err)
	entry, err := msg.GetLastMsgForSubject(ctx, "$KV."+b.Conn().Namespace().Store(events.BucketSuspended)+"."+keys[0])
	b.must(err)
	s.Files = []story.File{
		{Name: "definitions", Data: defs}, {Name: "facts", Data: facts}, {Name: "entry", Data: fmt.Appendf(nil, "%s %s\n", keys[0], entry.Data)},
	}
	return s
}

func (b *bench) js() natsjs.JetStream {
	b.T.Helper()
	js, err := natsjs.New(b.raw())
	b.must(err)
	return js
}

func values(m map[string]string) (all []string) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}
