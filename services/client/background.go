package client

import (
	"encoding/json"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// tasks are the background calls of a run, as its chunks tell of them.
type tasks struct {
	ended    map[string]bool // by toolCallId
	left     []string        // that went on when the run ended
	finished bool            // the run has
}

// note remembers what a chunk says of background calls.
func (t *tasks) note(ch events.Chunk) {
	switch ch.Type {
	case events.ChunkBackgroundCompleted, events.ChunkBackgroundFailed, events.ChunkBackgroundCancelled:
		withPayload(ch, func(p events.BackgroundPayload) {
			if t.ended == nil {
				t.ended = map[string]bool{}
			}
			t.ended[p.ToolCallID] = true
		})
	case events.ChunkFinish:
		t.finished = true
		withPayload(ch, func(p events.FinishPayload) { t.left = p.Metadata.Background })
	case events.ChunkAbort:
		t.finished = true
	default:
	}
}

// open are the background calls that go on after the end of the run.
func (t *tasks) open() []string {
	return slices.DeleteFunc(slices.Clone(t.left), func(id string) bool { return t.ended[id] })
}

// isPlaceholder reports whether a chunk stands in the place of a result that is not there yet.
func isPlaceholder(p events.ToolResultPayload) bool {
	return p.Outcome == "" && len(p.ProviderMetadata) > 0
}

// addTask puts the result of a background call in the place of what stood there for it.
func (f *Fold) addTask(raw json.RawMessage) {
	var p events.BackgroundPayload
	if json.Unmarshal(raw, &p) != nil {
		return
	}
	if old, ok := f.results[p.ToolCallID]; ok && !isPlaceholder(old) {
		return // awaited: its result is a result as any other
	}
	result := events.ToolResultPayload{
		ToolCallID: p.ToolCallID, ToolName: p.ToolName, Args: p.Args, Result: p.Result, DataRef: p.DataRef, IsError: p.IsError,
		Error: p.Error, Outcome: p.Outcome,
	}
	delete(f.asks, p.ToolCallID)
	f.results[p.ToolCallID] = result
	f.out.ToolResults = put(f.out.ToolResults, result)
	for i := range f.out.Steps {
		if step := &f.out.Steps[i]; slices.ContainsFunc(step.ToolCalls, func(c events.ToolCallPayload) bool { return c.ToolCallID == p.ToolCallID }) {
			step.ToolResults = put(step.ToolResults, result)
		}
	}
}

// put replaces the result of the same call in a list, or adds it.
func put(list []events.ToolResultPayload, result events.ToolResultPayload) []events.ToolResultPayload {
	list = slices.Clone(list)
	if i := slices.IndexFunc(list, func(r events.ToolResultPayload) bool { return r.ToolCallID == result.ToolCallID }); i >= 0 {
		list[i] = result
		return list
	}
	return append(list, result)
}
