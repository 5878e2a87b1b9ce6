package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
)

// chained makes an export of n records, without its line ends.
func chained(t *testing.T, rnd *rand.Rand, n int) [][]byte {
	t.Helper()
	var lines [][]byte
	prev := events.NoRecord
	for i := range n {
		r := events.Record{
			Seq: uint64(i + 1), LogSeq: uint64(i + 1), Time: time.Unix(int64(i), int64(rnd.IntN(1e9))),
			Subject: fmt.Sprintf("weir.default.run.r%d.main.start", i),
			Event:   fmt.Appendf(nil, `{"id":"%d","text":"ä\\n\u2028<&>"}`, rnd.Uint64()),
		}
		if i%5 == 0 {
			r.Event, r.Carried, r.Key, r.Sig = []byte{0xff, byte(i)}, true, "U", "c2ln"
		}
		r.Seal(prev)
		prev = r.Hash
		lines = append(lines, lineOfRecord(t, r))
	}
	return lines
}

func lineOfRecord(t *testing.T, r events.Record) []byte {
	t.Helper()
	line, err := events.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func recordOf(t *testing.T, line []byte) events.Record {
	t.Helper()
	r, err := events.ParseRecord(line)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func joined(lines [][]byte) []byte { return append(bytes.Join(lines, []byte("\n")), '\n') }

// proveBytes verifies files by their contents, and gives the line where the chain is broken; 0 with an error: after the end.
func proveBytes(last string, files ...[]byte) (line int, err error) {
	var list []recordFile
	for i, b := range files {
		list = append(list, recordFile{fmt.Sprint("part", i), func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(b)), nil
		}})
	}
	_, err = verifyChain(list, events.NoRecord, last, func(place, events.Record) {})
	if b, ok := errors.AsType[*chainError](err); ok {
		return b.at.line, err
	}
	return -1, err
}

// TestB8_33_VerifyNamesTheFirstThatDiffers changes, removes, adds and moves records and bytes of an export, each of them
// somewhere, and wants the line named.
func TestB8_33_VerifyNamesTheFirstThatDiffers(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(8, 33))
	const n = 25
	good := chained(t, rnd, n)
	last := recordOf(t, good[n-1]).Hash
	if _, err := proveBytes(last, joined(good)); err != nil {
		t.Fatalf("an untouched export: %v", err)
	}
	for cut := range n {
		if _, err := proveBytes(last, joined(good[:cut+1]), joined(good[cut+1:])); err != nil && cut < n-1 {
			t.Fatalf("in two parts after line %d: %v", cut+1, err)
		}
	}
	check := func(what string, lines [][]byte, line int, words string) {
		t.Helper()
		got, err := proveBytes(last, joined(lines))
		if err == nil || got != line || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: named line %d, want %d with %q: %v", what, got, line, words, err)
		}
	}
	for i := range n {
		one := i + 1 // lines count from 1
		removed := slices.Delete(slices.Clone(good), i, one)
		if one == n {
			check("removed at the end", removed, 0, "is missing")
		} else {
			check("removed", removed, one, "is missing")
		}
		check("doubled", slices.Insert(slices.Clone(good), i, good[i]), one+1, "was added")
		check("from elsewhere", slices.Insert(slices.Clone(good), i, chained(t, rnd, 30)[i+3]), one, "was added")
		check("an empty line", slices.Insert(slices.Clone(good), i, []byte{}), one, "was added or changed")

		// With some care: a record that fits on the one before, and one whose content was replaced with its hash.
		forged := recordOf(t, good[i])
		forged.Event = []byte("forged")
		forged.Seal(forged.Prev)
		if i < n-1 {
			check("replaced", slices.Replace(slices.Clone(good), i, one, lineOfRecord(t, forged)), one, "was changed, with its hash")
			check("put before", slices.Insert(slices.Clone(good), i, lineOfRecord(t, forged)), one, "was added")
			other := i + 1 + rnd.IntN(n-i-1)
			moved := slices.Clone(good)
			moved[i], moved[other] = moved[other], moved[i]
			check("swapped", moved, one, "not in its place")
		}
	}
	var named int
	whole := joined(good)
	for range 4_000 {
		b := bytes.Clone(whole)
		at := rnd.IntN(len(b) - 1)
		b[at] ^= byte(1 + rnd.IntN(255))
		got, err := proveBytes(last, b)
		if want := 1 + bytes.Count(whole[:at], []byte("\n")); err == nil || got != want {
			t.Fatalf("byte %d of line %d changed from %q to %q: named line %d, %v", at, want, whole[at], b[at], got, err)
		}
		named++
	}
	t.Logf("%d changed bytes, each named", named)
}

// TestB8_33_VerifyOfNumbers: who makes all hashes anew still has to number the records as the stream did.
func TestB8_33_VerifyOfNumbers(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(8, 34))
	for name, row := range map[string]struct {
		change func(records []events.Record)
		want   string
	}{
		"twice":               {func(rs []events.Record) { rs[4].Seq = rs[3].Seq }, "record 4 stands after record 4"},
		"out of the log":      {func(rs []events.Record) { rs[4].LogSeq++ }, "number 5 of the log is missing"},
		"with a hole in both": {func(rs []events.Record) { rs[4].Seq, rs[4].LogSeq = 9, 9 }, ""},
	} {
		var records []events.Record
		for _, line := range chained(t, rnd, 5) {
			records = append(records, recordOf(t, line))
		}
		row.change(records)
		var lines [][]byte
		prev := events.NoRecord
		for _, r := range records {
			r.Seal(prev)
			prev = r.Hash
			lines = append(lines, lineOfRecord(t, r))
		}
		line, err := proveBytes(prev, joined(lines))
		if row.want == "" && err != nil || row.want != "" && (err == nil || line != 5 || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: line %d, %v", name, line, err)
		}
	}
}

func TestVerifyOfContinuedExports(t *testing.T) {
	t.Parallel()
	lines := chained(t, rand.New(rand.NewPCG(1, 2)), 6)
	first, second := joined(lines[:3]), joined(lines[3:])
	for name, row := range map[string]struct {
		files [][]byte
		want  string
	}{
		"both":            {[][]byte{first, second}, ""},
		"in wrong order":  {[][]byte{second, first}, "part0:1: record 4 was added, or is not in its place: record 1 (part1:1) comes here"},
		"the second only": {[][]byte{second}, "part0:1: record 4 is the first, and follows one with the hash"},
		"none":            {[][]byte{nil}, ""},
		"a long line":     {[][]byte{bytes.Repeat([]byte("x"), maxRecordLine+1)}, "part0:1: this line was added or changed: it is too long"},
	} {
		_, err := proveBytes("", row.files...)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.HasPrefix(err.Error(), row.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
