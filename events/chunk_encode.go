package events

import (
	"encoding/json"
	"strconv"
	"time"
)

// payloadUnavailable stands in the place of a payload that cannot be shown.
const payloadUnavailable = `{"message":"payload unavailable"}`

// EncodeChunk is a chunk as a NATS message, in binary mode. It is on the path of every piece of text that a model
// writes, so it fails never and allocates little: header values are cut from one text. A chunk without an id gets one
// of its own. A payload that is not JSON is replaced by a placeholder.
func EncodeChunk(o *Origin, ch Chunk) (header map[string][]string, payload []byte) {
	now := o.now().UTC()
	if ch.ID == "" {
		ch.ID = NewID(now)
	}
	h := headerBuilder{text: make([]byte, 0, 192), values: make([]string, 0, 11)}
	h.text = append(append(append(append(h.text, "/weir/"...), o.Namespace...), '/'), o.Service...)
	at := len(h.text)
	h.text = now.AppendFormat(h.text, time.RFC3339Nano)
	text := string(h.text)
	run := percentEncode(ch.RunID)
	header = make(map[string][]string, 11)
	h.set(header, "ce-specversion", specVersion)
	h.set(header, "ce-type", chunkType)
	h.set(header, "ce-source", percentEncode(text[:at]))
	h.set(header, "ce-id", percentEncode(ch.ID))
	h.set(header, "ce-subject", run)
	h.set(header, "ce-time", text[at:])
	h.set(header, "ce-partitionkey", run)
	h.set(header, "ce-correlationid", rootOf(run))
	h.set(header, "ce-datacontenttype", mediaJSON)
	if ch.TraceParent != "" {
		h.set(header, "ce-traceparent", percentEncode(ch.TraceParent))
	}
	return header, appendChunk(make([]byte, 0, 160+len(ch.Payload)+len(ch.Metadata)), ch)
}

const chunkType = TypePrefix + "chunk.published.v1"

type headerBuilder struct {
	text   []byte
	values []string // backs every header's one value
}

func (h *headerBuilder) set(header map[string][]string, name, value string) {
	h.values = append(h.values, value)
	n := len(h.values)
	header[name] = h.values[n-1 : n : n]
}

// appendChunk writes the body, as encoding/json would.
func appendChunk(b []byte, ch Chunk) []byte {
	b = appendQuoted(append(b, `{"type":`...), ch.Type)
	b = appendQuoted(append(b, `,"runId":`...), ch.RunID)
	b = appendQuoted(append(b, `,"from":`...), ch.From)
	b = append(b, `,"payload":`...)
	if checkJSON(ch.Payload, maxEventDepth) == nil {
		b = append(b, ch.Payload...)
	} else {
		b = append(b, payloadUnavailable...)
	}
	if len(ch.Metadata) > 0 && checkJSON(ch.Metadata, maxEventDepth) == nil {
		b = append(append(b, `,"metadata":`...), ch.Metadata...)
	}
	for _, f := range [...]struct {
		name string
		n    int
	}{{`,"step":`, ch.Step}, {`,"attempt":`, ch.Attempt}, {`,"index":`, ch.Index}} {
		if f.n != 0 {
			b = strconv.AppendInt(append(b, f.name...), int64(f.n), 10)
		}
	}
	return append(b, '}')
}

// DecodeChunk reads a chunk from a NATS message, in either mode. Time is that of its writer and Cursor and Prev are
// zero, until the reader replaces them by what the server says.
func DecodeChunk(header map[string][]string, payload []byte) (Chunk, error) {
	e, err := DecodeMsg(header, payload)
	if err != nil {
		return Chunk{}, err
	}
	if e.Type != chunkType {
		return Chunk{}, badEvent("%q is not the type of a chunk", e.Type)
	}
	if err := ValidateData(e); err != nil {
		return Chunk{}, err
	}
	var ch Chunk
	if err := json.Unmarshal(e.Data, &ch); err != nil {
		return Chunk{}, badEvent("chunk %s: %w", e.ID, err)
	}
	if ch.RunID != e.Subject {
		return Chunk{}, badEvent("chunk %s of run %q says that it is of run %q", e.ID, e.Subject, ch.RunID)
	}
	ch.ID, ch.Time, ch.TraceParent = e.ID, e.Time, e.TraceParent
	return ch, nil
}
