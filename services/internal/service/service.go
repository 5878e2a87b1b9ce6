// Package service runs the parts of a service process as one.
package service

import (
	"context"
	"errors"
	"sync"
	"time"
)

// All runs every function until ctx ends or one of them fails; then the others are told to stop, and All waits for
// them. It returns the first failure, and nil when all stopped because ctx ended.
func All(ctx context.Context, run ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, f := range run {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				cancel(failure{err})
			}
		})
	}
	wg.Wait()
	if f, ok := errors.AsType[failure](context.Cause(ctx)); ok {
		return f.error
	}
	return nil
}

// failure marks the cause that came from one of the functions.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Sleep waits for d, and returns the reason when ctx ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
