package embedded

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLogLevels(t *testing.T) {
	t.Parallel()
	text := new(bytes.Buffer)
	l := &logger{log: textLog(text, levelDetail)}
	l.Tracef("payload %s", "secret")
	l.Debugf("debug %d", 1)
	l.Noticef("notice %d", 2)
	l.Warnf("warn %d", 3)
	l.Errorf("error %d", 4)
	l.Fatalf("fatal %d", 5)
	l.Fatalf("fatal %d", 6)
	want := `level=DEBUG-4 msg=nats-server text="debug 1"
level=DEBUG msg=nats-server text="notice 2"
level=WARN msg=nats-server text="warn 3"
level=ERROR msg=nats-server text="error 4"
level=ERROR msg=nats-server text="fatal 5"
level=ERROR msg=nats-server text="fatal 6"
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
	if got := *l.fatal.Load(); got != "fatal 5" {
		t.Errorf("reason = %q, want the first", got)
	}
	if !l.detailed(t.Context()) || (&logger{log: textLog(text, slog.LevelDebug)}).detailed(t.Context()) {
		t.Error("server debug lines are wanted below debug only")
	}
}

func TestStartIsQuiet(t *testing.T) {
	t.Parallel()
	for level, quiet := range map[slog.Level]bool{slog.LevelInfo: true, slog.LevelDebug: false} {
		text := new(bytes.Buffer)
		srv, err := Start(t.Context(), Options{Dir: t.TempDir(), Log: textLog(text, level)})
		if err != nil {
			t.Fatal(err)
		}
		srv.Shutdown()
		if got := text.String() == ""; got != quiet {
			t.Errorf("at %v: quiet = %v, want %v:\n%s", level, got, quiet, text)
		}
		if strings.Contains(text.String(), "level=WARN") {
			t.Errorf("a plain start warns:\n%s", text)
		}
	}
}

func textLog(text *bytes.Buffer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}
