package story

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

const text = "What happens.\n\n-- a.json --\n{\"a\":1}\n-- no file -\n-- want --\nall is well\n"

func TestParse(t *testing.T) {
	t.Parallel()
	s := Parse([]byte(text))
	if got := string(s.Prose); got != "What happens.\n\n" {
		t.Errorf("prose = %q", got)
	}
	if got := string(s.File("a.json")); got != "{\"a\":1}\n-- no file -\n" {
		t.Errorf("a.json = %q", got)
	}
	if s.File("b.json") != nil {
		t.Error("a file that is not there has content")
	}
	if got := s.Format(); string(got) != text {
		t.Errorf("format = %q, want what was read", got)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "one.txtar")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("told", func(t *testing.T) {
		Run(t, path, func(_ *testing.T, s Story) string {
			if !bytes.Contains(s.File("a.json"), []byte("a")) {
				t.Error("the inputs are not given")
			}
			return "all is well"
		})
	})
	if got, err := os.ReadFile(path); err != nil || string(got) != text {
		t.Errorf("a story that is as it should be was written: %q, %v", got, err)
	}
}
