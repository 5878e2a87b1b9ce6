package events_test

import (
	"testing"

	"github.com/weirkeeper/weir/events"
)

func TestUsageAddsUp(t *testing.T) {
	t.Parallel()
	first := events.Usage{InputTokens: 1, OutputTokens: 2, TotalTokens: 3, CachedInputTokens: 4, ReasoningTokens: 5}
	second := events.Usage{InputTokens: 10, OutputTokens: 20, TotalTokens: 30, CachedInputTokens: 40, ReasoningTokens: 50}
	both := events.Usage{InputTokens: 11, OutputTokens: 22, TotalTokens: 33, CachedInputTokens: 44, ReasoningTokens: 55}
	if got := first.Add(second); got != both {
		t.Errorf("the sum is %+v", got)
	}
	if got := both.Since(first); got != second {
		t.Errorf("since the first it is %+v", got)
	}
}
