package events

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of JSON texts. Arguments, results and other values of people, models and tools nest up to MaxJSONDepth; an
// event that holds one may nest deeper by the levels around it.
const (
	MaxJSONDepth  = 64
	maxEventDepth = 96
	maxNumberText = 1000
	maxExponent   = 999
	fewKeys       = 32 // up to here comparing keys one by one is cheaper than a map
)

// SyntaxError says where and why a text is not the JSON that Weir takes.
type SyntaxError struct {
	Offset int // bytes before the place
	What   string
}

// Error names the place, counted in bytes from 1.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("malformed JSON at position %d: %s", e.Offset+1, e.What)
}

// CheckJSON reports whether raw is one JSON value as Weir takes it: strict syntax, valid UTF-8, no lone surrogate, no
// object with two equal keys, numbers of a sane size, at most [MaxJSONDepth] levels. Two readers of such a text
// cannot understand it differently.
func CheckJSON(raw []byte) error { return checkJSON(raw, MaxJSONDepth) }

func checkJSON(raw []byte, depth int) error {
	s := scanner{b: raw, depth: depth}
	defer s.borrow()()
	return s.only(s.value)
}

// scanner reads a JSON text once, strictly and without copies.
type scanner struct {
	b     []byte
	i     int
	depth int    // levels that may still open
	keys  []text // of the objects that are open
}

var keyRoom = sync.Pool{New: func() any { return new([fewKeys]text) }}

// borrow gives the scanner room for keys, until what it returns is called.
func (s *scanner) borrow() (giveBack func()) {
	room := keyRoom.Get().(*[fewKeys]text)
	s.keys = room[:0]
	return func() {
		*room = [fewKeys]text{} // keep no payload alive
		keyRoom.Put(room)
	}
}

// text is a string of the scanned text, as it stands between its quotes.
type text struct {
	raw     []byte
	escaped bool
}

// is compares without a copy in the usual case.
func (t text) is(u text) bool {
	if !t.escaped && !u.escaped {
		return bytes.Equal(t.raw, u.raw)
	}
	return t.String() == u.String()
}

// String is the decoded text.
func (t text) String() string {
	if !t.escaped {
		return string(t.raw)
	}
	return string(appendUnquoted(nil, t.raw))
}

func (s *scanner) fail(at int, format string, args ...any) error {
	return &SyntaxError{Offset: at, What: fmt.Sprintf(format, args...)}
}

func (s *scanner) unexpected(want string) error {
	if s.i >= len(s.b) {
		return s.fail(s.i, "the text ends, want %s", want)
	}
	r, _ := utf8.DecodeRune(s.b[s.i:])
	return s.fail(s.i, "unexpected %q, want %s", r, want)
}

// only runs read for the one value of the text and refuses anything after it.
func (s *scanner) only(read func() error) error {
	s.space()
	if err := read(); err != nil {
		return err
	}
	if s.space(); s.i < len(s.b) {
		return s.unexpected("nothing after the value")
	}
	return nil
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// value reads any value and keeps nothing of it.
func (s *scanner) value() error {
	switch s.peek() {
	case '{':
		return s.object(s.member)
	case '[':
		return s.array(s.value)
	case '"':
		_, err := s.str()
		return err
	default:
		return s.scalar()
	}
}

func (s *scanner) member(text) error { return s.value() }

// scalar reads a number, true, false or null.
func (s *scanner) scalar() error {
	switch c := s.peek(); {
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return s.unexpected("a value")
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return s.unexpected("a value")
	}
	s.i += len(word)
	return nil
}

func (s *scanner) open() error {
	if s.depth == 0 {
		return s.fail(s.i, "nested too deeply")
	}
	s.depth--
	s.i++
	s.space()
	return nil
}

func (s *scanner) close() {
	s.depth++
	s.i++
}

// array calls item at the start of each item; it must read exactly that value.
func (s *scanner) array(item func() error) error {
	if err := s.open(); err != nil {
		return err
	}
	for first := true; s.peek() != ']' || !first; first = false {
		if err := item(); err != nil {
			return err
		}
		s.space()
		if s.peek() == ']' {
			break
		}
		if s.peek() != ',' {
			return s.unexpected("a comma or ]")
		}
		s.i++
		s.space()
	}
	s.close()
	return nil
}

// object calls member with each key, at the start of its value; it must read exactly that value. Two keys that are
// equal once decoded are refused.
func (s *scanner) object(member func(key text) error) error {
	if err := s.open(); err != nil {
		return err
	}
	mark := len(s.keys)
	var many map[string]bool
	for first := true; s.peek() != '}' || !first; first = false {
		at := s.i
		if s.peek() != '"' {
			return s.unexpected("a key in double quotes")
		}
		key, err := s.str()
		if err != nil {
			return err
		}
		if many, err = s.unique(key, at, mark, many); err != nil {
			return err
		}
		s.space()
		if s.peek() != ':' {
			return s.unexpected("a colon")
		}
		s.i++
		s.space()
		if err := member(key); err != nil {
			return err
		}
		s.space()
		if s.peek() == '}' {
			break
		}
		if s.peek() != ',' {
			return s.unexpected("a comma or }")
		}
		s.i++
		s.space()
	}
	s.keys = s.keys[:mark]
	s.close()
	return nil
}

// unique refuses a key that the object, whose keys start at mark, already has. Large objects keep their keys in many.
func (s *scanner) unique(key text, at, mark int, many map[string]bool) (map[string]bool, error) {
	seen := s.keys[mark:]
	if many == nil && len(seen) == fewKeys {
		many = make(map[string]bool, 2*fewKeys)
		for _, k := range seen {
			many[k.String()] = true
		}
	}
	if many != nil {
		k := key.String()
		if many[k] {
			return nil, s.fail(at, "duplicate key %q", k)
		}
		many[k] = true
		return many, nil
	}
	for _, k := range seen {
		if k.is(key) {
			return nil, s.fail(at, "duplicate key %q", key.String())
		}
	}
	s.keys = append(s.keys, key)
	return nil, nil
}

// str reads a string: valid UTF-8, no control characters, escapes in pairs where they must be.
func (s *scanner) str() (text, error) {
	s.i++
	start, escaped := s.i, false
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			return text{s.b[start : s.i-1], escaped}, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return text{}, err
			}
		case c < ' ':
			return text{}, s.fail(s.i, "control character %#02x in a string", c)
		case c < utf8.RuneSelf:
			s.i++
		default:
			r, n := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && n == 1 {
				return text{}, s.fail(s.i, "invalid UTF-8")
			}
			s.i += n
		}
	}
	return text{}, s.unexpected("the end of the string")
}

func (s *scanner) escape() error {
	at := s.i
	if s.i+1 >= len(s.b) {
		s.i++
		return s.unexpected("the end of the string")
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return nil
	case 'u':
		r, ok := hex4(s.b[s.i:])
		if !ok {
			return s.fail(at, "malformed \\u escape")
		}
		s.i += 6
		if !utf16.IsSurrogate(r) {
			return nil
		}
		low, ok := hex4(s.b[s.i:])
		if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
			return s.fail(at, "lone surrogate \\u%04x", r)
		}
		s.i += 6
		return nil
	}
	return s.fail(at, "unknown escape")
}

// hex4 reads \uXXXX at the start of b.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// number reads a number of the grammar of RFC 8259. Lengths and exponents are bounded, because readers that compute
// exactly would spend time and memory without bound on 1e999999999.
func (s *scanner) number() error {
	start := s.i
	if s.peek() == '-' {
		s.i++
	}
	switch c := s.peek(); {
	case c == '0':
		s.i++
	case '1' <= c && c <= '9':
		s.digits()
	default:
		return s.unexpected("a digit")
	}
	if s.peek() == '.' {
		s.i++
		if s.digits() == 0 {
			return s.unexpected("a digit")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		if err := s.exponent(); err != nil {
			return err
		}
	}
	if s.i-start > maxNumberText {
		return s.fail(start, "number of more than %d characters", maxNumberText)
	}
	return nil
}

func (s *scanner) exponent() error {
	s.i++
	if c := s.peek(); c == '+' || c == '-' {
		s.i++
	}
	at := s.i
	n := s.digits()
	if n == 0 {
		return s.unexpected("a digit")
	}
	exp := bytes.TrimLeft(s.b[at:s.i], "0")
	if v, err := strconv.Atoi(string(exp)); len(exp) > 3 || err == nil && v > maxExponent {
		return s.fail(at, "exponent beyond %d", maxExponent)
	}
	return nil
}

func (s *scanner) digits() int {
	start := s.i
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.i++
	}
	return s.i - start
}

// appendUnquoted decodes a string that the scanner has accepted.
func appendUnquoted(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'u':
			r, _ := hex4(raw[i:])
			i += 6
			if utf16.IsSurrogate(r) {
				low, _ := hex4(raw[i:])
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// appendQuoted writes a string as RFC 8785 does: only what must be escaped is.
func appendQuoted[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
