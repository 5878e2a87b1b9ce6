package agenttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/agent/agenttest"
)

type sumInput struct {
	List  []int `json:"list"`
	Start int   `json:"start,omitempty" jsonschema:"default=100"`
}

var sum = agent.NewTool("sum", "Add numbers",
	func(ctx context.Context, call *agent.Call, in sumInput) (int, error) {
		total := in.Start
		for _, n := range in.List {
			total += n
			if err := call.Write(ctx, total); err != nil {
				return 0, err
			}
		}
		switch {
		case total < 0 && !call.Resumed():
			return 0, call.Suspend("negative?")
		case total > 1000:
			return 0, errors.New("too much")
		}
		return total, call.Custom(ctx, "data-sum", total, nil)
	}, nil)

func TestRunNormalizesAndCollects(t *testing.T) {
	t.Parallel()
	got := agenttest.Run(t, sum, `{"list":"[1, 2]","start":null,"extra":1}`, nil)
	if total := agenttest.Output[int](t, got); total != 103 {
		t.Errorf("got %d", total)
	}
	if string(got.Args) != `{"list":[1,2],"start":100}` {
		t.Errorf("args %s", got.Args)
	}
	if diff := cmp.Diff([]json.RawMessage{json.RawMessage("101"), json.RawMessage("103")}, got.Written); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]agent.CustomChunk{{Type: "data-sum", Data: json.RawMessage("103")}}, got.Custom); diff != "" {
		t.Errorf("custom (-want +got):\n%s", diff)
	}
}

func TestRunOutcomes(t *testing.T) {
	t.Parallel()
	got := agenttest.Run(t, sum, sumInput{List: []int{2000}}, nil)
	if got.Outcome != events.OutcomeError || got.Error.Message != "too much" {
		t.Errorf("got %+v", got)
	}
	got = agenttest.Run(t, sum, nil, &agenttest.RunOptions{Call: agent.CallInfo{ToolName: "add"}})
	if got.Outcome != events.OutcomeInvalid || got.Started || !strings.Contains(string(got.Result), "failed for add.") {
		t.Errorf("got %+v %s", got, got.Result)
	}
	got = agenttest.Run(t, sum, `{"list":"[1]"}`, &agenttest.RunOptions{AsGiven: true})
	if got.Outcome != events.OutcomeInvalid || string(got.Args) != `{"list":"[1]"}` {
		t.Errorf("got %+v", got)
	}
}

func TestRunSuspendsAndResumes(t *testing.T) {
	t.Parallel()
	args := json.RawMessage(`{"list":[-500]}`)
	got := agenttest.Run(t, sum, args, nil)
	if reason := agenttest.Suspended[string](t, got); reason != "negative?" {
		t.Errorf("got %q", reason)
	}
	got = agenttest.Run(t, sum, args, &agenttest.RunOptions{Resume: json.RawMessage("null")})
	if total := agenttest.Output[int](t, got); total != -400 {
		t.Errorf("got %d", total)
	}
}

// fatal is a test that stops by panicking, as the real one stops its goroutine.
type fatal struct{ testing.TB }

func (fatal) Helper() {}

func (fatal) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (fatal) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func TestRunFailsTheTest(t *testing.T) {
	t.Parallel()
	suspended := agenttest.Run(t, sum, `{"list":[-500]}`, nil)
	good := agenttest.Run(t, sum, `{"list":[]}`, nil)
	for want, f := range map[string]func(){
		"description: is required": func() { agenttest.Run(fatal{t}, agent.NewTool[any, any]("x", "", nil, nil), nil, nil) },
		"arguments: json":          func() { agenttest.Run(fatal{t}, sum, make(chan int), nil) },
		"the call ended as \"\"":   func() { agenttest.Output[int](fatal{t}, suspended) },
		"did not suspend itself":   func() { agenttest.Suspended[int](fatal{t}, good) },
		"result 100":               func() { agenttest.Output[string](fatal{t}, good) },
		"payload \"negative?\"":    func() { agenttest.Suspended[int](fatal{t}, suspended) },
	} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, want) {
					t.Errorf("got %q, want %q", text, want)
				}
			}()
			f()
		}()
	}
}
