package events

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	headerPrefix      = "ce-"
	headerContentType = "content-type"
	mediaEvent        = "application/cloudevents"
)

// ErrForeign says that a message from outside carries headers that only the server sets: it is a copy of something
// that was stored elsewhere.
var ErrForeign = errors.New("message carries headers of a stored message")

// Foreign checks a message that came from outside. One with the headers Nats-Stream, Nats-Subject or Nats-Sequence was
// not published by its sender but copied by the server, and counts for nothing.
func Foreign(header map[string][]string) error {
	for name := range header {
		if strings.EqualFold(name, "Nats-Stream") || strings.EqualFold(name, "Nats-Subject") ||
			strings.EqualFold(name, "Nats-Sequence") {
			return fmt.Errorf("%w: %s", ErrForeign, name)
		}
	}
	return nil
}

// RequestHeader are those headers of a request that belong to the event in it, as they came: content type, attributes of
// binary mode, key and signature. What the server or another program has added stays behind.
func RequestHeader(header map[string][]string) map[string][]string {
	own := map[string][]string{}
	for name, values := range header {
		if lower := strings.ToLower(name); ours(lower) && lower != HeaderCarried {
			own[name] = values
		}
	}
	return own
}

type attribute struct{ name, value string }

// eventHeader is what the headers of a message say about the event in it.
type eventHeader struct {
	structured bool
	attributes []attribute // of binary mode, decoded
	signature  Signature
	carried    bool
}

// readHeader reads names without regard to case. A name that stands twice, also in two spellings, is refused, because
// readers would differ about which counts.
func readHeader(header map[string][]string) (eventHeader, error) {
	var h eventHeader
	var contentType, carried string
	seen := make([]string, 0, 16)
	for name, values := range header {
		lower := strings.ToLower(name)
		if !ours(lower) {
			continue
		}
		if len(values) != 1 || slices.Contains(seen, lower) {
			return h, fmt.Errorf("header %s does not stand exactly once", lower)
		}
		seen = append(seen, lower)
		switch lower {
		case headerContentType:
			contentType = values[0]
		case HeaderKey:
			h.signature.Key = values[0]
		case HeaderSig:
			h.signature.Sig = values[0]
		case HeaderCarried:
			carried = values[0]
		default:
			v, err := percentDecode(values[0])
			if err != nil {
				return h, fmt.Errorf("header %s: %w", lower, err)
			}
			h.attributes = append(h.attributes, attribute{lower[len(headerPrefix):], v})
		}
	}
	h.carried = carried != ""
	var err error
	h.structured, err = isStructured(contentType)
	return h, err
}

func ours(lower string) bool {
	return strings.HasPrefix(lower, headerPrefix) || lower == headerContentType || lower == HeaderKey ||
		lower == HeaderSig || lower == HeaderCarried
}

// isStructured decides the mode by the content type alone.
func isStructured(contentType string) (bool, error) {
	if contentType == mediaEventJSON {
		return true, nil
	}
	base, params, _ := strings.Cut(strings.ToLower(contentType), ";")
	base = strings.TrimSpace(base)
	switch {
	case !strings.HasPrefix(base, mediaEvent):
		return false, nil
	case strings.HasPrefix(base, mediaEvent+"-batch"):
		return false, errors.New("batches of events are not taken")
	case base != mediaEventJSON:
		return false, fmt.Errorf("content type %q: only the JSON format is taken", contentType)
	}
	if _, charset, ok := strings.Cut(params, "charset="); ok && !strings.HasPrefix(strings.Trim(charset, `" `), "utf-8") {
		return false, fmt.Errorf("content type %q: only UTF-8 is taken", contentType)
	}
	return true, nil
}

const upperHex = "0123456789ABCDEF"

// percentEncode makes a text safe as a header's value: space, double quote, percent and everything outside U+0021 to
// U+007E become percent-encoded UTF-8 bytes.
func percentEncode(s string) string {
	if !strings.ContainsFunc(s, mustEncode[rune]) {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; mustEncode(c) {
			b = append(b, '%', upperHex[c>>4], upperHex[c&0xf])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEncode[T byte | rune](c T) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }

// percentDecode refuses a malformed escape and a value that is no valid text.
func percentDecode(s string) (string, error) {
	if strings.IndexByte(s, '%') >= 0 {
		b := make([]byte, 0, len(s))
		for i := 0; i < len(s); i++ {
			if s[i] != '%' {
				b = append(b, s[i])
				continue
			}
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return "", errors.New("malformed percent-encoding")
			}
			b = append(b, unhex(s[i+1])<<4|unhex(s[i+2]))
			i += 2
		}
		s = string(b)
	}
	if !cleanText(s) {
		return "", errText
	}
	return s, nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}
