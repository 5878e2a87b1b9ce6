// Package story reads and writes the stories that pure functions are tested with: txtar files, in which prose that
// anybody can review comes first, then named files of inputs, and last what the function made of them. Only tests
// import it.
package story

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Want is the file of a story that holds the golden output.
const Want = "want"

var update = flag.Bool("update", false, "write the golden outputs of stories")

// A Story is one txtar file.
type Story struct {
	Prose []byte
	Files []File // in order
}

// A File is a part of a story.
type File struct {
	Name string
	Data []byte
}

// Parse reads a story. A line "-- name --" begins a file; what stands before the first is prose.
func Parse(text []byte) Story {
	var s Story
	at := &s.Prose
	for line := range bytes.Lines(text) {
		name, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "-- ")
		if name, end := strings.CutSuffix(name, " --"); ok && end {
			s.Files = append(s.Files, File{Name: name})
			at = &s.Files[len(s.Files)-1].Data
			continue
		}
		*at = append(*at, line...)
	}
	return s
}

// Format is the text of a story.
func (s Story) Format() []byte {
	var b bytes.Buffer
	b.Write(s.Prose)
	for _, f := range s.Files {
		b.WriteString("-- " + f.Name + " --\n")
		b.Write(f.Data)
	}
	return b.Bytes()
}

// File is the content of a file, nil when there is none.
func (s Story) File(name string) []byte {
	for _, f := range s.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// Run tells every story that fits a pattern and compares what tell makes of it with the story's golden output. With
// -update it writes that output instead. A story without prose fails: nobody could review it.
func Run(t *testing.T, pattern string, tell func(t *testing.T, s Story) string) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no story fits %s: %v", pattern, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path) //nolint:gosec // a file of the test
			if err != nil {
				t.Fatal(err)
			}
			s := Parse(text)
			if len(bytes.TrimSpace(s.Prose)) == 0 {
				t.Error("the story has no prose")
			}
			s.compare(t, path, tell(t, s))
		})
	}
}

func (s Story) compare(t *testing.T, path, got string) {
	t.Helper()
	if !strings.HasSuffix(got, "\n") {
		got += "\n"
	}
	if got == string(s.File(Want)) {
		return
	}
	if !*update {
		t.Errorf("got:\n%s\nwant:\n%s\nrun the test with -update when that is right", got, s.File(Want))
		return
	}
	files := s.Files[:0:0]
	for _, f := range s.Files {
		if f.Name != Want {
			files = append(files, f)
		}
	}
	s.Files = append(files, File{Want, []byte(got)})
	if err := os.WriteFile(path, s.Format(), 0o600); err != nil {
		t.Fatal(err)
	}
}
