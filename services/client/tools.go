package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
)

// executorService is the name under which executors say that they live.
const executorService = "tool-executor"

// ToolInfo is a registered tool, with who has it.
type ToolInfo struct {
	events.Manifest
	Keys  []ToolKey  `json:"keys"`  // agents that have it, by their ids
	Hosts []ToolHost `json:"hosts"` // executors that live now and run this version
}

// ToolKey is an agent that has a tool, and its own key for it.
type ToolKey struct {
	AgentID string `json:"agentId"`
	Key     string `json:"key"`
}

// ToolHost is an executor that runs a tool.
type ToolHost struct {
	ID    string    `json:"id"`
	Pool  string    `json:"pool"`
	Since time.Time `json:"since"`
}

// Tools lists the registered tools by their ids: each once, whoever has it.
func (c *Client) Tools(ctx context.Context) ([]ToolInfo, error) {
	if err := c.needsRegistry("looking at tools"); err != nil {
		return nil, err
	}
	manifests, err := named[events.Manifest](ctx, c, events.RegistryTool)
	if err != nil {
		return nil, err
	}
	agents, err := named[events.AgentDef](ctx, c, events.RegistryAgent)
	if err != nil {
		return nil, err
	}
	live, err := c.conn.ListLive(ctx, executorService)
	if err != nil {
		return nil, busError(err)
	}
	list := make([]ToolInfo, len(manifests))
	for i, m := range manifests {
		list[i] = ToolInfo{Manifest: m, Keys: keysOf(m.ID, agents), Hosts: hostsOf(m, live)}
	}
	slices.SortFunc(list, func(a, b ToolInfo) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// Tool finds a registered tool by its id, or by the key under which agents have it. An id wins over a key; a key under which
// agents have different tools is refused with ambiguous.
func (c *Client) Tool(ctx context.Context, name string) (*ToolInfo, error) {
	all, err := c.Tools(ctx)
	if err != nil {
		return nil, err
	}
	var found []ToolInfo
	for _, t := range all {
		if t.ID == name {
			return &t, nil
		}
		if slices.ContainsFunc(t.Keys, func(k ToolKey) bool { return k.Key == name }) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return nil, events.NotFound("tool", "tool %q is not known: no tool has this id, and no agent has one under this key", name)
	case 1:
		return &found[0], nil
	}
	ids := make([]string, len(found))
	for i, t := range found {
		ids[i] = fmt.Sprintf("%s (of %s)", t.ID, agentsWith(t, name))
	}
	return nil, events.Errorf(events.CodeAmbiguous, "agents have different tools under the key %q: %s; name the id of one", name, strings.Join(ids, ", "))
}

// agentsWith are the agents that have a tool under a key.
func agentsWith(t ToolInfo, key string) string {
	var ids []string
	for _, k := range t.Keys {
		if k.Key == key {
			ids = append(ids, k.AgentID)
		}
	}
	return strings.Join(ids, ", ")
}

func keysOf(tool string, agents []events.AgentDef) []ToolKey {
	keys := []ToolKey{}
	for _, a := range agents {
		for key, id := range a.AllTools() {
			if id == tool {
				keys = append(keys, ToolKey{AgentID: a.ID, Key: key})
			}
		}
	}
	slices.SortFunc(keys, func(a, b ToolKey) int {
		return cmp.Or(cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.Key, b.Key))
	})
	return keys
}

func hostsOf(m events.Manifest, live []events.Live) []ToolHost {
	hosts := []ToolHost{}
	for _, l := range live {
		if slices.Contains(l.Tools, m.ID+"@"+m.Version) {
			hosts = append(hosts, ToolHost{ID: l.ID, Pool: l.Pool, Since: l.Since})
		}
	}
	slices.SortFunc(hosts, func(a, b ToolHost) int { return cmp.Compare(a.ID, b.ID) })
	return hosts
}

// needsRegistry refuses what users may not do who may read no stream.
func (c *Client) needsRegistry(what string) error {
	if c.cfg.LiveOnly {
		return c.needsLog(what)
	}
	return nil
}

// named reads the definitions of a kind. One that cannot be read hides itself, not the others.
func named[T any](ctx context.Context, c *Client, kind string) ([]T, error) {
	raw, err := c.conn.ListNamed(ctx, kind)
	if err != nil {
		return nil, busError(err)
	}
	var all []T
	for _, body := range raw {
		var v T
		if json.Unmarshal(body, &v) == nil {
			all = append(all, v)
		}
	}
	return all, nil
}
