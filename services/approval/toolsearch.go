package approval

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/internal/toolsearch"
)

// Tool search. The gate answers calls of search_tools and load_tool: what they give follows from definitions that it has
// before it anyway, so nothing is released and nobody runs them. They pass its pipeline like any other call; only that a run
// wants approval of all its calls does not hold them, because nothing is run.
//
// What the model has loaded stands in the results of these calls. Whether a tool of the catalogue may be called at a step
// follows from those of the steps before, so that every gate, whenever it looks, says the same.

// addSearch puts the tools by which a model finds others beside those of the run.
func (s *Service) addSearch(ctx context.Context, r *run) error {
	if r.agent.ToolSearch == nil {
		return nil
	}
	manifests := map[string]events.Manifest{}
	for key, t := range r.tools {
		manifests[key] = t.Manifest
	}
	r.search = toolsearch.New(r.start, r.agent, manifests)
	finders := toolsearch.Finders()
	for _, key := range slices.Sorted(maps.Keys(finders)) {
		raw, err := events.Marshal(finders[key])
		if err != nil {
			return fmt.Errorf("tool %s: %w", key, err)
		}
		if r.tools[key], err = s.compile(ctx, finders[key], events.Digest(raw)); err != nil {
			return fmt.Errorf("tool %s: %w", key, err)
		}
	}
	return nil
}

// loadedBefore are the tools that the model had loaded when it took a step. Only a run with tool search is read for them.
func (s *Service) loadedBefore(ctx context.Context, r *run, step int) ([]string, error) {
	if r.search == nil || step <= 1 {
		return nil, nil
	}
	st, err := s.current(ctx, r.start.RunID)
	if err != nil {
		return nil, err
	}
	if st.Step < step {
		return nil, fmt.Errorf("the leader does not show step %d of %s yet", step, r.start.RunID)
	}
	return st.LoadedBefore(step), nil
}

// find is the result of a call of search_tools or load_tool.
func (q question) find(ctx context.Context, args []byte) *events.CallFinished {
	answer, err := q.run.search.Answer(ctx, q.planned.ToolName, args, q.loaded)
	if err != nil {
		return q.result(events.OutcomeError, func(d *events.CallFinished) {
			d.Error = &events.ToolError{Name: "Error", Message: err.Error()}
		})
	}
	return q.result(events.OutcomeOK, func(d *events.CallFinished) { d.Result, d.Loads = answer.Result, answer.Loads })
}

// findFor is the result of one that people have approved.
func (s *Service) findFor(ctx context.Context, r *run, a answered) (*events.CallFinished, error) {
	q := question{
		ns: s.ns, call: a.call, round: a.ask.Round, run: r, planned: events.CallPlanned{ToolName: a.ask.ToolName}, now: time.Now().UTC(),
	}
	var err error
	if q.loaded, err = s.loadedBefore(ctx, r, a.call.Step); err != nil {
		return nil, err
	}
	d := q.find(ctx, a.ask.Args)
	d.Args, d.Principal = a.ask.Args, a.data.Principal
	return d, nil
}
