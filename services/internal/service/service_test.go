package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAllStopsTogetherOnFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	stopped := false
	err := All(t.Context(),
		func(context.Context) error { return broken },
		func(ctx context.Context) error {
			<-ctx.Done()
			stopped = true
			return ctx.Err()
		})
	if !errors.Is(err, broken) || !stopped {
		t.Errorf("All = %v, other stopped = %v; want the failure and a stop", err, stopped)
	}
}

func TestAllReturnsNilOnCleanStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := All(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil {
			t.Errorf("All = %v after a clean stop, want nil", err)
		}
	})
}
