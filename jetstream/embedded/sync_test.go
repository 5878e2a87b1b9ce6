package embedded

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The mode is read back from the running server: acknowledgements look the same in all of them.
func TestSyncModes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		sync       Sync
		config     string
		wantAlways bool
		want       time.Duration
	}{
		{SyncDefault, "", false, 2 * time.Minute},
		{SyncInterval(5 * time.Millisecond), "", false, 5 * time.Millisecond},
		{SyncAlways, "", true, 2 * time.Minute},
		{SyncDefault, "jetstream: { sync_interval: always }", true, 2 * time.Minute},
		{SyncInterval(time.Second), "jetstream: { sync_interval: always }", false, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.sync.String()+"/"+tt.config, func(t *testing.T) {
			t.Parallel()
			path := ""
			if tt.config != "" {
				path = filepath.Join(t.TempDir(), "nats.conf")
				if err := os.WriteFile(path, []byte(tt.config), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			srv, err := start(t.Context(), path, Options{Dir: t.TempDir(), Sync: tt.sync})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(srv.Shutdown)
			got := srv.nats.JetStreamConfig()
			if got.SyncAlways != tt.wantAlways || got.SyncInterval != tt.want {
				t.Errorf("always %v every %v, want %v every %v", got.SyncAlways, got.SyncInterval, tt.wantAlways, tt.want)
			}
		})
	}
}

func TestParseSync(t *testing.T) {
	t.Parallel()
	for _, s := range []Sync{SyncDefault, SyncAlways, SyncInterval(5 * time.Millisecond), SyncInterval(time.Minute)} {
		if got, err := ParseSync(s.String()); err != nil || got != s {
			t.Errorf("ParseSync(%q) = %v, %v", s, got, err)
		}
	}
	if got, err := ParseSync(""); err != nil || got != SyncDefault {
		t.Errorf("ParseSync of nothing = %v, %v, want default", got, err)
	}
	for _, text := range []string{"never", "5", "-1s", "0s", "1us"} {
		if got, err := ParseSync(text); err == nil {
			t.Errorf("ParseSync(%q) = %v, want an error", text, got)
		}
	}
}
