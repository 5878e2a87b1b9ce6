package client_test

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/client"
	"github.com/weirkeeper/weir/services/planner"
)

// say sends a message to the talker, in one thread.
func say(t *testing.T, c *client.Client, prompt string) *client.Run {
	t.Helper()
	run, err := c.Start(t.Context(), client.Request{Agent: "talker", Prompt: prompt, ThreadID: "t1", ResourceID: "u1"})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func wait(t *testing.T, run *client.Run) *client.Output {
	t.Helper()
	out, err := run.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asked is a run whose tool asks for a city.
func asked(t *testing.T, c *client.Client) *client.Run {
	t.Helper()
	run := say(t, c, "city")
	if out := wait(t, run); out.FinishReason != client.FinishSuspended {
		t.Fatalf("output = %+v", out)
	}
	return run
}

func chunksOf(t *testing.T, run *client.Run, after uint64) []events.Chunk {
	t.Helper()
	var all []events.Chunk
	for ch, err := range run.Follow(t.Context(), after, nil) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ch)
	}
	return all
}

// The stream of the message's run is the continuation of the run that it answers, and the output is that of the whole of it.
func TestB11_5StreamIsTheContinuation(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	first := asked(t, c)
	second := say(t, c, "Rome")
	out := wait(t, second)
	if out.RunID != first.ID || !slices.Equal(out.Resumed, []string{first.ID}) || out.FinishReason != "stop" || out.Text != "Done." || len(out.Asks) != 0 {
		t.Errorf("output = %+v", out)
	}
	if len(out.Steps) != 2 || len(out.ToolResults) != 1 || string(out.ToolResults[0].Result) != `{"name":"Rome"}` ||
		out.ToolResults[0].ToolCallID != first.ID+"=1-1" {
		t.Errorf("steps = %+v, results = %+v", out.Steps, out.ToolResults)
	}
	again := wait(t, newClient(t, conn, "carol").Run(second.ID))
	if diff := cmp.Diff(out, again); diff != "" {
		t.Errorf("another process is told something else: %s", diff)
	}
	var told []string
	for _, ch := range chunksOf(t, second, 0) {
		name := map[string]string{first.ID: "first", second.ID: "second"}[ch.RunID]
		if told = append(told, name+" "+string(ch.Type)); len(told) > 1 && told[len(told)-1] == told[len(told)-2] {
			told = told[:len(told)-1]
		}
	}
	if diff := cmp.Diff([]string{
		"second start", "second finish",
		"first tool-result", "first step-finish", "first step-start", "first text-start", "first text-delta", "first text-end",
		"first step-finish", "first finish",
	}, told); diff != "" {
		t.Error(diff)
	}
	info, err := c.Info(t.Context(), second.ID)
	if err != nil || info.FinishReason != "resumed" || !slices.Equal(info.Resumes, []string{first.ID}) || info.Status != client.StatusEnded {
		t.Errorf("info = %+v, %v", info, err)
	}
}

// Whoever goes on from the cursor of any chunk gets the rest, also one who knows only the first of the two runs.
func TestB11_5FollowTheContinuationFromACursor(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	asked(t, c)
	second := say(t, c, "Rome")
	all := chunksOf(t, second, 0)
	ids := func(list []events.Chunk) (ids []string) {
		for _, ch := range list {
			ids = append(ids, ch.ID)
		}
		return ids
	}
	for i, ch := range all[1 : len(all)-1] {
		rest := chunksOf(t, c.Run(second.ID), ch.Cursor)
		if diff := cmp.Diff(ids(all[i+2:]), ids(rest)); diff != "" {
			t.Errorf("after chunk %d, %s: %s", i+1, ch.Type, diff)
		}
	}
}

// The continuation may be suspended again: the output says by what, under the id of the run that waits.
func TestB11_5ContinuationIsSuspendedAgain(t *testing.T) {
	t.Parallel()
	conn := start(t)
	serve(t, conn)
	c := newClient(t, conn, "bob")
	first := say(t, c, "two cities")
	if out := wait(t, first); len(out.Asks) != 2 {
		t.Fatalf("output = %+v", out)
	}
	second := say(t, c, "Rome")
	out := wait(t, second) // the two calls look the same: nobody can say which is meant
	if out.RunID != second.ID || out.Resumed != nil || out.Text != "Done." || out.Steps[0].StepType != "initial" {
		t.Errorf("output = %+v", out)
	}
	third := say(t, c, "cities "+first.ID+"=1-1 Oslo")
	out = wait(t, third)
	if out.RunID != first.ID || out.FinishReason != client.FinishSuspended || len(out.Asks) != 1 || out.Asks[0].ToolCallID != first.ID+"=1-2" {
		t.Fatalf("output = %+v", out)
	}
	if _, err := c.Resume(t.Context(), out.Asks[0].ToolCallID, json.RawMessage(`{"name":"Rome"}`), &client.DecisionOptions{Round: &out.Asks[0].Ask.Round}); err != nil {
		t.Fatal(err)
	}
	if out = wait(t, third); out.RunID != first.ID || out.FinishReason != "stop" || len(out.ToolResults) != 2 {
		t.Errorf("output = %+v", out)
	}
}

// held back is a model whose search for answers waits until it is let go.
type heldBack struct {
	planner.Models
	leave <-chan struct{}
}

func (h heldBack) Model(id string) (agent.Model, string, error) {
	m, name, err := h.Models.Model(id)
	return heldModel{m, h.leave}, name, err
}

type heldModel struct {
	agent.Model
	leave <-chan struct{}
}

func (m heldModel) Stream(ctx context.Context, req agent.ModelRequest) iter.Seq2[agent.ModelPart, error] {
	if len(req.Tools) == 0 && strings.HasPrefix(req.Messages[len(req.Messages)-1].Text(), `{"calls"`) {
		select {
		case <-m.leave:
		case <-ctx.Done():
		}
	}
	return m.Model.Stream(ctx, req)
}

// Who may read no stream hears of the runs that may go on before any of them does, and so misses nothing.
func TestB11_5ContinuationIsHeardLive(t *testing.T) {
	t.Parallel()
	conn := start(t)
	leave := make(chan struct{})
	serveWith(t, conn, func(m planner.Models) planner.Models { return heldBack{m, leave} })
	first := asked(t, newClient(t, conn, "bob"))
	second := say(t, clientWith(t, conn, client.Config{Principal: "bob", LiveOnly: true}), "Rome")
	var told []string
	for ch, err := range second.Follow(t.Context(), 0, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if ch.Type == events.ChunkStart {
			close(leave)
		}
		if ch.RunID == first.ID {
			told = append(told, string(ch.Type))
		}
	}
	if len(told) < 4 || told[0] != "tool-result" || told[len(told)-1] != "finish" {
		t.Errorf("heard %v", told)
	}
	if out := wait(t, second); out.RunID != first.ID || out.FinishReason != "stop" {
		t.Errorf("output = %+v", out)
	}
}
