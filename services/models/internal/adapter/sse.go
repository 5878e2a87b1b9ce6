package adapter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxFrame bounds one server-sent event. Whole answers in one event are legal; a server that never ends a line is not.
const maxFrame = 8 << 20

// errFrame says that an event of the stream is longer than maxFrame.
var errFrame = errors.New("an event of the stream is too large")

// Frame is one server-sent event.
type Frame struct {
	Name string // of the event field; mostly empty
	Data []byte // all data lines, joined by line feeds; valid until the next frame is read
}

// frames reads server-sent events as loosely as they occur in the wild: lines may end in CRLF, comments and fields
// nobody asked for are skipped, a byte order mark is ignored, and the blank line after the last event may be missing.
type frames struct {
	in    *bufio.Reader
	max   int
	line  []byte
	data  []byte
	first bool
}

func newFrames(r io.Reader) *frames {
	return &frames{in: bufio.NewReaderSize(r, 16<<10), max: maxFrame, first: true}
}

// next returns the next event that has data. It returns io.EOF after the last one and the reader's error otherwise.
func (f *frames) next() (Frame, error) {
	f.data = f.data[:0]
	var out Frame
	seen := false
	for {
		line, err := f.readLine()
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			if errors.Is(err, io.EOF) && seen {
				out.Data = f.data
				return out, nil
			}
			return Frame{}, err
		}
		if len(line) == 0 {
			if seen {
				out.Data = f.data
				return out, nil
			}
			out.Name = ""
			continue
		}
		field, value := splitField(line)
		switch field {
		case "data":
			if seen {
				f.data = append(f.data, '\n')
			}
			f.data, seen = append(f.data, value...), true
			if len(f.data) > f.max {
				return Frame{}, fmt.Errorf("%w: over %d bytes", errFrame, f.max)
			}
		case "event":
			out.Name = string(value)
		default: // a comment, an id, a retry time, or what only this server knows
		}
	}
}

// readLine reads up to the next line feed and returns the line without its end. At the end of the input it returns
// what is left, and io.EOF.
func (f *frames) readLine() ([]byte, error) {
	f.line = f.line[:0]
	for {
		part, err := f.in.ReadSlice('\n')
		f.line = append(f.line, part...)
		if len(f.line) > f.max {
			return nil, fmt.Errorf("%w: a line over %d bytes", errFrame, f.max)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		line := bytes.TrimSuffix(bytes.TrimSuffix(f.line, []byte("\n")), []byte("\r"))
		if f.first {
			line, f.first = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")), false
		}
		return line, err
	}
}

// splitField splits "data: x" into its name and value; one space after the colon belongs to neither.
func splitField(line []byte) (name string, value []byte) {
	before, after, _ := bytes.Cut(line, []byte(":"))
	return string(before), bytes.TrimPrefix(after, []byte(" "))
}
