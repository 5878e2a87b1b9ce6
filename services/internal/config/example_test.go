//go:build unix

package config_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/internal/config"
	"github.com/weirkeeper/weir/services/toolexecutor"
)

// An executor makes its tools of its own copy of the file. The environment, and with it every secret, comes from the
// caller.
func ExampleLoad() {
	lookup := func(string) (string, bool) { return "", false } // os.LookupEnv
	file, err := config.Load("testdata/weir.yaml", lookup)
	if err != nil {
		fmt.Println(err) // every problem on a line of its own, with its place
		return
	}
	for _, def := range file.Tools {
		env, secrets, err := file.Secrets.Environ(*def.Exec)
		if err != nil {
			fmt.Println(err)
			return
		}
		tool, err := toolexecutor.NewExec(toolexecutor.ExecDef{
			Manifest: def.Manifest, Command: def.Exec.Command, Dir: def.Exec.Dir, Env: env, Secrets: secrets,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		call := agent.NewCall(agent.CallInfo{RunID: "r", ToolCallID: "r=1-1"})
		result, err := tool.Run(context.Background(), call, json.RawMessage(`{"orderId":"ord-1042"}`))
		fmt.Println(string(result), err)
	}
	// Output:
	// {"orderId":"ord-1042","status":"delivered","amount":612.50} <nil>
	// {"refundId":"re-r=1-1","orderId":"ord-1042"} <nil>
}
