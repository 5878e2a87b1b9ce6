package planner

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Tools that a request brings itself are part of its main.start, and of no registry: whoever may ask for runs defines
// nothing for others. Planner and gate make the same definitions of them.

// warningReplaced is the code of warnings about tools of the agent that the request has put others in the place of.
const warningReplaced = "tool_replaced"

// checkClientTools refuses tools that no call could be made to.
func checkClientTools(req events.RunRequested, def events.AgentDef) *events.Error {
	if len(req.ClientTools) == 0 {
		return nil
	}
	bad := func(format string, args ...any) *events.Error {
		return events.Errorf(events.CodeInvalidRequest, "clientTools: "+format, args...)
	}
	raw, err := events.Marshal(req.ClientTools)
	switch {
	case err != nil:
		return bad("%v", err)
	case len(req.ClientTools) > events.MaxClientTools:
		return bad("there are %d; a request may bring %d", len(req.ClientTools), events.MaxClientTools)
	case len(raw) > events.MaxClientToolBytes:
		return bad("they have %d bytes together; at most %d are taken", len(raw), events.MaxClientToolBytes)
	}
	var issues []events.Issue
	for _, key := range slices.Sorted(maps.Keys(req.ClientTools)) {
		if def.ToolSearch != nil && events.IsToolFinder(key) {
			issues = append(issues, events.Issue{Field: "clientTools." + key, Message: "is the name of a tool by which the model finds others"})
			continue
		}
		c := req.ClientTools[key]
		err := agent.Check(described{manifest: c.Manifest(key, nil)})
		if err == nil {
			continue
		}
		field := "clientTools." + key
		e, ok := errors.AsType[*events.Error](err)
		if !ok || len(e.Issues) == 0 {
			return bad("%s: %v", key, err)
		}
		for _, i := range e.Issues {
			issues = append(issues, events.Issue{Field: strings.TrimSuffix(field+"."+i.Field, "."), Message: i.Message})
		}
	}
	if len(issues) > 0 {
		refusal := bad("%s %s", strings.TrimPrefix(issues[0].Field, "clientTools."), issues[0].Message)
		refusal.Issues = issues
		return refusal
	}
	keys := slices.Collect(maps.Keys(req.ClientTools))
	for key := range def.AllTools() {
		if _, replaced := req.ClientTools[key]; !replaced {
			keys = append(keys, key)
		}
	}
	if def.ToolSearch != nil {
		keys = append(keys, events.ToolSearchTools, events.ToolLoadTool)
	}
	if _, err := agent.SafeNames(keys); err != nil {
		return bad("%v", err)
	}
	return nil
}

// described is a tool without code, to be checked.
type described struct {
	agent.Tool

	manifest events.Manifest
}

// Manifest is the manifest.
func (d described) Manifest() events.Manifest { return d.manifest }

// addClientTools puts the tools of a request beside those of the agent, or in their place.
func (d *definition) addClientTools(tools map[string]events.ClientTool) {
	for _, key := range slices.Sorted(maps.Keys(tools)) {
		var own *events.Manifest
		if m, there := d.tools[key]; there {
			own = &m
			if !m.Client() {
				d.replaced = append(d.replaced, key)
			}
		}
		d.tools[key] = tools[key].Manifest(key, own)
	}
}
