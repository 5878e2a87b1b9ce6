package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirkeeper/weir/events"
)

// print writes v as JSON with -o json, else what text writes.
func (a *app) print(v any, text func(w io.Writer)) error {
	if a.json {
		return writeJSON(a.out, v)
	}
	text(a.out)
	return nil
}

// writeJSON writes a value on one line, as it is: nothing in it is escaped for HTML. People at a terminal see what is hidden
// in a text escaped, which means the same.
func writeJSON(w io.Writer, v any) error {
	raw, err := events.Marshal(v)
	if err == nil {
		if isTerminal(w) {
			raw = events.VisibleJSON(raw)
		}
		_, err = w.Write(append(raw, '\n'))
	}
	return err
}

// table writes rows: on a terminal in columns with a head, piped with tabs between cells and no head.
func (a *app) table(head []string, rows [][]string) {
	if !isTerminal(a.out) {
		for _, cells := range rows {
			for i := range cells {
				cells[i] = oneLine(cells[i])
			}
			_, _ = fmt.Fprintln(a.out, strings.Join(cells, "\t"))
		}
		return
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, cells := range rows {
		for i := range cells {
			cells[i] = short(oneLine(cells[i]), 72)
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // the terminal is gone: nobody to tell
}

// facts writes names and values, one a line, without those that have no value.
func facts(w io.Writer, list [][2]string) {
	width := 0
	for _, f := range list {
		if f[1] != "" {
			width = max(width, len(f[0]))
		}
	}
	for _, f := range list {
		if f[1] != "" {
			_, _ = fmt.Fprintf(w, "%-*s  %s\n", width, f[0], oneLine(f[1]))
		}
	}
}

// note tells people something that is no result: only on a terminal, or with --verbose.
func (a *app) note(format string, args ...any) {
	if !a.json && (isTerminal(a.err) || a.verbose) {
		_, _ = fmt.Fprintln(a.err, plain(fmt.Sprintf(format, args...)))
	}
}

// oneLine makes a text that may come from anywhere fit for one line of a terminal: what cannot be seen is made visible.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, events.Visible(s))
}

// plain is oneLine for a text of several lines: what a model says must not move the cursor, nor hide anything.
func plain(s string) string { return events.Visible(s) }

// short cuts a text.
func short(s string, limit int) string {
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

// compact is JSON on one line.
func compact(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	return oneLine(string(raw))
}

// indented is JSON for people.
func indented(raw json.RawMessage) string {
	var v strings.Builder
	enc := json.NewEncoder(&v)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if len(raw) == 0 || enc.Encode(raw) != nil {
		return plain(string(raw))
	}
	return plain(strings.TrimSpace(v.String()))
}

// when is a time for a table: how long ago or ahead for people, exact for programs.
func (a *app) when(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case !isTerminal(a.out):
		return t.UTC().Format(time.RFC3339)
	}
	if d := time.Since(t); d >= 0 {
		return span(d) + " ago"
	}
	return "in " + span(time.Until(t))
}

// span is a duration in its largest unit.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// counted is a number with the name of what is counted.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
