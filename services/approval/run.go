package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/internal/jq"
	"github.com/weirkeeper/weir/services/internal/toolsearch"
	"github.com/weirkeeper/weir/services/internal/transform"
)

// run is what the gate knows of a run and what never changes while it lasts: where it began, and the definitions that
// it is pinned to.
type run struct {
	start *events.State // the state before the first step, or that of the last carry
	agent events.AgentDef
	hooks events.Hooks               // asked before each call
	tools map[string]*tool           // by the key that the model sees
	views map[string]*transform.View // by key, of tools that hide something

	search *toolsearch.Catalog // nil: the agent has no tool search
}

// tool is a pinned definition, ready to be used.
type tool struct {
	events.Manifest
	digest  string
	input   *events.Schema
	output  *jq.Program    // what the model is told of the answers of clients; nil: the answers
	context *events.Schema // nil: any request context will do
	preview *events.PreviewForm
	secrets *events.Secrets // nil: it has none

	observers *events.Observers // nil: it has none
}

// view shows what may be shown of calls to a tool of the run; of a tool that it does not have there is nothing to hide.
func (r *run) view(toolName string) *transform.View { return r.views[toolName] }

// key is where the run's snapshot is kept.
func (r *run) key() string {
	s := r.start
	return events.SuspendedKey(s.AgentID, s.ResourceID, s.ThreadID, s.RootRunID, s.RunID)
}

// errNoRun says that the log holds no such run (any more).
var errNoRun = errors.New("no such run")

// run reads what never changes of a run: from memory, else from its first fact, else from its last carry.
func (s *Service) run(ctx context.Context, id string) (*run, error) {
	if r, ok := s.runs.Get(id); ok {
		return r, nil
	}
	first, err := s.conn.Fact(ctx, s.ns.Start(id))
	if errors.Is(err, jetstream.ErrNotFound) {
		if _, first, err = s.conn.RunState(ctx, id); errors.Is(err, jetstream.ErrNotFound) {
			return nil, fmt.Errorf("%w: %s", errNoRun, id)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", id, err)
	}
	st, err := s.begin(ctx, id, first)
	if err != nil {
		return nil, err
	}
	r, err := s.pinned(ctx, st)
	if err != nil {
		return nil, err
	}
	s.runs.Put(id, r, 1)
	return r, nil
}

// begin is the state that the gate's knowledge of a run rests on.
func (s *Service) begin(ctx context.Context, id string, first events.Event) (*events.State, error) {
	if first.Place.Kind == events.KindStart {
		return events.NewState(first)
	}
	st, _, err := s.conn.RunState(ctx, id)
	return st, err
}

// pinned reads the definitions of a run. Those that are missing or broken end its calls, not the gate.
func (s *Service) pinned(ctx context.Context, st *events.State) (*run, error) {
	r := &run{start: st, tools: map[string]*tool{}, views: map[string]*transform.View{}}
	if st.Definitions.Agent != "" {
		raw, err := s.conn.Def(ctx, st.Definitions.Agent)
		if err != nil {
			return nil, fmt.Errorf("definition of agent %s: %w", st.AgentID, err)
		}
		if err := json.Unmarshal(raw, &r.agent); err != nil {
			return nil, fmt.Errorf("definition of agent %s: %w", st.AgentID, err)
		}
	}
	r.hooks = inheritedHooks(st.Inherited, st.Options.Hooks.Over(r.agent.Hooks))
	for key, digest := range st.Definitions.Tools {
		t, err := s.tool(ctx, digest)
		if err != nil {
			return nil, fmt.Errorf("definition of tool %s: %w", key, err)
		}
		r.tools[key] = t
	}
	if err := s.addAgents(ctx, r); err != nil {
		return nil, err
	}
	for key, c := range st.Options.ClientTools {
		var own *events.Manifest
		if t := r.tools[key]; t != nil {
			own = &t.Manifest
		}
		t, err := s.derived(ctx, c.Manifest(key, own))
		if err != nil {
			return nil, fmt.Errorf("client tool %s: %w", key, err)
		}
		r.tools[key] = t
	}
	if err := s.addSearch(ctx, r); err != nil {
		return nil, err
	}
	for key, t := range r.tools {
		if v := transform.New(t.Manifest, t.secrets, st.Options.TransformPolicy(r.agent), s.conn.TransformAtHost); v != nil {
			r.views[key] = v
		}
	}
	return r, nil
}

// background is how calls of a tool may run in the background; nil when they may not.
func (r *run) background(key string) *events.Background {
	t := r.tools[key]
	if t == nil || t.Delegates() || r.start.OneTool() {
		return nil
	}
	return events.BackgroundOf(r.agent, key, t.Manifest)
}

// toolOf is the definition that an ask names: that of the run, else by its digest.
func (s *Service) toolOf(ctx context.Context, r *run, ask events.CallHeld) (*tool, error) {
	if t := r.tools[ask.ToolName]; t != nil && events.SameDigest(t.digest, ask.ToolDigest) {
		return t, nil
	}
	t, err := s.tool(ctx, ask.ToolDigest)
	if err != nil {
		return nil, fmt.Errorf("definition of tool %s: %w", ask.ToolID, err)
	}
	return t, nil
}

// tool reads and compiles a definition by its digest.
func (s *Service) tool(ctx context.Context, digest string) (*tool, error) {
	if t, ok := s.tools.Get(digest); ok {
		return t, nil
	}
	raw, err := s.conn.Def(ctx, digest)
	if err != nil {
		return nil, err
	}
	var m events.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	t, err := s.compile(ctx, m, digest)
	if err != nil {
		return nil, err
	}
	s.tools.Put(digest, t, 1)
	return t, nil
}

// derived compiles a definition that stands in no registry, because it follows from what the run is pinned to.
func (s *Service) derived(ctx context.Context, m events.Manifest) (*tool, error) {
	raw, err := events.Marshal(m)
	if err != nil {
		return nil, err
	}
	return s.compile(ctx, m, events.Digest(raw))
}

// compile makes a definition ready to be used.
func (s *Service) compile(ctx context.Context, m events.Manifest, digest string) (*tool, error) {
	t := &tool{Manifest: m, digest: digest}
	var err error
	if t.input, err = events.CompileSchema(t.InputSchema); err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	if len(t.RequestContextSchema) > 0 && string(t.RequestContextSchema) != "null" {
		if t.context, err = events.CompileSchema(t.RequestContextSchema); err != nil {
			return nil, fmt.Errorf("request context schema: %w", err)
		}
	}
	t.secrets = events.SecretsOf(t.Manifest)
	if t.observers, err = events.ParseObservers(t.Hooks); err != nil {
		s.log.WarnContext(ctx, "a tool's observers are told nothing", "toolId", t.ID, "error", err)
	}
	if t.preview, err = events.ParsePreviewForm(t.Preview); err != nil {
		s.log.WarnContext(ctx, "a tool's preview cannot be made", "toolId", t.ID, "error", err)
	}
	if t.Client() {
		if t.output, err = outputProgram(t.Manifest); err != nil {
			s.log.WarnContext(ctx, "what the model is told of a client's answers cannot be made", "toolId", t.ID, "error", err)
		}
	}
	return t, nil
}

// usable are the keys that the model may call once it has loaded these, in order; a hidden one is unknown to it.
func (r *run) usable(ctx context.Context, loaded []string) []string {
	active := toolsearch.Active(r.start, r.agent)
	var keys []string
	for key := range r.tools {
		if r.search.Offers(ctx, key, active, loaded) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
