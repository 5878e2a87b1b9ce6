package events

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Canonical is raw in the one form that Weir freezes, shows and fingerprints: no white space, keys in the order of
// RFC 8785 (by UTF-16 code units), texts with only the escapes that they need. Numbers keep their own digits: 1, 1.0
// and 1e0 stay three texts, because a conversion would lose digits, and what a person approves are the bytes. It
// refuses what [CheckJSON] refuses. The canonical form of a canonical form is itself.
func Canonical(raw []byte) ([]byte, error) {
	c := canon{scanner: scanner{b: raw, depth: MaxJSONDepth, keys: make([]text, 0, 16)}}
	c.out = make([]byte, 0, len(raw))
	if err := c.only(c.value); err != nil {
		return nil, err
	}
	return c.out, nil
}

// canonicalValue is the canonical form of a decoded value. Numbers must be [json.Number].
func canonicalValue(v any) (json.RawMessage, error) {
	raw, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	return Canonical(raw)
}

// canon writes what the scanner reads.
type canon struct {
	scanner
	out     []byte
	scratch []byte
}

func (c *canon) value() error {
	switch c.peek() {
	case '{':
		return c.sorted()
	case '[':
		return c.list()
	case '"':
		t, err := c.str()
		if err == nil {
			c.text(t)
		}
		return err
	}
	start := c.i
	err := c.scalar()
	c.out = append(c.out, c.b[start:c.i]...)
	return err
}

func (c *canon) text(t text) {
	if !t.escaped {
		c.out = append(c.out, '"')
		c.out = append(c.out, t.raw...)
		c.out = append(c.out, '"')
		return
	}
	c.scratch = appendUnquoted(c.scratch[:0], t.raw)
	c.out = appendQuoted(c.out, c.scratch)
}

func (c *canon) list() error {
	c.out = append(c.out, '[')
	first := true
	err := c.array(func() error {
		if !first {
			c.out = append(c.out, ',')
		}
		first = false
		return c.value()
	})
	c.out = append(c.out, ']')
	return err
}

// sorted writes the members as they come, remembers where each stands, and writes them again in order at the end.
func (c *canon) sorted() error {
	type member struct {
		key      string
		from, to int // of its text, key and value
	}
	var members []member
	mark := len(c.out)
	err := c.object(func(key text) error {
		from := len(c.out) - mark
		c.text(key)
		c.out = append(c.out, ':')
		err := c.value()
		members = append(members, member{key.String(), from, len(c.out) - mark})
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(members, func(a, b member) int { return compareUTF16(a.key, b.key) })
	written := bytes.Clone(c.out[mark:])
	c.out = append(c.out[:mark], '{')
	for i, m := range members {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, written[m.from:m.to]...)
	}
	c.out = append(c.out, '}')
	return nil
}

// compareUTF16 orders texts by their UTF-16 code units. That is the order of their bytes, except that characters
// beyond U+FFFF, which are two surrogates there, come before those from U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for a != "" && b != "" {
		r, n := utf8.DecodeRuneInString(a)
		q, m := utf8.DecodeRuneInString(b)
		if r != q {
			return cmp.Compare(unitOf(r), unitOf(q))
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}

// unitOf maps a character to a number that orders as its code units do.
func unitOf(r rune) rune {
	const plane1, surrogates = 0x10000, 0xd800
	if r < plane1 {
		return r << 11 // room for the second unit and more
	}
	return surrogates<<11 + (r - plane1)
}

// ErrTruncated says that a model's turn was cut inside the arguments of a call.
var ErrTruncated = errors.New("the arguments were cut off by the length limit, nothing was run")

// ParseArgs reads the arguments of a call as a model wrote them: an object, of which nothing is changed. Nothing at
// all, white space and null are the empty object. What is cut, is not JSON, or is another kind of value never runs;
// the error says where and why, in words that a model can act on.
func ParseArgs(text string, truncated bool) (json.RawMessage, error) {
	if truncated {
		return nil, ErrTruncated
	}
	raw := bytes.TrimSpace([]byte(text))
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}"), nil
	}
	if err := CheckJSON([]byte(text)); err != nil {
		return nil, err
	}
	if raw[0] != '{' {
		return nil, fmt.Errorf("the arguments must be an object, not %s", kindOf(raw))
	}
	return raw, nil
}

// kindOf names the type of a checked JSON value.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
