package adapter

import (
	"testing"

	"github.com/weirkeeper/weir/events"
)

// TestCounted: a provider that counts wrongly cannot make a turn that no event can hold.
func TestCounted(t *testing.T) {
	t.Parallel()
	for got, want := range map[events.Usage]events.Usage{
		{}:                                {},
		{InputTokens: 3, OutputTokens: 4}: {InputTokens: 3, OutputTokens: 4, TotalTokens: 7},
		{InputTokens: 3, OutputTokens: -4, TotalTokens: -1, CachedInputTokens: -2, ReasoningTokens: -3}: {InputTokens: 3, TotalTokens: 3},
		{InputTokens: 3, OutputTokens: 4, TotalTokens: 9, CachedInputTokens: 2}:                         {InputTokens: 3, OutputTokens: 4, TotalTokens: 9, CachedInputTokens: 2},
	} {
		if u := Counted(got); u != want {
			t.Errorf("%+v is counted as %+v, want %+v", got, u, want)
		}
	}
}
