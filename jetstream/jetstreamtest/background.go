package jetstreamtest

import (
	"context"
	"sync"
	"testing"
)

// Background runs functions, such as those of services, until the test ends, and waits for them. One that fails before
// fails the test.
func Background(tb testing.TB, run ...func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	var wg sync.WaitGroup
	for _, f := range run {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				tb.Errorf("service: %v", err)
			}
		})
	}
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}
