package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/weirkeeper/weir/jetstream"
)

// A worker that cannot connect says so.
func TestWorkerWithoutServer(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	cfg := workerConfig{Log: slog.New(slog.DiscardHandler), Dial: func(context.Context, string) (*jetstream.Conn, error) {
		return nil, away
	}}
	if _, err := newWorker(t.Context(), cfg, allServices...); !errors.Is(err, away) {
		t.Errorf("error = %v, want %v", err, away)
	}
}
