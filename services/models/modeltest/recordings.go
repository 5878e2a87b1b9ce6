package modeltest

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/agent"
)

// Recordings plays recorded streams, testdata/*.txtar: each file says in prose what a provider does, then the bytes that
// it sends, then the parts that the adapter makes of them, which update writes again. open gives a model whose provider
// is the handler.
func Recordings(t *testing.T, update bool, open func(t *testing.T, provider http.HandlerFunc) agent.Model) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			s := readStory(t, file)
			got := describe(open(t, s.serve).Stream(t.Context(), agent.ModelRequest{
				Model: "test-1", Messages: []events.Message{events.TextMessage(events.RoleUser, "Hello")},
			}))
			if update {
				s.files["parts"] = got
				s.write(t, file)
				return
			}
			if diff := cmp.Diff(s.files["parts"], got); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
		})
	}
}

// story is a txtar file: a comment and named files.
type story struct {
	comment string
	names   []string
	files   map[string]string

	mu     sync.Mutex
	served int // requests that were answered
}

func readStory(t *testing.T, file string) *story {
	t.Helper()
	raw, err := os.ReadFile(file) //nolint:gosec // a file of the test
	if err != nil {
		t.Fatal(err)
	}
	s := &story{files: map[string]string{}}
	name := ""
	for line := range strings.Lines(string(raw)) {
		if n, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(n, " --\n") {
			name = strings.TrimSuffix(n, " --\n")
			s.names = append(s.names, name)
			continue
		}
		if name == "" {
			s.comment += line
			continue
		}
		s.files[name] += line
	}
	if !slices.Contains(s.names, "parts") {
		s.names = append(s.names, "parts")
	}
	return s
}

func (s *story) write(t *testing.T, file string) {
	t.Helper()
	var out strings.Builder
	out.WriteString(s.comment)
	for _, name := range s.names {
		out.WriteString("-- " + name + " --\n" + s.files[name])
	}
	if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serve sends the recording. The file's name says what it is: stream.sse, the same with CRLF line ends (crlf.sse), one
// whose connection is lost after the last byte (lost.sse), or an answer that is not a stream (answer.json). Of several ("2-stream.sse") each answers one request; the last file are the parts.
func (s *story) serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	s.mu.Lock()
	name := s.names[min(s.served, len(s.names)-2)]
	s.served++
	s.mu.Unlock()
	body := s.files[name]
	switch strings.TrimLeft(name, "0123456789-") {
	case "answer.json":
		w.Header().Set("Content-Type", "application/json")
	case "crlf.sse":
		body = "\ufeff" + strings.ReplaceAll(body, "\n", "\r\n")
	case "lost.sse":
		body = strings.TrimSuffix(body, "\n")
	}
	for len(body) > 0 { // in pieces that respect no border of lines or characters
		n := min(7, len(body))
		_, _ = w.Write([]byte(body[:n]))
		body = body[n:]
	}
	if strings.HasSuffix(name, "lost.sse") {
		panic(http.ErrAbortHandler)
	}
}

// describe writes parts as lines.
func describe(parts iter.Seq2[agent.ModelPart, error]) string {
	var out strings.Builder
	for p, err := range parts {
		var e *agent.ModelError
		switch {
		case errors.As(err, &e):
			fmt.Fprintf(&out, "error retryable=%v status=%d: %v\n", e.Retryable, e.Status, e.Err)
		case err != nil:
			fmt.Fprintf(&out, "error: %v\n", err)
		case p.Type == agent.PartToolInputStart:
			fmt.Fprintf(&out, "%s start %q, provider id %q\n", p.ID, p.ToolName, p.ProviderCallID)
		case p.Type == agent.PartToolInputDelta:
			fmt.Fprintf(&out, "%s args %s\n", p.ID, p.Text)
		case p.Type == agent.PartToolInputEnd:
			fmt.Fprintf(&out, "%s end\n", p.ID)
		case p.Type == agent.PartFinish:
			fmt.Fprintf(&out, "finish %s, tokens %d in, %d out, %d in all",
				p.FinishReason, p.Usage.InputTokens, p.Usage.OutputTokens, p.Usage.TotalTokens)
			if p.Usage.CachedInputTokens+p.Usage.ReasoningTokens > 0 {
				fmt.Fprintf(&out, " (%d from the cache, %d thought)", p.Usage.CachedInputTokens, p.Usage.ReasoningTokens)
			}
			out.WriteString("\n")
		case p.Type == agent.PartProviderCall || p.Type == agent.PartProviderResult:
			fmt.Fprintf(&out, "%s %s %s %s\n", p.ID, p.Type, p.ToolName, p.Text)
		case p.Type == agent.PartSource:
			fmt.Fprintf(&out, "%s source %s %q\n", p.ID, p.URL, p.Text)
		case p.Signature != "":
			fmt.Fprintf(&out, "%s %q, signature %q\n", p.ID, p.Text, p.Signature)
		default:
			fmt.Fprintf(&out, "%s %q\n", p.ID, p.Text)
		}
	}
	return out.String()
}
