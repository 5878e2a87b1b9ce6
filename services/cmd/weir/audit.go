package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

const auditHelp = `Keep, prove and read the record: every fact of every run, in order, for longer than the log keeps runs.

The record is the stream audit, which is sourced from the log: "weir dev" keeps it, and "weir stream provision --audit"
makes it elsewhere. It holds starts, model turns, asks, votes, answers, releases, claims, suspensions, results and ends,
refused decisions, late outcomes and uses of grants: who, when and why.

An export is a chain: each record names the hash of the one before. Whoever keeps the last hash in another place can prove
later that nothing before it is missing, was added or was changed, and that gates and people have signed what they have
decided.`

func newAuditCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "audit", Short: "Export, prove and read the record of everything that happened", Long: auditHelp,
		Example: `  weir audit export --out march.ndjson
  weir audit verify march.ndjson --gate-keys U…
  weir audit show --run order-1042`,
	}, newAuditExportCommand(a), newAuditVerifyCommand(a), newAuditShowCommand(a))
}

// auditPatience is how long a command waits for the record to take in what the log has.
const auditPatience = 2 * time.Second

// maxRecordLine bounds a line of an export: a message of 1 MiB whose bytes are all escaped.
const maxRecordLine = 8 << 20

// exportOptions are the flags of weir audit export.
type exportOptions struct {
	run, since, prev, out, format string
	from                          uint64
}

// Formats of an export.
const (
	formatRecords     = "records"
	formatCloudEvents = "cloudevents"
)

func newAuditExportCommand(a *app) *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use: "export", Short: "Write the record, one JSON object a line, as a chain of hashes", Args: cobra.NoArgs,
		Long: `Write the record, oldest first, up to what is there at this moment. Each line is one JSON object:

  {"seq", "logSeq", "time", "subject", "carried", "key", "sig", "event", "prev", "hash"}

seq and time are those of the record, logSeq the sequence that the fact had in the log, subject where it is stored there.
carried is true on a copy that was stored again before the original aged out. event is the CloudEvent as a JSON string that
holds its exact bytes (eventBase64, when somebody has stored bytes that are not text); key and sig are its signature, which
covers subject and event. prev is the hash of the record before, 64 zeros for none. hash is the lower-case hex form of
SHA-256 over these texts, each preceded by its length in bytes in decimal digits and a colon:

  ` + events.RecordDomain + `  prev  seq  logSeq  time  subject  carried ("true" or empty)  key  sig  event

The last hash starts the next export: either go on in the same file, which --out does when it is there (after a crash too),
or begin another one with --from and --prev, as the note at the end says. Parts in order are the same lines as one export
would have been.

With --format cloudevents each line is the CloudEvent itself, for systems that take those, with the extensions auditseq,
audittime and logsubject. That proves nothing by itself.

With --out, JSON: {"file", "records", "from", "to", "hash"}: how many were written, their sequences, and the last hash.`,
		Example: `  weir audit export --out record.ndjson                   again later: goes on
  weir audit export --since 24h --format cloudevents      to a SIEM
  weir audit export --run order-1042
  weir audit export --from 5001 --prev 1f4c… > next.ndjson`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.exportAudit(cmd.Context(), o) },
	}
	set := cmd.Flags()
	set.StringVar(&o.run, "run", "", "only of this run and those below it; a chain of its own")
	set.StringVar(&o.since, "since", "", "only from this time of the record on: a span such as 24h, or a time of RFC 3339")
	set.Uint64Var(&o.from, "from", 0, "only from this sequence of the record on")
	set.StringVar(&o.prev, "prev", "", "hash that the first record follows: the last one of the export before")
	set.StringVar(&o.out, "out", "", "file to write to, or to go on with; default the standard output")
	set.StringVar(&o.format, "format", formatRecords, "records or cloudevents")
	return cmd
}

// exported is how far an export has come.
type exported struct {
	File    string `json:"file,omitempty"`
	Records int    `json:"records"`
	From    uint64 `json:"from,omitempty"`
	To      uint64 `json:"to,omitempty"`
	Hash    string `json:"hash,omitempty"`
}

func (a *app) exportAudit(ctx context.Context, o exportOptions) error {
	query, err := o.query()
	if err != nil {
		return err
	}
	out, done := a.out, func() error { return nil }
	if o.out != "" {
		file, last, err := openExport(o)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // done has told of what matters
		out, done = file, func() error { return syncFile(file) }
		if last.seq > 0 {
			query.From, query.Since, o.prev = last.seq+1, time.Time{}, last.hash
		}
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	state, err := export{a, o, out}.write(ctx, conn, query)
	if syncErr := done(); err == nil {
		err = syncErr
	}
	if err != nil {
		return err
	}
	return a.tellExport(state, o)
}

// query is what the flags choose.
func (o exportOptions) query() (q jetstream.AuditQuery, err error) {
	q = jetstream.AuditQuery{Run: o.run, From: o.from}
	if q.Since, err = sinceOf(o.since, time.Now()); err != nil {
		return q, err
	}
	switch {
	case o.format != formatRecords && o.format != formatCloudEvents:
		return q, usagef("--format %s: use records or cloudevents", o.format)
	case o.from > 0 && o.since != "":
		return q, usagef("--from and --since both say where to begin: use one")
	case o.prev != "" && o.format != formatRecords:
		return q, usagef("--prev is for the format records: there are no hashes in %s", o.format)
	case o.prev != "" && !isHash(o.prev):
		return q, usagef("--prev is no hash of a record: 64 digits and letters a to f")
	}
	return q, nil
}

// sinceOf reads a span back from now, or a time.
func sinceOf(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usagef("--since %s: use a span such as 24h, or a time such as 2026-03-01T00:00:00Z", text)
	}
	return t, nil
}

func isHash(s string) bool {
	return len(s) == len(events.NoRecord) && len(bytes.Trim([]byte(s), "0123456789abcdef")) == 0
}

// lastLine is where an export that is there ends; zero when there is none.
type lastLine struct {
	seq  uint64
	hash string
}

// openExport opens the file of an export and goes to its end. A line that was cut off, by a crash, is taken away. What is
// no export is left as it is.
func openExport(o exportOptions) (file *os.File, last lastLine, err error) {
	if file, err = os.OpenFile(o.out, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, last, err
	}
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		last, err = o.resume(file)
	}
	if err != nil {
		_ = file.Close() // err says more
		return nil, last, fmt.Errorf("go on with %s: %w", o.out, err)
	}
	return file, last, nil
}

func (o exportOptions) resume(file *os.File) (last lastLine, err error) {
	line, end, err := tail(file)
	switch {
	case err != nil:
		return last, err
	case end == 0 && len(line) > 0 && !o.begins(line):
		return last, errors.New("it is no export")
	case end > 0:
		if last, err = o.parseLast(line); err != nil {
			return last, err
		}
		if o.from > 0 || o.since != "" || o.prev != "" {
			return last, usagef("the file says where it goes on: leave out --from, --since and --prev, or name another file")
		}
	}
	if err := file.Truncate(end); err != nil {
		return last, err
	}
	_, err = file.Seek(end, io.SeekStart)
	return last, err
}

// begins reports whether something may be the beginning of the first line of an export.
func (o exportOptions) begins(cut []byte) bool {
	first := []byte(`{"seq":`)
	if o.format == formatCloudEvents {
		first = []byte(`{"specversion":`)
	}
	return bytes.HasPrefix(cut, first) || bytes.HasPrefix(first, cut)
}

func (o exportOptions) parseLast(line []byte) (last lastLine, err error) {
	if o.format == formatCloudEvents {
		e, err := events.Decode(line)
		if err == nil {
			_, err = fmt.Sscan(fmt.Sprint(e.Extensions["auditseq"]), &last.seq)
		}
		if err != nil {
			return last, fmt.Errorf("its last line is no event of an export: %w", err)
		}
		return last, nil
	}
	r, err := events.ParseRecord(line)
	if err != nil {
		return last, fmt.Errorf("its last line is none of an export of this format: %w", err)
	}
	if !r.Sealed() {
		return last, fmt.Errorf("its last record, number %d, was changed: see weir audit verify %s", r.Seq, o.out)
	}
	return lastLine{r.Seq, r.Hash}, nil
}

// tail reads the last whole line of a file, and where the file ends after it. When no line is whole, end is 0, and the line
// is what is there.
func tail(file *os.File) (line []byte, end int64, err error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	for want := int64(64 << 10); ; want *= 2 {
		from := max(size-want, 0)
		b := make([]byte, size-from)
		if _, err := file.ReadAt(b, from); err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		stop := bytes.LastIndexByte(b, '\n')
		begin := bytes.LastIndexByte(b[:max(stop, 0)], '\n')
		switch {
		case begin >= 0 || from == 0 && stop >= 0:
			return b[begin+1 : stop], from + int64(stop) + 1, nil
		case from == 0:
			return b, 0, nil
		case want > 2*maxRecordLine:
			return nil, 0, errors.New("its last line is too long for an export")
		}
	}
}

// syncFile brings a file to the disk; what is no file on one is none.
func syncFile(file *os.File) error {
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return file.Sync()
}

// export is the way of records from the bus to a file.
type export struct {
	*app
	o   exportOptions
	out io.Writer
}

// write writes what a query chooses. What has been written when it fails, or is stopped, are whole lines.
func (x export) write(ctx context.Context, conn *jetstream.Conn, q jetstream.AuditQuery) (state exported, err error) {
	o, w := x.o, bufio.NewWriterSize(x.out, 64<<10)
	defer func() {
		if flushed := w.Flush(); err == nil {
			err = flushed
		}
	}()
	state = exported{File: o.out, Hash: o.prev}
	if state.Hash == "" && o.format == formatRecords {
		state.Hash = events.NoRecord
	}
	if err := conn.AwaitAudit(ctx, auditPatience); err != nil {
		return state, noRecord(err)
	}
	for r, err := range conn.Audit(ctx, q) {
		if errors.Is(err, jetstream.ErrGap) {
			return state, fmt.Errorf("the record goes on with number %d only, what was before has aged out: "+
				"begin with --from %d --prev %s, in a new file", r.Seq, r.Seq, state.Hash)
		}
		if err != nil {
			return state, noRecord(err)
		}
		line, err := lineOf(&r, state.Hash, o.format)
		if err != nil {
			return state, err
		}
		if line == nil {
			continue
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return state, err
		}
		if state.Records == 0 {
			state.From = r.Seq
		}
		state.Records++
		state.To, state.Hash = r.Seq, r.Hash
		if state.Records%10_000 == 0 {
			x.note("%d records, up to %s", state.Records, r.Time.Format(time.RFC3339))
		}
	}
	return state, nil
}

// lineOf is a record in a format; nothing when the format has none for it.
func lineOf(r *events.Record, prev, format string) ([]byte, error) {
	if format == formatRecords {
		r.Seal(prev)
		return events.Marshal(*r)
	}
	if _, err := r.Decode(); err != nil || events.IsProbe(r.Subject) {
		return nil, nil //nolint:nilerr // what is no event cannot be one; the format records has it
	}
	return r.CloudEvent()
}

// noRecord says what to do when a namespace keeps no record.
func noRecord(err error) error {
	if !errors.Is(err, jetstream.ErrNotFound) {
		return err
	}
	return &exit{exitNotFound, errors.New("no record is kept here: weir stream provision --audit makes the stream, " +
		"and takes in what the log still has")}
}

func (a *app) tellExport(state exported, o exportOptions) error {
	if o.format == formatRecords && o.out == "" && state.To > 0 {
		a.note("%s; the next export: weir audit export --from %d --prev %s", counted(state.Records, "record"), state.To+1, state.Hash)
	}
	if o.out == "" {
		return nil
	}
	return a.print(state, func(w io.Writer) {
		text := fmt.Sprintf("%s: %s", o.out, counted(state.Records, "record"))
		if state.To > 0 {
			text += fmt.Sprintf(", numbers %d to %d", state.From, state.To)
		}
		if o.format == formatRecords {
			text += ", last hash " + state.Hash
		}
		_, _ = fmt.Fprintln(w, text)
	})
}
