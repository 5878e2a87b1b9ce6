package toolexecutor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
)

// How an executor looks after the tools of MCP servers.
const (
	mcpLook        = 5 * time.Second  // how often it looks whether tools were accepted
	mcpRelist      = time.Minute      // how often a list is read again without a reason
	mcpSlowest     = time.Minute      // between two tries to reach a server
	mcpStartWithin = 10 * time.Second // how long a start waits for servers
)

// mcpLoops look after the servers, each by itself: one that is slow or broken hinders no other.
func (s *Service) mcpLoops() []func(context.Context) error {
	var loops []func(context.Context) error
	for _, m := range s.cfg.MCP {
		loops = append(loops, func(ctx context.Context) error { return s.lookAfter(ctx, m) })
	}
	return loops
}

// lookAfter keeps the tools of a server in step with what it lists and with what was accepted, until ctx ends.
func (s *Service) lookAfter(ctx context.Context, m *MCPServer) error {
	defer m.close()
	said := ""
	for wait := mcpLook; ; {
		err := s.refresh(ctx, m, true)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait = mcpLook
			if said != "" {
				s.log.InfoContext(ctx, "mcp server can be used again", "server", m.def.ID)
			}
			said = ""
		default:
			wait = min(2*wait, mcpSlowest)
			if text := m.quote([]byte(err.Error()), false); text != said { // once, not at each try
				s.log.WarnContext(ctx, "mcp server cannot be used now", "server", m.def.ID, "error", text)
				said = text
			}
		}
		m.rest(ctx, wait, err == nil)
	}
}

// rest waits for some time, or until the list may have changed. What broke a moment ago is not tried at once.
func (m *MCPServer) rest(ctx context.Context, wait time.Duration, wakes bool) {
	wake := m.wake
	if !wakes {
		wake = nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// registerMCP looks at each server once, all side by side and not for long. It leaves no connection behind: whether this
// process will run is not known yet.
func (s *Service) registerMCP(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, mcpStartWithin)
	defer cancel()
	var looking sync.WaitGroup
	for _, m := range s.cfg.MCP {
		looking.Go(func() {
			defer m.close()
			if err := s.refresh(ctx, m, false); err != nil {
				s.log.WarnContext(ctx, "mcp server cannot be used now", "server", m.def.ID, "error", m.quote([]byte(err.Error()), false))
			}
		})
	}
	looking.Wait()
}

// refresh tells the registry what a server lists, and hosts and registers those of its tools that were accepted as they
// are. It may be repeated at any time, beside other executors of the same server. tell logs what is not used.
func (s *Service) refresh(ctx context.Context, m *MCPServer, tell bool) error {
	listing, _, err := m.list(ctx, mcpRelist)
	if err != nil {
		return err
	}
	m.mu.Lock()
	generation := m.generation
	m.mu.Unlock()
	accepted, err := s.tellListed(ctx, m, listing)
	if err != nil {
		return err
	}
	if m.same(generation, accepted) {
		return nil
	}
	usable := map[string]*mcpTool{}
	for name, manifest := range listing.manifests {
		if digest := listing.tools[name].digest; accepted[name] == digest {
			usable[name] = &mcpTool{outside: outside{manifest: manifest, redact: m.redact}, server: m, name: name, digest: digest}
		}
	}
	if err := s.use(ctx, m, usable); err != nil {
		return err
	}
	if tell {
		s.tellLeftOut(ctx, m, listing, accepted)
		m.settled(generation, accepted)
	}
	return nil
}

// tellListed keeps the record of a server in the registry: what it lists, and what of it was accepted. What an open
// server lists first is accepted.
func (s *Service) tellListed(ctx context.Context, m *MCPServer, listing *mcpListing) (map[string]string, error) {
	listed := make(map[string]events.MCPListed, len(listing.manifests))
	for name, manifest := range listing.manifests {
		listed[name] = events.MCPListed{ToolID: manifest.ID, Digest: listing.tools[name].digest}
	}
	var accepted map[string]string
	err := s.conn.SwapNamed(ctx, events.RegistryMCP, m.def.ID, func(body []byte) ([]byte, error) {
		var record events.MCPServer
		if len(body) > 0 {
			if err := json.Unmarshal(body, &record); err != nil {
				return nil, fmt.Errorf("the record of MCP server %s cannot be read: %w", m.def.ID, err)
			}
		}
		before := record
		record.ID, record.Listed = m.def.ID, listed
		if record.Open {
			record, _ = record.Accept()
		}
		accepted = record.Accepted
		if before.ID == record.ID && before.Open == record.Open && maps.Equal(before.Listed, listed) && maps.Equal(before.Accepted, accepted) {
			return nil, nil
		}
		return events.Marshal(record)
	})
	return accepted, err
}

// use hosts and registers tools, and takes those back that the registry has of the server besides. A host of a tool that
// may not be used any more stays: it answers calls that were released before, without sending them.
func (s *Service) use(ctx context.Context, m *MCPServer, usable map[string]*mcpTool) error {
	there, err := s.conn.ListNamed(ctx, events.RegistryTool)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(usable)) {
		t := usable[name]
		if err := s.useOne(ctx, m, t, there[events.Token(t.manifest.ID)]); err != nil {
			return err
		}
	}
	for _, body := range there {
		var old events.Manifest
		if json.Unmarshal(body, &old) != nil || old.Source.Kind != SourceMCP || old.Source.Server != m.def.ID {
			continue
		}
		if t := usable[old.Source.Name]; t != nil && t.manifest.ID == old.ID {
			continue
		}
		if err := s.conn.DeleteNamed(ctx, events.RegistryTool, old.ID); err != nil && !errors.Is(err, jetstream.ErrNotFound) {
			return err
		}
		s.log.WarnContext(ctx, "mcp tool is disabled until it is accepted by weir apply", "server", m.def.ID, "tool", old.Source.Name,
			"toolId", old.ID)
	}
	return nil
}

// useOne hosts and registers one tool, unless its id belongs to another.
func (s *Service) useOne(ctx context.Context, m *MCPServer, t *mcpTool, body []byte) error {
	var old events.Manifest
	if json.Unmarshal(body, &old) == nil && old.ID == t.manifest.ID && old.Source != t.manifest.Source {
		s.log.WarnContext(ctx, "mcp tool is left out: its id is that of another tool", "server", m.def.ID, "tool", t.name,
			"toolId", old.ID, "source", old.Source.Kind)
		return nil
	}
	tool, err := agent.Checked(t)
	if err != nil {
		return err
	}
	h, err := s.hostOf(tool)
	if err != nil {
		return err
	}
	s.mu.Lock()
	there, taken := s.hosts[h.manifest.ID]
	taken = taken && there.manifest.Source != h.manifest.Source
	if !taken {
		s.hosts[h.manifest.ID] = h
	}
	s.mu.Unlock()
	if taken {
		s.log.WarnContext(ctx, "mcp tool is left out: its id is that of another tool here", "server", m.def.ID, "tool", t.name,
			"toolId", h.manifest.ID)
		return nil
	}
	raw, err := events.Marshal(h.manifest)
	if err != nil {
		return err
	}
	if string(raw) == string(body) {
		return nil
	}
	return s.register(ctx, h.manifest.ID, raw)
}

// tellLeftOut logs what of a list is not used, each with its reason.
func (s *Service) tellLeftOut(ctx context.Context, m *MCPServer, listing *mcpListing, accepted map[string]string) {
	for _, out := range listing.leftOut {
		s.log.WarnContext(ctx, "mcp tool is left out", "server", m.def.ID, "tool", out.name, "reason", m.quote([]byte(out.why), false))
	}
	for _, name := range slices.Sorted(maps.Keys(listing.manifests)) {
		if accepted[name] != listing.tools[name].digest {
			s.log.WarnContext(ctx, "mcp tool waits to be accepted by weir apply", "server", m.def.ID, "tool", name)
		}
	}
}

// same reports whether the tools were settled for this list and what is accepted of it, not long ago: other executors,
// which may know less, write the registry too.
func (m *MCPServer) same(generation int, accepted map[string]string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settledFor == generation && maps.Equal(m.accepted, accepted) && time.Since(m.settledAt) < mcpRelist
}

func (m *MCPServer) settled(generation int, accepted map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settledFor, m.settledAt, m.accepted = generation, time.Now(), accepted
}
