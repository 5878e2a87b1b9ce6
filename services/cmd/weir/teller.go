package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// teller writes a story: who on the left, what on the right. Several goroutines may use it.
type teller struct {
	mu       sync.Mutex
	out      io.Writer
	fancy    bool
	speaking bool // in the middle of what a model says
}

func newTeller(out io.Writer) *teller { return &teller{out: out, fancy: isTerminal(out)} }

// Styles of a terminal.
const (
	styleBold  = "1"
	styleQuiet = "2"
	styleBad   = "31"
	styleGood  = "32"
	styleWarn  = "33"
)

func (t *teller) style(style, text string) string {
	if !t.fancy {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// who is the left column.
func (t *teller) who(name string) string {
	return "  " + t.style(styleQuiet, fmt.Sprintf("%-14s", name)) + "  "
}

// write ends what a model says, and writes. An output that is gone has nobody who misses it.
func (t *teller) write(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.speaking {
		text = "\n" + text
		t.speaking = false
	}
	_, _ = io.WriteString(t.out, text)
}

// title is a line for itself.
func (t *teller) title(text string) { t.write(t.style(styleBold, text) + "\n\n") }

func (t *teller) gap() { t.write("\n") }

// line is what somebody does.
func (t *teller) line(name, text string) { t.write(t.who(name) + text + "\n") }

// text are lines without anybody's name.
func (t *teller) text(lines ...string) { t.write(strings.Join(lines, "\n") + "\n") }

// speech is a piece of what a model says.
func (t *teller) speech(name, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.speaking {
		text = t.who(name) + strings.TrimLeft(text, "\n")
		t.speaking = true
	}
	_, _ = io.WriteString(t.out, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 18)))
}
