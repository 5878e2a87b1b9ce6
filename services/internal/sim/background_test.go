package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
)

// scripted answers the n-th turn of its life as told, and keeps what it was asked.
type scripted struct {
	mu    sync.Mutex
	turns [][]agent.ModelPart
	asked []agent.ModelRequest
}

func (m *scripted) Stream(_ context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	m.mu.Lock()
	n := len(m.asked)
	m.asked = append(m.asked, req)
	m.mu.Unlock()
	return func(yield func(agent.ModelPart, error) bool) {
		parts := says("nothing more")
		if n < len(m.turns) {
			parts = m.turns[n]
		}
		for _, p := range parts {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// request is what the model was asked at its n-th turn, from 0.
func (m *scripted) request(t *testing.T, n int) agent.ModelRequest {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if n >= len(m.asked) {
		t.Fatalf("the model was asked %d times", len(m.asked))
	}
	return m.asked[n]
}

func (m *scripted) times() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

func says(text string) []agent.ModelPart {
	return []agent.ModelPart{{Type: agent.PartTextDelta, ID: "t", Text: text}, {Type: agent.PartFinish, FinishReason: agent.FinishStop}}
}

// calls is a turn that calls tools: name, arguments, and so on.
func calls(nameArgs ...string) []agent.ModelPart {
	var parts []agent.ModelPart
	for i := 0; i < len(nameArgs); i += 2 {
		id := fmt.Sprint(i)
		parts = append(parts, agent.ModelPart{Type: agent.PartToolInputStart, ID: id, ToolName: nameArgs[i], ProviderCallID: "p" + id},
			agent.ModelPart{Type: agent.PartToolInputDelta, ID: id, Text: nameArgs[i+1]}, agent.ModelPart{Type: agent.PartToolInputEnd, ID: id})
	}
	return append(parts, agent.ModelPart{Type: agent.PartFinish, FinishReason: agent.FinishToolCalls})
}

// lasting is a tool that takes its time, and more options.
func lasting(id string, d time.Duration, o agent.ToolOptions) agent.Tool {
	return agent.NewTool(id, "Takes its time", func(ctx context.Context, _ *agent.Call, in Order) (map[string]any, error) {
		select {
		case <-time.After(d): // fake
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		return map[string]any{"did": id, "order": in.OrderID}, nil
	}, &o)
}

var inBackground = &events.Background{Enabled: true}

// outputOf is what a model was told about a call; empty when it was told nothing.
func outputOf(req agent.ModelRequest, toolCallID string) string {
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			if p.Type == events.PartToolResult && p.ToolCallID == toolCallID {
				return string(p.Output.Value)
			}
		}
	}
	return ""
}

const order42 = `{"orderId":"42"}`

// chunks are those of a run so far.
func chunksOf(w *World, run string, last events.ChunkType) []events.Chunk {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), time.Minute)
	defer cancel()
	var got []events.Chunk
	for c, err := range w.Conn().Follow(ctx, run, 0, nil) {
		if err != nil {
			w.T.Fatalf("no %s chunk: %v, %v", last, err, typesOf(got))
		}
		got = append(got, c)
		if c.Type == last {
			break
		}
	}
	return got
}

func typesOf(list []events.Chunk) string {
	var types []string
	for _, c := range list {
		types = append(types, string(c.Type))
	}
	return strings.Join(types, " ")
}

// TestB16_2_B16_3_DeferredCallJoins: the step of a deferred call counts as settled, the model is told a placeholder and goes on,
// and at its first turn after the real result it finds that in the placeholder's place.
func TestB16_2_B16_3_DeferredCallJoins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", order42), calls("lookup", order42), says("found it")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			lasting("research", 5*time.Second, agent.ToolOptions{Background: inBackground}), lasting("lookup", 10*time.Second, agent.ToolOptions{}),
		}})
		w.StartAll()
		run := w.Request("go")
		end := w.AwaitEnd(run, time.Minute)
		task := events.CallID{Run: run, Step: 1, Index: 1}.String()
		if got := outputOf(m.request(t, 1), task); got != `"Background task started. Task ID: `+task+`"` {
			t.Errorf("the second turn is told %s", got)
		}
		if got := outputOf(m.request(t, 2), task); !strings.Contains(got, `"did":"research"`) {
			t.Errorf("the third turn is told %s", got)
		}
		if end.Outcome != events.RunCompleted || end.Message.Text() != "found it" || len(end.Background) > 0 {
			t.Errorf("the run ended as %+v", end)
		}
		shown := chunksOf(w, run, events.ChunkFinish)
		types := typesOf(shown)
		for _, want := range []string{"tool-call background-task-started tool-result", "background-task-running", "background-task-completed"} {
			if !strings.Contains(types, want) {
				t.Errorf("chunks %s lack %q", types, want)
			}
		}
		for _, c := range shown {
			var p events.ToolResultPayload
			if c.Type != events.ChunkToolResult || json.Unmarshal(c.Payload, &p) != nil || p.ToolCallID != task {
				continue
			}
			if string(p.Result) != `"Background task started. Task ID: `+task+`"` ||
				!strings.Contains(string(p.ProviderMetadata), `"status":"running"`) {
				t.Errorf("the placeholder is %s", c.Payload)
			}
		}
		w.Check(true)
	})
}

// decideBy sends a decision about an ask.
func decideBy(w *World, ask events.CallHeld, d events.Decision, data string) {
	w.T.Helper()
	r := events.DecisionRequested{Decision: d, ToolCallID: ask.ToolCallID, Fingerprint: ask.Fingerprint}
	if d == events.ResumeD {
		r.ResumeData = RawJSON(data)
	}
	w.Decide("alice", r)
}

// awaitChunk follows a run until a chunk of a type, also past its end, and returns what came before it and it.
func awaitChunk(w *World, run string, last events.ChunkType) events.Chunk {
	w.T.Helper()
	all := chunksOf(w, run, last)
	return all[len(all)-1]
}

// TestB16_3_ResultAfterTheEnd: a background call that runs when its run completes goes on; its result is stored and shown after
// the end, and nothing takes the call for lost.
func TestB16_3_ResultAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", order42), says("it is on its way")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{lasting("research", 4*time.Minute, agent.ToolOptions{Background: inBackground})}})
		w.StartAll()
		run := w.Request("go")
		end := w.AwaitEnd(run, time.Minute)
		call := events.CallID{Run: run, Step: 1, Index: 1}
		if end.Message.Text() != "it is on its way" || len(end.Background) != 1 || end.Background[0].C != call.Token() {
			t.Errorf("the run ended as %+v", end)
		}
		f, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), 10*time.Minute))
		if err != nil || f.Outcome != events.OutcomeOK || f.Attempt != 1 {
			t.Errorf("the task ended as %+v, %v", f, err)
		}
		var p events.BackgroundPayload
		c := awaitChunk(w, run, events.ChunkBackgroundCompleted)
		if json.Unmarshal(c.Payload, &p) != nil || p.TaskID != call.String() || !strings.Contains(string(p.Result), "research") {
			t.Errorf("the chunk is %s", c.Payload)
		}
		w.Check(true)
	})
}

// TestB16_5_B16_6_HeldTaskHoldsItsRun: a background call passes the same gate: while it is held the run does not complete, and it
// is decided by its toolCallId. Its result brings the next turn. What the model says of the background reaches neither rules,
// people nor the tool.
func TestB16_5_B16_6_HeldTaskHoldsItsRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{
			calls("pay", `{"orderId":"42","_background":{"disposition":"deferred"}}`), says("I have asked"), says("paid"),
		}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{lasting("pay", time.Second, agent.ToolOptions{
			RequireApproval: agent.Always(), Background: &events.Background{Enabled: true, DefaultDisposition: events.Foreground},
		})}})
		w.StartAll()
		run := w.Request("go")
		call := events.CallID{Run: run, Step: 1, Index: 1}
		ask := w.AwaitAsk(call, time.Minute)
		if string(ask.Args) != order42 || ask.Background == nil {
			t.Errorf("people are asked about %s, %+v", ask.Args, ask.Background)
		}
		awaitChunk(w, run, events.ChunkSuspended)
		time.Sleep(5 * time.Minute) // fake
		synctest.Wait()
		if _, err := w.Conn().Fact(t.Context(), w.Conn().Namespace().End(run)); err == nil || m.times() != 2 {
			t.Fatalf("the run has ended (%v), after %d turns", err, m.times())
		}
		w.Check(true)
		decideBy(w, ask, events.Approve, "")
		end := w.AwaitEnd(run, time.Minute)
		if end.Outcome != events.RunCompleted || end.Message.Text() != "paid" || len(end.Background) > 0 {
			t.Errorf("the run ended as %+v", end)
		}
		req := m.request(t, 2)
		if got := outputOf(req, call.String()); !strings.Contains(got, `"did":"pay"`) {
			t.Errorf("the last turn is told %s", got)
		}
		if last := req.Messages[len(req.Messages)-1]; last.Role != events.RoleUser || !strings.Contains(last.Text(), call.String()) {
			t.Errorf("the last turn is asked %+v", last)
		}
		types := typesOf(chunksOf(w, run, events.ChunkFinish))
		for _, want := range []string{"background-task-suspended tool-call-approval", "suspended", "background-task-completed", "finish"} {
			if !strings.Contains(types, want) {
				t.Errorf("chunks %s lack %q", types, want)
			}
		}
		for _, c := range chunksOf(w, run, events.ChunkFinish) {
			if c.Type == events.ChunkToolCall && strings.Contains(string(c.Payload), "_background") {
				t.Errorf("readers are shown %s", c.Payload)
			}
		}
		w.Check(true)
	})
}

// TestB16_5_SuspendsAfterTheEnd: a background call that suspends itself after the end of its run is asked about, with a deadline
// below half of the retention, and stays in the inbox until it is decided; then nothing is left.
func TestB16_5_SuspendsAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pay := agent.NewTool("pay", "Pays", func(_ context.Context, call *agent.Call, in Order) (map[string]any, error) {
			if !call.Resumed() {
				time.Sleep(time.Minute) // fake
				return nil, call.Suspend(map[string]string{"order": in.OrderID})
			}
			return map[string]any{"paid": in.OrderID}, nil
		}, &agent.ToolOptions{Background: inBackground})
		m := &scripted{turns: [][]agent.ModelPart{calls("pay", order42), says("it is on its way")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{pay}})
		w.StartAll()
		run := w.Request("go")
		w.AwaitEnd(run, time.Minute)
		call := events.CallID{Run: run, Step: 1, Index: 1}
		ask := w.AwaitAsk(call, 10*time.Minute)
		if left := ask.ExpiresAt.Sub(ask.AskedAt); left >= 12*time.Hour || left < 10*time.Hour {
			t.Errorf("it may be decided for %v", left)
		}
		time.Sleep(10 * time.Minute) // fake: sweepers leave it alone
		synctest.Wait()
		w.Check(true)
		decideBy(w, ask, events.ResumeD, "true")
		f, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), time.Minute))
		if err != nil || f.Outcome != events.OutcomeOK {
			t.Errorf("the task ended as %+v, %v", f, err)
		}
		awaitChunk(w, run, events.ChunkBackgroundCompleted)
		time.Sleep(time.Minute) // fake: the entry is gone with its last ask, or by the sweeper
		synctest.Wait()
		if keys, err := w.Conn().ListSuspended(t.Context(), "", "", ""); err != nil || len(keys) > 0 {
			t.Errorf("entries are left: %q, %v", keys, err)
		}
		w.Check(true)
	})
}

// TestB16_9_CancelEndsTasks: a cancel of a run closes its background calls too, those of earlier steps and held ones as well, and a
// cancel of one task leaves the run alone.
func TestB16_9_CancelEndsTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{
			calls("research", order42, "pay", order42, "research", order42), calls("lookup", order42), says("done"),
		}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			lasting("research", 3*time.Minute, agent.ToolOptions{Background: inBackground}), lasting("lookup", time.Minute, agent.ToolOptions{}),
			lasting("pay", time.Second, agent.ToolOptions{RequireApproval: agent.Always(), Background: inBackground}),
		}})
		w.StartAll()
		run := w.Request("go")
		ns := w.Conn().Namespace()
		id := func(step, i int) events.CallID { return events.CallID{Run: run, Step: step, Index: i} }
		w.AwaitAsk(id(1, 2), time.Minute)
		w.Await(ns.Call(id(1, 1), events.KindClaim), time.Minute)
		w.Await(ns.Call(id(2, 1), events.KindClaim), time.Minute)
		w.publish(ns.InCancel("bob", run), run, "bob", events.CancelRequested{RunID: run, ToolCallID: id(1, 2).String()})
		one, err := events.Data[events.CallFinished](w.Await(ns.Call(id(1, 2), events.KindResult), time.Minute))
		if err != nil || one.Outcome != events.OutcomeCancelled || one.Cancel.RunID != "" || one.Started {
			t.Errorf("the held task ended as %+v, %v", one, err)
		}
		w.Cancel("bob", run)
		if end := w.AwaitEnd(run, 30*time.Second); end.Outcome != events.RunCancelled {
			t.Errorf("the run ended as %+v", end)
		}
		for _, call := range []events.CallID{id(1, 1), id(1, 3), id(2, 1)} {
			f, err := events.Data[events.CallFinished](w.Await(ns.Call(call, events.KindResult), time.Second))
			if err != nil || f.Outcome != events.OutcomeCancelled || f.Cancel.RunID != run {
				t.Errorf("%s ended as %+v, %v", call, f, err)
			}
		}
		time.Sleep(time.Minute) // fake: chunks and entries follow
		synctest.Wait()
		w.Check(true)
	})
}

// TestB16_9_CancelOfATaskAfterTheEnd: a task that outlasts its run can be cancelled.
func TestB16_9_CancelOfATaskAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", order42), says("it is on its way")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{lasting("research", 4*time.Minute, agent.ToolOptions{Background: inBackground})}})
		w.StartAll()
		run := w.Request("go")
		w.AwaitEnd(run, time.Minute)
		call := events.CallID{Run: run, Step: 1, Index: 1}
		w.publish(w.Conn().Namespace().InCancel("bob", run), run, "bob", events.CancelRequested{RunID: run, ToolCallID: call.String()})
		f, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), time.Minute))
		if err != nil || f.Outcome != events.OutcomeCancelled || !f.Started || f.TaskState() != events.TaskCancelled {
			t.Errorf("the task ended as %+v, %v", f, err)
		}
		awaitChunk(w, run, events.ChunkBackgroundCancelled)
		w.Check(true)
	})
}

// TestB16_7_AnotherWorkerTakesTheTask: a task whose worker dies after the run has ended is taken by another, as any call.
func TestB16_7_AnotherWorkerTakesTheTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", order42), says("it is on its way")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			lasting("research", 4*time.Minute, agent.ToolOptions{Background: inBackground, Effect: agent.ReadOnly}),
		}})
		copies := w.StartAll()
		run := w.Request("go")
		w.AwaitEnd(run, time.Minute)
		call := events.CallID{Run: run, Step: 1, Index: 1}
		w.Await(w.Conn().Namespace().Call(call, events.KindClaim), time.Minute)
		copies[2].Kill()
		w.Start(copies[2].Service)
		f, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), 20*time.Minute))
		if err != nil || f.Outcome != events.OutcomeOK || f.Attempt != 2 {
			t.Errorf("the task ended as %+v, %v", f, err)
		}
		awaitChunk(w, run, events.ChunkBackgroundCompleted)
		w.Check(true)
	})
}

// resultOf waits for the result of a call.
func resultOf(w *World, call events.CallID, within time.Duration) events.CallFinished {
	w.T.Helper()
	f, err := events.Data[events.CallFinished](w.Await(w.Conn().Namespace().Call(call, events.KindResult), within))
	w.must(err)
	return f
}

// TestB16_1_RetriesByName: a background call is tried again after an error that is listed, with a delay that grows, and not after
// another; and no more often than is configured, whatever the model says.
func TestB16_1_RetriesByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		flaky := agent.NewTool("flaky", "Fails", func(_ context.Context, _ *agent.Call, in Order) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			if in.OrderID == "43" {
				return "", agent.Errorf("broken", "no")
			}
			if len(at) < 4 {
				return "", agent.Errorf("busy", "later")
			}
			return "done", nil
		}, &agent.ToolOptions{Effect: agent.Effectful, Background: &events.Background{
			Enabled: true, MaxRetries: 3, RetryableErrors: []string{"busy"},
		}})
		m := &scripted{turns: [][]agent.ModelPart{
			calls("flaky", `{"orderId":"42","_background":{"maxRetries":9}}`), says("begun"),
			calls("flaky", `{"orderId":"43","_background":{"disposition":"awaited"}}`), says("over"),
		}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{flaky}})
		w.StartAll()
		first, second := w.Request("go"), ""
		f := resultOf(w, events.CallID{Run: first, Step: 1, Index: 1}, time.Minute)
		mu.Lock()
		if f.Outcome != events.OutcomeOK || len(at) != 4 || at[1].Sub(at[0]) != time.Second || at[3].Sub(at[2]) != 4*time.Second {
			t.Errorf("%s after the tries %v", f.Outcome, at)
		}
		at = nil
		mu.Unlock()
		second = w.Request("once more")
		f = resultOf(w, events.CallID{Run: second, Step: 1, Index: 1}, time.Minute)
		if f.Outcome != events.OutcomeError || f.Error.Name != "broken" || len(at) != 1 {
			t.Errorf("%+v after %d tries", f, len(at))
		}
		w.AwaitEnd(second, time.Minute)
		w.Check(true)
	})
}

// TestB16_6_TimedOut: a background call that takes longer than its own timeout has timed out, and the chunk says so.
func TestB16_6_TimedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", `{"orderId":"42","_background":{"timeoutMs":1000}}`), says("begun")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			lasting("research", time.Hour, agent.ToolOptions{Background: &events.Background{Enabled: true, TimeoutMs: 5000}}),
		}})
		w.StartAll()
		run := w.Request("go")
		f := resultOf(w, events.CallID{Run: run, Step: 1, Index: 1}, 3*time.Second)
		var p events.BackgroundPayload
		c := awaitChunk(w, run, events.ChunkBackgroundFailed)
		if f.TaskState() != events.TaskTimedOut || json.Unmarshal(c.Payload, &p) != nil || p.Error == nil ||
			!strings.Contains(p.Error.Message, "did not finish in time") {
			t.Errorf("%+v is shown as %s", f, c.Payload)
		}
		w.Check(true)
	})
}

// TestB16_5_Awaited: a step waits for an awaited call, with its result, and after the time for that goes on as with a deferred one;
// foreground is as any call, and a tool that may not run in the background does not, whatever the model says.
func TestB16_5_Awaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{
			calls("research", `{"orderId":"1","_background":{"disposition":"awaited"}}`, "lookup", `{"orderId":"2","_background":{"enabled":true}}`),
			calls("index", `{"orderId":"3","_background":{"disposition":"awaited"}}`),
			calls("research", `{"orderId":"4","_background":{"disposition":"foreground"}}`), says("over"), says("over again"),
		}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			lasting("research", 5*time.Second, agent.ToolOptions{Background: inBackground}), lasting("lookup", time.Second, agent.ToolOptions{}),
			lasting("index", 30*time.Second, agent.ToolOptions{Background: &events.Background{Enabled: true, WaitTimeoutMs: 8000}}),
		}})
		w.StartAll()
		run := w.Request("go")
		end := w.AwaitEnd(run, time.Minute)
		id := func(step, i int) string { return events.CallID{Run: run, Step: step, Index: i}.String() }
		for call, want := range map[string]string{id(1, 1): `"order":"1"`, id(1, 2): `"order":"2"`} {
			if got := outputOf(m.request(t, 1), call); !strings.Contains(got, want) {
				t.Errorf("the second turn is told %s of %s", got, call)
			}
		}
		if got := outputOf(m.request(t, 2), id(2, 1)); !strings.Contains(got, "Background task started") {
			t.Errorf("after its time an awaited call is told as %s", got)
		}
		if got := outputOf(m.request(t, 3), id(3, 1)); !strings.Contains(got, `"order":"4"`) {
			t.Errorf("a foreground call is told as %s", got)
		}
		if len(end.Background) != 1 || end.Background[0].C != "2-1" {
			t.Errorf("the run leaves %v", end.Background)
		}
		awaitChunk(w, run, events.ChunkBackgroundCompleted)
		resultOf(w, events.CallID{Run: run, Step: 2, Index: 1}, time.Minute)
		w.Check(true)
		var tools []string
		for _, tool := range m.request(t, 0).Tools {
			if strings.Contains(string(tool.InputSchema), "_background") {
				tools = append(tools, tool.Name)
			}
		}
		if fmt.Sprint(tools) != "[index research]" {
			t.Errorf("the model may say how %v run", tools)
		}
	})
}

// TestB16_3_FollowUntilIdle: a follower that asks for it goes on after the end of a run until the last background call has ended,
// and the output has the real result in the place of what stood for it; another ends with the run.
func TestB16_3_FollowUntilIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("research", order42, "pay", order42), says("it is on its way")}}
		pay := agent.NewTool("pay", "Pays", func(ctx context.Context, call *agent.Call, in Order) (map[string]any, error) {
			if !call.Resumed() {
				time.Sleep(2 * time.Minute) // fake
				return nil, call.Suspend(map[string]string{"order": in.OrderID})
			}
			return map[string]any{"paid": in.OrderID}, nil
		}, &agent.ToolOptions{Background: inBackground})
		w := New(t, Options{Model: m, Tools: []agent.Tool{lasting("research", 4*time.Minute, agent.ToolOptions{Background: inBackground}), pay}})
		w.StartAll()
		c := client.New(w.Conn(), client.Config{Principal: "bob", GateKeys: w.GateKeys()})
		run, err := c.Start(t.Context(), client.Request{Agent: "support", Prompt: "go"})
		w.must(err)
		out, err := run.Wait(t.Context())
		if err != nil || out.Text != "it is on its way" || len(out.ToolResults) != 2 || out.ToolResults[0].Outcome != "" {
			t.Errorf("with the run's end the output is %+v, %v", out, err)
		}
		follow := func(o client.FollowOptions) (*client.Output, events.ChunkType) {
			f, last := run.Fold(), events.ChunkType("")
			for ch, err := range run.Follow(t.Context(), 0, &o) {
				w.must(err)
				f.Add(ch)
				last = ch.Type
			}
			return f.Output(), last
		}
		id := events.CallID{Run: run.ID, Step: 1, Index: 2}
		if _, last := follow(client.FollowOptions{UntilIdle: true, UntilSuspended: true}); last != events.ChunkBackgroundCompleted {
			t.Errorf("a follower that waits for nobody ends with %s", last) // research is done, and pay is held
		}
		decideBy(w, w.AwaitAsk(id, time.Minute), events.ResumeD, "true")
		out, last := follow(client.FollowOptions{UntilIdle: true})
		if last != events.ChunkBackgroundCompleted || out.FinishReason != "stop" || len(out.ToolResults) != 2 || len(out.Steps) != 2 {
			t.Errorf("with its tasks the output is %+v, after %s", out, last)
		}
		for i, want := range []string{`"did":"research"`, `"paid":"42"`} {
			for _, list := range [][]events.ToolResultPayload{out.ToolResults, out.Steps[0].ToolResults} {
				if len(list) != 2 || list[i].Outcome != events.OutcomeOK || !strings.Contains(string(list[i].Result), want) {
					t.Errorf("the results are %+v, want %s", list, want)
				}
			}
		}
		w.Check(true)
	})
}

// TestB16_3_InfoShowsTasks: a run that is over shows its background calls that go on.
func TestB16_3_InfoShowsTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &scripted{turns: [][]agent.ModelPart{calls("pay", order42), says("I have asked")}}
		w := New(t, Options{Model: m, Tools: []agent.Tool{
			lasting("pay", 3*time.Minute, agent.ToolOptions{RequireApproval: agent.Always(), Background: inBackground}),
		}})
		w.StartAll()
		c := client.New(w.Conn(), client.Config{Principal: "bob", GateKeys: w.GateKeys()})
		run, err := c.Start(t.Context(), client.Request{Agent: "support", Prompt: "go"})
		w.must(err)
		out, err := run.Wait(t.Context())
		id := events.CallID{Run: run.ID, Step: 1, Index: 1}.String()
		if err != nil || out.FinishReason != client.FinishSuspended || len(out.Asks) != 1 || out.Asks[0].ToolCallID != id {
			t.Fatalf("a run whose task is held is %+v, %v", out, err)
		}
		info, err := c.Info(t.Context(), run.ID)
		if err != nil || info.Status != client.StatusSuspended || len(info.Calls) != 1 || !info.Calls[0].Background || info.Calls[0].State != client.StateHeld {
			t.Errorf("it is listed as %+v, %v", info, err)
		}
		w.Cancel("bob", run.ID)
		w.AwaitEnd(run.ID, time.Minute) // until then it waits for people
		if out, err = run.Wait(t.Context()); err != nil || out.FinishReason != client.FinishCancelled {
			t.Errorf("it ended as %+v, %v", out, err)
		}
		time.Sleep(time.Minute) // fake: its entry goes
		synctest.Wait()
		w.Check(true)
	})
}
