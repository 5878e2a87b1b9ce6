package toolsearch

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

func shop() map[string]events.Manifest {
	return map[string]events.Manifest{
		"issueRefund":    {ID: "issue_refund", Description: "Give money back for an order", Effect: events.Effectful},
		"refund_status":  {ID: "refund_status", Description: "Where a payment is on its way", Effect: events.ReadOnly},
		"lookup_order":   {ID: "lookup_order", Description: "Look an order up, with its refunds", Effect: events.ReadOnly},
		"delete account": {ID: "delete_account", Description: "Delete a customer", Effect: events.Effectful},
		"always":         {ID: "always", Description: "A tool that the model always has: refund order"},
	}
}

func catalog(o events.ToolSearch, change func(*events.State)) *Catalog {
	o.Tools = map[string]string{
		"issueRefund": "issue_refund", "refund_status": "refund_status", "lookup_order": "lookup_order",
		"delete account": "delete_account", "nobody_hosts": "nobody_hosts",
	}
	st := &events.State{RunID: "r", AgentID: "support", Requester: "bob"}
	if change != nil {
		change(st)
	}
	return New(st, events.AgentDef{ID: "support", Tools: map[string]string{"always": "always"}, ToolSearch: &o}, shop())
}

func answer(t *testing.T, c *Catalog, key, args string, loaded ...string) string {
	t.Helper()
	a, err := c.Answer(t.Context(), key, json.RawMessage(args), loaded)
	if err != nil {
		t.Fatal(err)
	}
	text := string(a.Result)
	if a.Loads != nil {
		text += " loads " + strings.Join(a.Loads, ",")
	}
	return text
}

// TestB17_2_Answers gives what searches and loads are answered with.
func TestB17_2_Answers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		o    events.ToolSearch
		key  string
		args string
		want string
	}{
		"names weigh more than descriptions": {
			events.ToolSearch{},
			events.ToolSearchTools, `{"query":"refunds"}`,
			`{"results":[{"name":"issueRefund","description":"Give money back for an order","score":1.07},` +
				`{"name":"refund_status","description":"Where a payment is on its way","score":1.07},` +
				`{"name":"lookup_order","description":"Look an order up, with its refunds","score":0.36}],` +
				`"message":"Found 3 tool(s). Call load_tool with the exact name to be able to use one."}`,
		},
		"top and least score": {
			events.ToolSearch{TopK: 1, MinScore: 1},
			events.ToolSearchTools, `{"query":"an order with refunds"}`,
			`{"results":[{"name":"lookup_order","description":"Look an order up, with its refunds","score":2.44}],` +
				`"message":"Found 1 tool(s). Call load_tool with the exact name to be able to use one."}`,
		},
		"beginnings of words": {
			events.ToolSearch{},
			events.ToolSearchTools, `{"query":"accounting"}`,
			`{"results":[{"name":"delete_account","description":"Delete a customer","score":1.81}],` +
				`"message":"Found 1 tool(s). Call load_tool with the exact name to be able to use one."}`,
		},
		"nothing": {
			events.ToolSearch{},
			events.ToolSearchTools, `{"query":"weather"}`,
			`{"results":[],"message":"No tools found matching \"weather\". Try different keywords."}`,
		},
		"what is found is loaded": {
			events.ToolSearch{AutoLoad: true},
			events.ToolSearchTools, `{"query":"account"}`,
			`{"results":[{"name":"delete_account","description":"Delete a customer","score":3.61}],` +
				`"message":"Found 1 tool(s). They are loaded: call them from your next turn on."} loads delete account`,
		},
		"load by the name that the model sees": {
			events.ToolSearch{},
			events.ToolLoadTool, `{"toolName":"delete_account"}`,
			`{"success":true,"message":"Loaded: delete_account. Call it from your next turn on.","toolName":"delete_account"} loads delete account`,
		},
		"load several": {
			events.ToolSearch{},
			events.ToolLoadTool, `{"toolNames":["lookup_order","issueRefund"]}`,
			`{"success":true,"message":"Loaded: lookup_order, issueRefund. Call it from your next turn on.",` +
				`"toolNames":["lookup_order","issueRefund"]} loads lookup_order,issueRefund`,
		},
		"load what is loaded": {
			events.ToolSearch{},
			events.ToolLoadTool, `{"toolName":"refund_status"}`,
			`{"success":true,"message":"Already loaded: refund_status.","toolName":"refund_status"}`,
		},
		"near names": {
			events.ToolSearch{},
			events.ToolLoadTool, `{"toolName":"lookup_orders"}`,
			`{"success":false,"message":"Tool \"lookup_orders\" not found. Did you mean: lookup_order? Nothing was loaded. ` +
				`Use search_tools to find tools.","toolName":"lookup_orders"}`,
		},
		"all or nothing": {
			events.ToolSearch{},
			events.ToolLoadTool, `{"toolNames":["lookup_order","zzz"]}`,
			`{"success":false,"message":"Tool \"zzz\" not found. Nothing was loaded. Use search_tools to find tools.",` +
				`"toolNames":["lookup_order","zzz"]}`,
		},
		"what the model always has is not found": {
			events.ToolSearch{},
			events.ToolLoadTool, `{"toolName":"always"}`,
			`{"success":false,"message":"Tool \"always\" not found. Nothing was loaded. Use search_tools to find tools.","toolName":"always"}`,
		},
		"no name": {
			events.ToolSearch{},
			events.ToolLoadTool, `{}`,
			`{"success":false,"message":"Say which tool: give toolName, or toolNames for several."}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(t, catalog(test.o, nil), test.key, test.args, "refund_status")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestB17_5_TheFilterHides applies a filter at a search, at a load and at a call; what it fails for is hidden too.
func TestB17_5_TheFilterHides(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		filter string
		given  string
		shown  bool
	}{
		"true":              {`tool.effect == "effectful" && agent.id == "support" && run.requester == "bob"`, "", true},
		"false":             {`tool.id != "issue_refund"`, "", false},
		"by context":        {`context.staff`, `{"staff":true}`, true},
		"context says no":   {`context.staff`, `{"staff":false}`, false},
		"fails":             {`context.staff`, "", false},
		"no bool":           {`tool.id`, "", false},
		"cannot be used":    {`tool.id ==`, "", false},
		"reads arguments":   {`args.query == "refund"`, "", false},
		"context unusable":  {`true`, `{"n":1e999}`, true}, // not read
		"context unusable2": {`context.n > 1`, `{"n":1e999}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := catalog(events.ToolSearch{Filter: test.filter, InjectCatalog: true}, func(st *events.State) {
				st.RequestContext = json.RawMessage(test.given)
			})
			seen := map[string]bool{
				"search":       strings.Contains(answer(t, c, events.ToolSearchTools, `{"query":"issue refund"}`), "issueRefund"),
				"load":         strings.Contains(answer(t, c, events.ToolLoadTool, `{"toolName":"issueRefund"}`), "loads issueRefund"),
				"near":         strings.Contains(answer(t, c, events.ToolLoadTool, `{"toolName":"issueRefunt"}`), "issueRefund"),
				"call":         c.Offers(t.Context(), "issueRefund", nil, []string{"issueRefund"}),
				"instructions": strings.Contains(c.Instructions(t.Context()), "issueRefund"),
			}
			for where, got := range seen {
				if got != test.shown {
					t.Errorf("%s: shown is %v, want %v", where, got, test.shown)
				}
			}
		})
	}
}

// TestB17_1_WhatIsOffered: what can be found must be loaded, whatever else the run may use bounds it, and a tool of the client
// takes the place of one that could be found.
func TestB17_1_WhatIsOffered(t *testing.T) {
	t.Parallel()
	offered := func(c *Catalog, active *[]string, loaded ...string) string {
		var keys []string
		for _, key := range []string{"always", "issueRefund", "lookup_order", "load_tool", "search_tools"} {
			if c.Offers(t.Context(), key, active, loaded) {
				keys = append(keys, key)
			}
		}
		return strings.Join(keys, " ")
	}
	active := func(keys ...string) (*[]string, func(*events.State)) {
		return &keys, func(st *events.State) { st.Options.ActiveTools = &keys }
	}
	equal := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q is offered, want %q", what, got, want)
		}
	}
	equal("at first", offered(catalog(events.ToolSearch{}, nil), nil), "always load_tool search_tools")
	equal("loaded", offered(catalog(events.ToolSearch{}, nil), nil, "issueRefund"), "always issueRefund load_tool search_tools")
	equal("without tool search", offered(nil, nil, "issueRefund"), "always issueRefund lookup_order load_tool search_tools")
	one, with := active("lookup_order")
	equal("bounded", offered(catalog(events.ToolSearch{}, with), one, "issueRefund", "lookup_order"), "lookup_order load_tool search_tools")
	none, with := active("always")
	equal("nothing to be found", offered(catalog(events.ToolSearch{}, with), none, "issueRefund"), "always")
	c := catalog(events.ToolSearch{}, func(st *events.State) {
		st.Options.ClientTools = map[string]events.ClientTool{"issueRefund": {Description: "mine"}}
	})
	equal("the client's", offered(c, nil), "always issueRefund load_tool search_tools")
	if got := answer(t, c, events.ToolLoadTool, `{"toolName":"issueRefund"}`); !strings.Contains(got, `"success":false`) {
		t.Errorf("the client's tool is loaded: %s", got)
	}
}
