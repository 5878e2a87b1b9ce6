package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"path/filepath"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/client"
)

// A run is asked for, waits for a person, and ends. It needs a running Weir, such as weir dev, so it is compiled and not
// run; [TestB19_1RefundFromStartToEnd] runs the same.
func Example() {
	ctx := context.Background()
	conn, err := jetstream.Connect(ctx, jetstream.Options{URL: "nats://127.0.0.1:4222"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // an example

	c := client.New(conn, client.Config{Principal: "bob"})
	out, err := c.Generate(ctx, client.Request{Agent: "support", Prompt: "Refund order 1042"})
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range out.Asks { // what waits for people
		fmt.Println(a.ToolName, string(a.Args))
		if _, err := c.Approve(ctx, a.ToolCallID, &client.DecisionOptions{Fingerprint: a.Ask.Fingerprint}); err != nil {
			log.Fatal(err)
		}
	}
	out, err = c.Run(out.RunID).Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Text)
}

// A tool that the program which asks executes itself: the model calls it like any other, and the answer comes from here.
func ExampleClient_Generate_clientTool() {
	ctx := context.Background()
	conn, err := jetstream.Connect(ctx, jetstream.Options{URL: "nats://127.0.0.1:4222"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // an example

	c := client.New(conn, client.Config{Principal: "bob"})
	out, err := c.Generate(ctx, client.Request{
		Agent: "support", Prompt: "Which files are here?",
		ClientTools: map[string]client.ClientTool{"list_files": {
			ClientTool: events.ClientTool{
				Description:  "Lists the files of the user's folder",
				OutputSchema: json.RawMessage(`{"type":"array","items":{"type":"string"}}`),
			},
			Run: func(context.Context, json.RawMessage) (any, error) { return filepath.Glob("*") },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Text)
}
