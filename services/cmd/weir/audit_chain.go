package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/weirkeeper/weir/events"
)

// auditChain proves the records of an export, one after the other: each is what its hash was made of, and follows the one
// before.
type auditChain struct {
	start string // hash that the first one must name
	prev  string // hash that the next one must name
	count int
	first uint64
	last  events.Record // without its event
	at    place         // of the last
}

// place is a line of a file.
type place struct {
	file string
	line int // 0: after the last
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

// chainError is where a chain is broken first.
type chainError struct {
	at   place
	text string
}

func (b *chainError) Error() string { return b.at.String() + ": " + b.text }

func broken(at place, format string, args ...any) *chainError {
	return &chainError{at, fmt.Sprintf(format, args...)}
}

// errLoose says that a record does not follow the one before, which may have several reasons.
var errLoose = errors.New("the record does not follow the one before")

// next proves one line.
func (c *auditChain) next(at place, line []byte) (events.Record, error) {
	r, err := events.ParseRecord(line)
	switch {
	case err != nil:
		return r, broken(at, "this line was added or changed: %v", err)
	case !r.Sealed():
		return r, broken(at, "record %d was changed: its hash is not that of what it says", r.Seq)
	case r.Prev != c.prev:
		return r, errLoose
	case c.count > 0 && r.Seq <= c.last.Seq:
		return r, broken(at, "record %d stands after record %d: it was added or changed, with its hash", r.Seq, c.last.Seq)
	case c.count > 0 && r.Seq == c.last.Seq+1 && r.LogSeq > c.last.LogSeq+1:
		// The record copies the log in order and leaves nothing out, so where its own numbers have no hole, those of the log
		// have none: unless somebody has stored there what no service stores.
		return r, broken(at, "number %d of the log is missing in the record, between its numbers %d and %d: it is nothing that "+
			"a service of Weir has stored", c.last.LogSeq+1, c.last.Seq, r.Seq)
	}
	if c.count == 0 {
		c.first = r.Seq
	}
	c.count++
	c.prev, c.last, c.at = r.Hash, r, at
	c.last.Event = nil
	return r, nil
}

// verifyChain proves files that belong together, and calls each with every record whose place is proven. After the last
// one, last is the hash that it must have, when one is known.
func verifyChain(files []recordFile, prev, last string, each func(at place, r events.Record)) (auditChain, error) {
	c := auditChain{start: prev, prev: prev}
	err := readRecords(files, func(at place, line []byte) error {
		r, err := c.next(at, line)
		if errors.Is(err, errLoose) {
			return c.explain(files, at, r)
		}
		if err == nil {
			each(at, r)
		}
		return err
	})
	if err == nil && last != "" && c.prev != last {
		err = broken(place{file: files[len(files)-1].name}, "it ends with the hash %s, not with %s: what came after is missing",
			c.prev, last)
	}
	return c, err
}

// explain finds out why a record does not follow the one before, from what else the files hold: the record that should
// stand here, and the one that this one follows.
func (c *auditChain) explain(files []recordFile, at place, r events.Record) error {
	var due, extra firstRecord
	reached, follows := false, r.Prev == c.start
	err := readRecords(files, func(p place, line []byte) error {
		other, unreadable := events.ParseRecord(line)
		reached = reached || p == at
		switch {
		case unreadable != nil: // tells nothing
		case !reached:
			if follows {
				extra.keep(p, other) // behind the one that it follows
			}
			follows = follows || other.Hash == r.Prev
		case p != at && other.Prev == c.prev && other.Sealed():
			due.keep(p, other)
		}
		return nil //nolint:nilerr // what is no record tells nothing
	})
	switch {
	case err != nil:
		return err
	case c.count > 0 && r.Hash == c.prev:
		return broken(at, "record %d was added: it stands twice", r.Seq)
	case due.found:
		return broken(at, "record %d was added, or is not in its place: record %d (%s) comes here", r.Seq, due.seq, due.at)
	case extra.found:
		return broken(extra.at, "record %d was added: record %d (%s) follows the one before it", extra.seq, r.Seq, at)
	case c.count == 0:
		return broken(at, "record %d is the first, and follows one with the hash %s: what came before is missing "+
			"(if that is another export, name it first, or say --prev %s)", r.Seq, r.Prev, r.Prev)
	case r.Seq == c.last.Seq+1:
		return broken(c.at, "record %d was changed, with its hash: record %d (%s) follows another one", c.last.Seq, r.Seq, at)
	}
	return broken(at, "what came between record %d and record %d is missing", c.last.Seq, r.Seq)
}

// firstRecord is the first of the records that were kept in it.
type firstRecord struct {
	found bool
	at    place
	seq   uint64
}

func (p *firstRecord) keep(at place, r events.Record) {
	if !p.found {
		*p = firstRecord{true, at, r.Seq}
	}
}

// recordFile is a file of an export, or a part of one.
type recordFile struct {
	name string
	open func() (io.ReadCloser, error) // may be called again, when something is wrong
}

// readRecords calls f with each line of the files, in order, until it returns an error.
func readRecords(files []recordFile, f func(at place, line []byte) error) error {
	for _, file := range files {
		if err := file.read(f); err != nil {
			return err
		}
	}
	return nil
}

func (file recordFile) read(f func(at place, line []byte) error) error {
	in, err := file.open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxRecordLine)
	lines.Split(wholeLines)
	at := place{file: file.name}
	for lines.Scan() {
		at.line++
		if err := f(at, lines.Bytes()); err != nil {
			return err
		}
	}
	err = lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		at.line++
		return broken(at, "this line was added or changed: it is too long for a record")
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file.name, err)
	}
	return nil
}

// wholeLines splits at newlines alone: a carriage return before one belongs to the line, as something that was put in.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
