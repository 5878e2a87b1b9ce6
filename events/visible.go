package events

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Visible is a text that may come from anywhere, fit to be shown to who decides by it: what moves the cursor, turns the
// writing around, joins, splits or cannot be seen stands there as its number, such as <U+202E>, and a byte that is no text
// as <0xFF>. Only newlines and tabs stay. Letters that look like others are shown as they are: they can be seen. The same
// bytes are always shown in the same way, and what needs no change is not changed.
func Visible(s string) string {
	at := strings.IndexFunc(s, hides)
	if at < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 8)
	b.WriteString(s[:at])
	for i := at; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "<0x%02X>", s[i])
		case hides(r):
			fmt.Fprintf(&b, "<U+%04X>", r)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// hides reports whether a character cannot be shown as it is. What is not known to leave a mark of its own does hide.
func hides(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || ' ' <= r && r < 0x7f:
		return false
	case r == utf8.RuneError: // in place of a byte that is no text, or a text of its own
		return true
	case unicode.In(r, unicode.Zs): // blanks of any width
		return false
	case unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
		return true
	}
	return !unicode.IsGraphic(r)
}

// VisibleJSON is JSON that means the same and holds no character that [Visible] would not show: those stand there escaped.
func VisibleJSON(raw []byte) []byte {
	if bytes.IndexFunc(raw, hides) < 0 {
		return raw
	}
	b := make([]byte, 0, len(raw)+64)
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		switch {
		case r < ' ' || r == utf8.RuneError && n == 1 || !hides(r): // those below a blank stand between values only
			b = append(b, raw[i:i+n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
		i += n
	}
	return b
}
