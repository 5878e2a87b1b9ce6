package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

// canary is in every secret of these tests.
const canary = "CaNaRy"

// Schemas of a tool with secrets everywhere.
const (
	secretInput = `{"type":"object","properties":{"user":{"type":"string"},"password":{"type":"string","writeOnly":true,"maxLength":40},
		"card":{"x-weir-secret":true,"type":"object"},"how":{"type":"string"}},"required":["password"]}`
	secretOutput  = `{"type":"object","properties":{"token":{"type":"string","x-weir-secret":true}}}`
	secretSuspend = `{"properties":{"pin":{"writeOnly":true}}}`
	secretResume  = `{"type":"object","properties":{"code":{"type":"string","writeOnly":true}},"required":["code"]}`
)

type login struct {
	User     string          `json:"user"`
	Password string          `json:"password"`
	Card     json.RawMessage `json:"card"`
	How      string          `json:"how"`
}

// vault is a tool that tells its secrets in every way that it has.
func vault(b **bench, preview *agent.Preview) agent.Tool {
	return agent.NewTool("vault", "Logs in", func(ctx context.Context, call *agent.Call, in login) (any, error) {
		(*b).mu.Lock()
		(*b).seen["vault"] = append((*b).seen["vault"], in.Password+string(call.SuspendPayload()))
		(*b).mu.Unlock()
		if err := call.Write(ctx, "trying "+in.Password); err != nil {
			return nil, err
		}
		if err := call.Custom(ctx, "data-try", map[string]string{in.Password: "with " + in.Password}, nil); err != nil {
			return nil, err
		}
		switch {
		case in.How == "error":
			return nil, agent.Errorf("denied", "no login with %s and %s", in.Password, in.Card)
		case in.How == "slow":
			<-ctx.Done()
			return nil, agent.Errorf("slow", "still at it with %s", in.Password)
		case in.How == "panic":
			panic("no login with " + in.Password)
		case in.How == "suspend" && !call.Resumed():
			return nil, call.Suspend(map[string]string{"pin": canary + "-pin", "hint": "it is not " + in.Password})
		case in.How == "suspend":
			code, err := agent.ResumeData[map[string]string](call)
			return nil, errors.Join(err, agent.Errorf("denied", "no login with %s", code["code"]))
		case in.How == "breaks":
			return map[string]any{"token": 7, canary + "-key": 1}, nil
		}
		return map[string]any{"token": canary + "-token", "said": "you are in with " + canary + "-token, not " + in.Password}, nil
	}, &agent.ToolOptions{
		InputSchema: json.RawMessage(secretInput), OutputSchema: json.RawMessage(secretOutput), SuspendSchema: json.RawMessage(secretSuspend),
		ResumeSchema: json.RawMessage(secretResume), RequireApproval: agent.Always(), Effect: agent.Idempotent, Preview: preview, Timeout: 20 * time.Second,
	})
}

// tap hears everything that is published and keeps what more people read than the log.
type tap struct {
	mu    sync.Mutex
	heard []string
}

func (l *tap) listen(t *testing.T, b *bench) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(b.Server.InProcess()))
	b.must(err)
	t.Cleanup(nc.Close)
	ns := b.Conn().Namespace()
	for _, subject := range []string{
		ns.Chunks(), ns.Live("*"), ns.EveryCall(events.KindAsk), ns.EveryCall(events.KindAnswer),
		strings.Replace(ns.Notes("x"), ".x.", ".*.", 1),
	} {
		_, err := nc.Subscribe(subject, l.hear)
		b.must(err)
	}
	return nc
}

func (l *tap) hear(m *nats.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = append(l.heard, m.Subject+" "+string(m.Data)+fmt.Sprint(m.Header))
}

// stored is every message of every stream that may hold no secret, and every value of such buckets.
func stored(t *testing.T, b *bench, nc *nats.Conn) (all []string) {
	t.Helper()
	js, err := natsjs.New(nc)
	b.must(err)
	list := js.ListStreams(t.Context())
	streams := 0
	for info := range list.Info() {
		name := info.Config.Name
		switch strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "KV_"), "OBJ_"), "weir_default_") {
		case events.StreamRuns, events.StreamAudit, events.BucketBlobs, events.BucketSuspended:
			continue
		}
		streams++
		stream, err := js.Stream(t.Context(), name)
		b.must(err)
		for seq := max(info.State.FirstSeq, 1); seq <= info.State.LastSeq; seq++ {
			m, err := stream.GetMsg(t.Context(), seq)
			if errors.Is(err, natsjs.ErrMsgNotFound) {
				continue
			}
			b.must(err)
			all = append(all, m.Subject+" "+string(m.Data)+fmt.Sprint(m.Header))
		}
	}
	b.must(list.Err())
	if streams < 7 {
		t.Errorf("only %d streams and buckets were looked at", streams)
	}
	return all
}

// TestSecretsStayInTheLog puts canaries into arguments, results, errors, panics, suspensions, previews and decisions of
// every kind. None of them is heard or found outside of the log, its copy, the blobs and the snapshots; the tool gets
// each exactly. (SECURITY 7, Secrets; I13; SEC-1, which wants transforms besides)
func TestSecretsStayInTheLog(t *testing.T) {
	for name, preview := range map[string]*agent.Preview{
		"template": agent.PreviewTemplate("login of {{.user}} with {{.password}}"),
		"function": agent.PreviewFunc(func(_ context.Context, _ *agent.Call, in login) (any, error) {
			return map[string]any{"as": in.User, "with": in.Password, in.Password: in.Card}, nil
		}),
	} {
		t.Run(name, func(t *testing.T) { inCase(t, func(t *testing.T) { secretsStay(t, preview) }) })
	}
}

func secretsStay(t *testing.T, preview *agent.Preview) {
	t.Helper()
	var logged bytes.Buffer
	arg := func(how, more string) string {
		return fmt.Sprintf(`{"user":"ann","password":"%s-%s","card":{"no":"%s-card","cvc":4711},"how":%q%s}`, canary, how, canary, how, more)
	}
	hows := []string{"ok", "error", "panic", "slow", "suspend", "breaks", "decline", "respond", "edit", "kept"}
	var calls []agenttest.ToolCall
	for _, how := range hows {
		calls = append(calls, callTo("vault", arg(how, "")))
	}
	var b *bench
	b = newPreviews(t, Options{
		Log: slog.New(slog.NewJSONHandler(&locked{w: &logged}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Rules: map[string]events.RuleSet{"r": {Name: "r", Rules: []events.Rule{
			{Name: "fails", When: "int(args.password) > 0", Action: events.RuleAsk},
		}}},
	}, []agent.Tool{vault(&b, preview)},
		asks(calls...),
		asks(
			callTo("vault", `{"password":"`+canary+strings.Repeat("x", 60)+`","how":7}`), callTo("vault", `{"password":{"is":"`+canary+`"}}`),
			callTo("vault", `{"password":"`+canary+`","password":"`+canary+`"}`), callTo("vault", `{"password":"`+canary),
		), agenttest.Say("done"))
	ear := &tap{}
	nc := ear.listen(t, b)
	b.startHosted()
	run := b.Request("go")
	at := map[string]events.CallID{}
	for i, how := range hows {
		at[how] = b.call(run, 1, i+1)
		secretAsk(t, b.AwaitAsk(at[how], moment), how)
	}
	refused := b.send("alice", events.Approve, at["ok"], func(d *events.DecisionRequested) { d.Fingerprint = "sha256:00" })
	equal(t, "refusal", b.refusal(at["ok"], refused).Code, events.CodeChanged)
	for _, how := range []string{"ok", "error", "panic", "slow", "suspend", "breaks"} {
		b.send("alice", events.Approve, at[how], nil)
	}
	b.send("alice", events.Decline, at["decline"], because("not today"))
	b.send("alice", events.Respond, at["respond"], func(d *events.DecisionRequested) { d.Result = json.RawMessage(`{"token":"` + canary + `-mine"}`) })
	b.send("alice", events.Edit, at["edit"], func(d *events.DecisionRequested) {
		d.Args = json.RawMessage(arg("new", `,"note":"x"`))
	})
	// What stays masked stays as it was; the rest is edited.
	b.send("alice", events.Edit, at["kept"], func(d *events.DecisionRequested) {
		d.Args = json.RawMessage(strings.Replace(string(b.AwaitAsk(at["kept"], moment).Args), `"ann"`, `"bob"`, 1))
	})
	for _, how := range []string{"edit", "kept"} {
		b.awaitRound(at[how], 1)
		b.send("alice", events.Approve, at[how], nil)
	}
	suspended := b.awaitRound(at["suspend"], 1)
	if strings.Contains(string(suspended.SuspendPayload), canary) || !strings.Contains(string(suspended.SuspendPayload), "it is not [REDACTED]") {
		t.Errorf("suspend payload %s", suspended.SuspendPayload)
	}
	b.send("alice", events.ResumeD, at["suspend"], withData(`{"code":"`+canary+`-code"}`))
	b.completed(run)
	equal(t, "what the tool got", sorted(b.given("vault")), sorted([]string{
		canary + "-ok", canary + "-error", canary + "-panic", canary + "-slow", canary + "-suspend", canary + "-breaks", canary + "-new", canary + "-kept",
		canary + `-suspend{"hint":"it is not ` + canary + `-suspend","pin":"` + canary + `-pin"}`,
	}))
	told := strings.Join(b.told(), "\n")
	if !strings.Contains(told, "Tool input validation failed") || strings.Contains(told, canary) {
		t.Errorf("the model is told %s", told)
	}
	clean(t, "heard", ear.all())
	clean(t, "stored", stored(t, b, nc))
	clean(t, "logged", strings.Split(logged.String(), "\n"))
	nc.Close()
}

// secretAsk checks an ask that hides secrets: it says how long they are, and which they are.
func secretAsk(t *testing.T, ask events.CallHeld, how string) {
	t.Helper()
	raw, err := events.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	secret := canary + "-" + how
	masked := fmt.Sprintf(`"password":{"secret":{"length":%d,"digest":"%s"}}`, len(secret), events.Digest([]byte(`"`+secret+`"`)))
	if strings.Contains(string(raw), canary) || !strings.Contains(string(ask.Args), masked) || ask.DataRef != ask.ArgsDigest || ask.DataRef == "" {
		t.Errorf("ask %s", raw)
	}
	if len(ask.Preview) == 0 || strings.Contains(string(ask.Preview), "failed") || !strings.Contains(string(ask.Preview), "[REDACTED]") {
		t.Errorf("preview %s", ask.Preview)
	}
}

func (l *tap) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.heard...)
}

func clean(t *testing.T, what string, texts []string) {
	t.Helper()
	if len(texts) < 2 {
		t.Errorf("%s: only %d texts", what, len(texts))
	}
	for _, text := range texts {
		if i := strings.Index(text, canary); i >= 0 {
			t.Errorf("%s: %s… …%.200s", what, text[:min(len(text), 80)], text[max(0, i-100):])
		}
	}
}

// locked is a writer of several goroutines.
type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
