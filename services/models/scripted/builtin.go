package scripted

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// builtin are the playbooks that need no configuration, by the name of the model.
var builtin = map[string]func() *Playbook{
	"bench":   benchBook,
	"support": supportBook,
}

// Builtin is the model of a built-in playbook: "support" tells the refund story of the demonstration, "bench" is the
// model of the benchmark.
func Builtin(name string) (*Model, error) {
	book, ok := builtin[name]
	if !ok {
		names := strings.Join(slices.Sorted(maps.Keys(builtin)), ", ")
		return nil, fmt.Errorf("there is no built-in playbook %q (there are %s); configure one", name, names)
	}
	return New(book())
}

// benchBook calls one tool and, when it has a result, ends. No delay: what a run costs beside it is what is measured.
func benchBook() *Playbook {
	return &Playbook{Rules: []Rule{
		{When: When{Before: []string{anyTool}}, Calls: []Call{{Tool: lookupOrder, Args: json.RawMessage(`{"orderId":"42"}`)}}},
		{Say: "Order 42 was refunded."},
	}}
}

// Tools of the support story.
const (
	lookupOrder = "lookup_order"
	issueRefund = "issue_refund"
)

// order matches the number of an order, "42" or "ord-1042".
const order = `#?(?P<order>[\w-]*\d[\w-]*)`

// What a customer writes.
var (
	refund = Patterns{
		`(?is)refund.*?\border\s*(?:no\.?|number|id)?\s*` + order,
		`(?is)\border\s*(?:no\.?|number|id)?\s*` + order + `.*?(?:refund|money back)`,
		`(?is)(?:refund|money back).*?` + order,
		`^\W*` + order + `\W*$`, // the answer to "which order?"
	}
	refundOfWhat = Patterns{`(?i)refund|money back`}
	question     = Patterns{`(?is)\border\s*(?:no\.?|number|id)?\s*` + order}
)

// An object is what a tool answers that did its work; when people declined it the model is told their reason, a text.
const worked = `^\s*\{`

// supportBook looks up an order, asks for its refund, and tells how that ended. It answers anything else with what it
// is and what it can do.
func supportBook() *Playbook {
	tools := []string{lookupOrder, issueRefund}
	rules := []Rule{
		{
			When: When{User: refund, Tools: tools, Before: []string{anyTool}},
			Say:  "Let me look up order {{.order}}.", Calls: lookup,
		},
		{
			When: When{User: refund, Before: []string{issueRefund}, Failed: []string{lookupOrder}},
			Say:  "I could not look up order {{.order}}, so nothing was refunded: {{text .results.lookup_order}}",
		},
		{
			When: When{User: refund, Before: []string{issueRefund}, Result: map[string]string{lookupOrder: worked}},
			Say:  "I found it. Now the refund.",
			Calls: []Call{{Tool: issueRefund, Args: whole(`{"orderId":{{json .order}}` +
				`{{with or (index .results.lookup_order "amount") (index .results.lookup_order "total")}},"amount":{{json .}}{{end}}}`)}},
		},
		{
			When: When{User: refund, Failed: []string{issueRefund}},
			Say:  "Order {{.order}} was not refunded, something went wrong: {{text .results.issue_refund}}",
		},
		{
			When: When{User: refund, Result: map[string]string{issueRefund: worked}},
			Say:  `Order {{.order}} was refunded{{with index .results.issue_refund "amount"}}: {{.}}{{end}}.`,
		},
		{
			When: When{User: refund, After: []string{issueRefund}},
			Say:  "Order {{.order}} was not refunded. The reason I was given: {{text .results.issue_refund}}",
		},
		{
			When: When{User: refundOfWhat, Tools: tools, Before: []string{anyTool}},
			Say:  "Which order is it? Tell me its number, for example: Refund order 1042",
		},
	}
	return &Playbook{Rules: append(rules, otherRules...)}
}

var lookup = []Call{{Tool: lookupOrder, Args: json.RawMessage(`{"orderId":"{{.order}}"}`)}}

// otherRules are what the support model does when no refund is asked for.
var otherRules = []Rule{
	{
		When: When{User: question, Tools: []string{lookupOrder}, Before: []string{anyTool}},
		Say:  "Let me look up order {{.order}}.", Calls: lookup,
	},
	{
		When: When{After: []string{lookupOrder}},
		Say:  "This is what I found: {{text .results.lookup_order}}",
	},
	{
		Say: "I am the scripted support model that comes with Weir, not an AI: I follow a small playbook so that you can " +
			"see tool calls and approvals without a key. I can refund an order (try: Refund order 1042) and look one up (try: " +
			"Where is order 1042?).{{with .tools}} The tools I was given: {{range $i, $t := .}}{{if $i}}, {{end}}{{$t}}{{end}}.{{end}} " +
			"For real answers give the agent a real model, for example openai/gpt-5 with OPENAI_API_KEY set.",
	},
}

// whole is the JSON form of arguments that are a template as a whole.
func whole(text string) json.RawMessage {
	raw, _ := json.Marshal(text) // a text always encodes
	return raw
}
