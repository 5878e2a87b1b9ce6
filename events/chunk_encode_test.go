package events

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func chunkOrigin() *Origin {
	return &Origin{
		Namespace: DefaultNamespace, Service: "planner",
		Now: func() time.Time { return time.Date(2026, 3, 2, 9, 14, 7, 133_000_000, time.UTC) },
	}
}

func TestChunkRoundTrip(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Chunk{
		"delta":    NewChunk("r7Kq2", ChunkTextDelta, map[string]any{"id": "t1", "text": "Größe <&> \"x\"\n"}),
		"of child": NewChunk("r7Kq2=1-3", ChunkToolOutput, map[string]any{"output": []any{1, nil}}),
		"placed": {
			Type: ChunkTextDelta, RunID: "r7Kq2", From: "AGENT", Payload: json.RawMessage(`{}`),
			Metadata: json.RawMessage(`{"a":1}`), Step: 2, Attempt: 3, Index: 4, ID: "own id 100%", TraceParent: "00-x",
		},
	} {
		header, body := EncodeChunk(chunkOrigin(), want)
		got, err := DecodeChunk(header, body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want.ID == "" {
			if len(got.ID) != 36 {
				t.Errorf("%s: id %q", name, got.ID)
			}
			want.ID = got.ID
		}
		want.Time = chunkOrigin().Now()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		reference, err := Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(reference), string(body)); d != "" {
			t.Errorf("%s: encoding/json writes another body: %s", name, d)
		}
		if root, _, _ := strings.Cut(want.RunID, "="); header["ce-correlationid"][0] != root {
			t.Errorf("%s: correlation %v, want %s", name, header["ce-correlationid"], root)
		}
	}
}

// What cannot be shown is replaced, never sent as it is.
func TestChunkOfBadPayload(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{``, `{`, `{"a":1,"a":2}`, "\"\xff\"", `{}{}`} {
		header, body := EncodeChunk(chunkOrigin(), Chunk{
			Type: ChunkTextDelta, RunID: "r", From: "AGENT",
			Payload: json.RawMessage(payload), Metadata: json.RawMessage(payload),
		})
		got, err := DecodeChunk(header, body)
		if err != nil || string(got.Payload) != payloadUnavailable || got.Metadata != nil {
			t.Errorf("%q: got %+v, %v", payload, got, err)
		}
	}
}

func TestDecodeChunkRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(map[string][]string) []byte{
		"type":      func(h map[string][]string) []byte { h["ce-type"] = []string{TypeOf[RunEnded]()}; return nil },
		"other run": func(h map[string][]string) []byte { h["ce-subject"] = []string{"r2"}; return nil },
		"no data":   func(map[string][]string) []byte { return []byte(" ") },
		"no run":    func(map[string][]string) []byte { return []byte(`{"type":"x","from":"AGENT","payload":{}}`) },
		"from":      func(map[string][]string) []byte { return []byte(`{"type":"x","runId":"r","from":"ME","payload":{}}`) },
		"spelling": func(map[string][]string) []byte {
			return []byte(`{"type":"x","runId":"r","from":"USER","payload":1,"RUNID":"r2"}`)
		},
	} {
		header, body := EncodeChunk(chunkOrigin(), NewChunk("r", ChunkAbort, struct{}{}))
		if b := change(header); b != nil {
			body = b
		}
		if got, err := DecodeChunk(header, body); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestAllocsOfChunk(t *testing.T) {
	o := chunkOrigin()
	ch := NewChunk("r7Kq2", ChunkTextDelta, map[string]string{"id": "t1", "text": "some words of a model"})
	if n := testing.AllocsPerRun(100, func() { EncodeChunk(o, ch) }); n > 12 {
		t.Errorf("EncodeChunk: %.0f allocations", n)
	} else {
		t.Logf("EncodeChunk: %.0f", n)
	}
}
