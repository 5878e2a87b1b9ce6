//go:build interop

package modeltest

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clients is the folder that holds the programs of others.
const clients = "../../cmd/weir/interop"

// Mock is a running aimock, a mock of many providers that others wrote from recordings of the real ones.
type Mock struct{ URL string }

// StartMock starts it with the fixtures of a file.
func StartMock(t *testing.T, file string) Mock {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clients, "node_modules")); err != nil {
		t.Fatal("the foreign clients are not installed: run make interop")
	}
	fixtures, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "aimock.mjs", fixtures)
	cmd.Dir, cmd.Stderr = clients, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // it ends by itself
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("aimock did not start: %v", err)
	}
	return Mock{strings.TrimSpace(line)}
}

// Journal are the bodies of the requests that the mock has got, oldest first.
func (m Mock) Journal(t *testing.T) []json.RawMessage {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.URL+"/__aimock/journal", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var entries []struct {
		Body json.RawMessage `json:"body"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&entries); err != nil {
		t.Fatal(err)
	}
	var out []json.RawMessage
	for _, e := range entries {
		out = append(out, e.Body)
	}
	return out
}
