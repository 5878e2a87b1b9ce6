package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// maxEdited bounds a file that comes back from an editor.
const maxEdited = 1 << 20

// errNotSent says that a person has changed their mind.
var errNotSent = &exit{exitFailed, errors.New("nothing was sent")}

// editArgs lets a person edit the arguments of a call in their editor, and agree to what has changed. The decision is about
// what was opened, whatever happens to the call meanwhile.
func (a *app) editArgs(ctx context.Context, c *client.Client, id string, d *client.Decision) error {
	editor, err := a.editor()
	if err != nil {
		return err
	}
	ask, err := c.Ask(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case !ask.Takes(events.Edit):
		e := events.Errorf(events.CodeWrongKind, "a call held as %s does not take %s", ask.Kind, events.Edit)
		e.Allowed = ask.Allowed
		return e
	case d.Fingerprint != "" && !events.SameDigest(d.Fingerprint, ask.Fingerprint), d.Round != nil && *d.Round != ask.Round:
		return events.Errorf(events.CodeChanged, "call %s is not what you looked at any more: it waits with the fingerprint %s",
			ask.ToolCallID, ask.Fingerprint)
	case ask.ArgsDigest != "" && !events.SameDigest(ask.ArgsDigest, events.Digest(ask.Args)):
		return usagef("some of the arguments are not shown: give all of them with --data")
	}
	before, err := pretty(ask.Args)
	if err != nil {
		return err
	}
	after, err := a.edited(ctx, editor, before)
	if err != nil {
		return err
	}
	d.ToolCallID, d.Round, d.Fingerprint, d.Args = ask.ToolCallID, &ask.Round, ask.Fingerprint, after
	return a.agree(ctx, *ask, before, after)
}

// editor is the command line of the person's editor.
func (a *app) editor() ([]string, error) {
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if text, _ := a.lookup(name); strings.TrimSpace(text) != "" {
			return strings.Fields(text), nil
		}
	}
	return nil, usagef("which editor? Set VISUAL or EDITOR, or give the arguments with --data")
}

// pretty is JSON as people edit it: the bytes of every value as they are.
func pretty(raw []byte) (string, error) {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return "", err
	}
	return b.String() + "\n", nil
}

// edited opens a text in the editor until what comes back are arguments. The file is nobody else's to read, and is gone
// afterwards.
func (a *app) edited(ctx context.Context, editor []string, text string) (json.RawMessage, error) {
	dir, err := os.MkdirTemp("", "weir-edit-*") // for its owner alone
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a directory of the system's temporary ones
	path := filepath.Join(dir, "arguments.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	for {
		cmd := exec.CommandContext(ctx, editor[0], append(editor[1:], path)...) //nolint:gosec // the user's own editor
		cmd.Stdout, cmd.Stderr = a.out, a.err
		if tty, ok := a.in.(*os.File); ok { // anything else would be read to its end for the editor
			cmd.Stdin = tty
		}
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("editor %s: %w; nothing was sent", editor[0], err)
		}
		raw, err := readEdited(path)
		if err == nil {
			return raw, nil
		}
		_, _ = fmt.Fprintf(a.out, "these are no arguments: %s\n[e] edit again  [l] leave it: ", plain(err.Error()))
		if answer, err := a.readLine(ctx); err != nil || answer != "e" {
			return nil, errors.Join(err, errNotSent)
		}
	}
}

// readEdited reads what was edited, and says where it is wrong.
func readEdited(path string) (json.RawMessage, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxEdited {
		err = fmt.Errorf("%d bytes are too many", info.Size())
	}
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path) //nolint:gosec // just written
	if err != nil {
		return nil, err
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff")) // as some editors write it
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			line, column := lineOfOffset(raw, e.Offset)
			return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
		}
		return nil, err
	}
	if err := events.CheckJSON(raw); err != nil { // a name that stands twice, for one
		return nil, err
	}
	if _, ok := v.(map[string]any); !ok {
		return nil, errors.New("arguments are a JSON object: {…}")
	}
	return bytes.TrimSpace(raw), nil
}

// lineOfOffset is where an offset lies, both from 1.
func lineOfOffset(raw []byte, offset int64) (line, column int) {
	before := raw[:min(max(int(offset)-1, 0), len(raw))]
	return 1 + bytes.Count(before, []byte("\n")), 1 + len(before) - (bytes.LastIndexByte(before, '\n') + 1)
}

// agree shows what has changed and asks whether to send it.
func (a *app) agree(ctx context.Context, ask events.CallHeld, before string, args json.RawMessage) error {
	after, err := pretty(args)
	if err != nil {
		return err
	}
	if before == after {
		_, _ = fmt.Fprintln(a.out, "nothing has changed")
		return errNotSent
	}
	_, _ = fmt.Fprintf(a.out, "%s %s\n", ask.ToolCallID, oneLine(ask.ToolName))
	for _, line := range diff(strings.Split(strings.TrimSuffix(before, "\n"), "\n"), strings.Split(strings.TrimSuffix(after, "\n"), "\n")) {
		_, _ = fmt.Fprintln(a.out, oneLine(line))
	}
	_, _ = fmt.Fprint(a.out, "Send these arguments? [y] yes  [n] no: ")
	answer, err := a.readLine(ctx)
	if err != nil || answer != "y" && answer != "yes" {
		return errors.Join(err, errNotSent)
	}
	return nil
}

// maxDiff bounds the work of comparing: longer texts are shown whole.
const maxDiff = 2000

// diff is how one list of lines becomes another: what goes begins with -, what comes with +, what stays with a blank.
func diff(a, b []string) (lines []string) {
	if len(a) > maxDiff || len(b) > maxDiff {
		return append(marked("- ", a), marked("+ ", b)...)
	}
	same := make([][]int, len(a)+1) // lines that a[i:] and b[k:] have in common
	for i := range same {
		same[i] = make([]int, len(b)+1)
	}
	for i, was := range slices.Backward(a) {
		for k, is := range slices.Backward(b) {
			if was == is {
				same[i][k] = same[i+1][k+1] + 1
			} else {
				same[i][k] = max(same[i+1][k], same[i][k+1])
			}
		}
	}
	i, k := 0, 0
	for i < len(a) && k < len(b) {
		switch {
		case a[i] == b[k]:
			lines = append(lines, "  "+a[i])
			i, k = i+1, k+1
		case same[i+1][k] >= same[i][k+1]:
			lines = append(lines, "- "+a[i])
			i++
		default:
			lines = append(lines, "+ "+b[k])
			k++
		}
	}
	return append(append(lines, marked("- ", a[i:])...), marked("+ ", b[k:])...)
}

func marked(mark string, lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = mark + line
	}
	return out
}
