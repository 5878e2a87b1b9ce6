package openai

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/weirkeeper/weir/services/agent"
	"github.com/weirkeeper/weir/services/models/internal/adapter"
)

// call is a tool call while its fragments arrive.
type call struct {
	part    string // its id among the parts of this turn
	index   string // what the server calls it, when it does
	id      string // the provider's id
	name    string
	args    strings.Builder
	started bool
}

// calls puts the fragments of a turn's tool calls together. Servers identify a fragment by index, by id, by both, or
// only by its coming after the fragment before; they repeat names, spread them over fragments, or reuse an index for
// the next call. Every call becomes one of its own, in the order in which the calls began.
type calls struct {
	list      []*call
	last      *call // the call of the latest fragment
	announced int   // how many of the list have started
}

// add takes a fragment and returns the parts that it gives.
func (cs *calls) add(d callDelta, parts []agent.ModelPart) []agent.ModelPart {
	f := function{}
	if d.Function != nil {
		f = *d.Function
	}
	c := cs.find(string(d.Index), string(d.ID), f)
	if c == nil {
		c = &call{part: "call-" + strconv.Itoa(len(cs.list)), index: string(d.Index)}
		cs.list = append(cs.list, c)
	}
	cs.last = c
	if c.id == "" {
		c.id = string(d.ID)
	}
	c.args.WriteString(string(f.Arguments))
	if c.started {
		return c.delta(string(f.Arguments), parts)
	}
	c.name = joinName(c.name, string(f.Name))
	return cs.announce(parts, false)
}

// announce starts the calls whose name is whole, which it is when arguments or another call followed. Calls start in
// the order in which they began: one without a name holds back those after it, until the end of the turn.
func (cs *calls) announce(parts []agent.ModelPart, all bool) []agent.ModelPart {
	for cs.announced < len(cs.list) {
		c := cs.list[cs.announced]
		followed := c.args.Len() > 0 || cs.announced < len(cs.list)-1
		if !all && (c.name == "" || !followed) {
			break
		}
		cs.announced++
		c.started = true
		parts = append(parts, agent.ModelPart{
			Type: agent.PartToolInputStart, ID: c.part, ToolName: c.name, ProviderCallID: c.id,
		})
		parts = c.delta(c.args.String(), parts)
	}
	return parts
}

func (c *call) delta(text string, parts []agent.ModelPart) []agent.ModelPart {
	if text == "" {
		return parts
	}
	return append(parts, agent.ModelPart{Type: agent.PartToolInputDelta, ID: c.part, Text: text})
}

// find is the call that a fragment goes on with, or nil when it begins a new one.
func (cs *calls) find(index, id string, f function) *call {
	if index == "" && id == "" {
		if cs.last != nil && cs.last.ends(id, f) {
			return nil
		}
		return cs.last
	}
	for _, c := range slices.Backward(cs.list) {
		switch {
		case index != "" && c.index != index:
			continue
		case index == "" && id != "" && c.id != id:
			continue
		case c.ends(id, f):
			return nil
		}
		return c
	}
	return nil
}

// ends tells whether a fragment that has the call's index or id begins another call all the same. It does when it has
// a name, and either an id of its own, while no arguments are open, or arguments after complete ones.
func (c *call) ends(id string, f function) bool {
	if f.Name == "" || c.name == "" {
		return false
	}
	args := strings.TrimSpace(c.args.String())
	complete := strings.HasSuffix(args, "}") && json.Valid([]byte(args))
	if id != "" && c.id != "" && id != c.id {
		return complete || c.args.Len() == 0
	}
	return complete && strings.TrimSpace(string(f.Arguments)) != ""
}

// finish ends the calls that are complete, in order. Calls that are not stay without an end, and so never run.
func (cs *calls) finish(reason agent.FinishReason, parts []agent.ModelPart) []agent.ModelPart {
	parts = cs.announce(parts, true)
	for _, c := range cs.list {
		if adapter.Whole(c.args.String(), c == cs.last, reason) {
			parts = append(parts, agent.ModelPart{Type: agent.PartToolInputEnd, ID: c.part})
		}
	}
	return parts
}

// joinName adds a fragment of a name: most servers send it once, some with every fragment, some in pieces, some
// longer each time.
func joinName(name, more string) string {
	switch {
	case more == "":
		return name
	case strings.HasPrefix(more, name):
		return more
	default:
		return name + more
	}
}
