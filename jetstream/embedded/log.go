package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// levelDetail is one below debug: nats-server's own debug lines, several for each connection.
const levelDetail = slog.LevelDebug - 4

// logger hands nats-server's log to slog. What the server calls a notice is news to its operator, but not to
// somebody for whom it is a library, so notices are debug here. A fatal line does not end the process: it is
// kept as the reason why the start failed.
type logger struct {
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

var _ natsserver.Logger = (*logger)(nil)

// Noticef logs at debug.
func (l *logger) Noticef(format string, args ...any) { l.write(slog.LevelDebug, format, args) }

// Warnf logs at warn.
func (l *logger) Warnf(format string, args ...any) { l.write(slog.LevelWarn, format, args) }

// Errorf logs at error.
func (l *logger) Errorf(format string, args ...any) { l.write(slog.LevelError, format, args) }

// Debugf logs below debug.
func (l *logger) Debugf(format string, args ...any) { l.write(levelDetail, format, args) }

// Tracef discards: trace lines hold payloads, and payloads are never logged.
func (l *logger) Tracef(string, ...any) {}

// Fatalf keeps the first reason and logs at error.
func (l *logger) Fatalf(format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	l.fatal.CompareAndSwap(nil, &reason)
	l.write(slog.LevelError, "%s", []any{reason})
}

// detailed tells whether the server should produce debug lines at all.
func (l *logger) detailed(ctx context.Context) bool { return l.log.Enabled(ctx, levelDetail) }

func (l *logger) write(level slog.Level, format string, args []any) {
	ctx := context.Background()
	if l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "nats-server", "text", fmt.Sprintf(format, args...))
	}
}
