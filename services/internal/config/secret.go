package config

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// Lookup finds a variable of the environment, as os.LookupEnv does.
type Lookup func(name string) (value string, ok bool)

// Secrets are the values of the environment to which a file refers. They are apart from the file, whose texts hold the
// references ${NAME} and no value: what is applied, logged or shown is made of those. Secrets themselves print as
// nothing.
type Secrets struct {
	values map[string]string
	places map[string]string // of the first reference to a name
}

// String tells no value.
func (s Secrets) String() string { return fmt.Sprintf("%d secrets", len(s.values)) }

// GoString is String.
func (s Secrets) GoString() string { return s.String() }

// LogValue is String.
func (s Secrets) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String: secrets are never written.
func (s Secrets) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Expand puts the values in the place of the references of a text. A variable that is not set, or empty, is an error
// that names it and the place of its reference.
func (s Secrets) Expand(text string) (string, error) {
	var out strings.Builder
	var missing error
	for _, p := range split(text) {
		value, ok := s.values[p.name]
		switch {
		case p.name == "":
			out.WriteString(p.text)
		case ok:
			out.WriteString(value)
		case missing == nil:
			missing = fmt.Errorf("%s: the environment variable %s is not set", s.places[p.name], p.name)
		}
	}
	if missing != nil {
		return "", missing
	}
	return out.String(), nil
}

// Environ is the environment of a program, NAME=value in the order of the names, and those of its values that errors
// must not show. A variable that is only passed on is left out when it is not set.
func (s Secrets) Environ(e Exec) (env, secret []string, err error) {
	for _, name := range e.Pass {
		if value, ok := s.values[name]; ok {
			env = append(env, name+"="+value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		value, err := s.Expand(e.Env[name])
		if err != nil {
			return nil, nil, err
		}
		env = append(env, name+"="+value)
		secret = append(secret, s.in(e.Env[name])...)
	}
	slices.Sort(env)
	return env, secret, nil
}

// Headers are the headers of requests, and the values in them that errors must not show.
func (s Secrets) Headers(headers map[string]string) (values map[string]string, secret []string, err error) {
	values = make(map[string]string, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if values[name], err = s.Expand(headers[name]); err != nil {
			return nil, nil, err
		}
		secret = append(secret, s.in(headers[name])...)
	}
	return values, secret, nil
}

// in are the values to which a text refers.
func (s Secrets) in(text string) (values []string) {
	for _, p := range split(text) {
		if value, ok := s.values[p.name]; ok {
			values = append(values, value)
		}
	}
	return values
}

// piece is a part of a text: plain, or a reference.
type piece struct {
	text string // plain; the text of a malformed reference too
	name string // of a reference
	bad  bool
}

// split cuts a text at its references. "$${" stands for "${".
func split(text string) (pieces []piece) {
	plain := ""
	flush := func() {
		if plain != "" {
			pieces = append(pieces, piece{text: plain})
			plain = ""
		}
	}
	for text != "" {
		switch {
		case strings.HasPrefix(text, "$${"):
			plain, text = plain+"${", text[3:]
		case strings.HasPrefix(text, "${"):
			flush()
			name, rest, closed := strings.Cut(text[2:], "}")
			p := piece{name: name}
			if !closed || !variable(name) {
				p = piece{text: text[:len(text)-len(rest)], bad: true}
			}
			pieces, text = append(pieces, p), rest
		default:
			plain, text = plain+text[:1], text[1:]
		}
	}
	flush()
	return pieces
}

// variable reports whether a text is the name of a variable of the environment.
func variable(name string) bool {
	first := true
	for _, r := range name {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (first || r < '0' || r > '9') {
			return false
		}
		first = false
	}
	return name != ""
}

func refersTo(text string) (names []string) {
	for _, p := range split(text) {
		if p.name != "" {
			names = append(names, p.name)
		}
	}
	return names
}

// unescape is a text in which nothing refers to anything.
func unescape(text string) string { return strings.ReplaceAll(text, "$${", "${") }
