package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

const (
	maxName    = 63
	nameDigits = 8 // hexadecimal digits of the digest that ends a name that was cut
)

// SafeName is the name by which models know a tool: its key, with characters other than letters, digits, _ and -
// replaced by _, with _ in front unless it starts with a letter or _, and cut to 63 characters. What is cut ends in
// digits of a digest of the whole key, so that long keys stay distinct. The name depends on the key alone. An empty
// key has no name.
func SafeName(key string) string {
	if key == "" {
		return ""
	}
	name := strings.Map(func(r rune) rune {
		if letter(r) || digit(r) || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, key)
	if first := rune(name[0]); !letter(first) && first != '_' {
		name = "_" + name
	}
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(key))
	return name[:maxName-nameDigits-1] + "_" + hex.EncodeToString(sum[:])[:nameDigits]
}

func letter(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }

func digit(r rune) bool { return '0' <= r && r <= '9' }

// SafeNames maps each key to its name for models. Keys whose names are equal are a tool_name_collision that names
// them, and an empty key is an invalid_definition; the map then holds the keys that have a name of their own, the
// first of equal ones in the order of the alphabet among them, for callers that leave the others out.
func SafeNames(keys []string) (map[string]string, error) {
	names := make(map[string]string, len(keys))
	owner := make(map[string]string, len(keys))
	var err *events.Error
	for _, key := range slices.Sorted(slices.Values(keys)) {
		name := SafeName(key)
		if name == "" {
			err = addIssue(err, events.CodeInvalidDefinition, key, "a tool needs a key that is not empty")
			continue
		}
		if other, taken := owner[name]; taken && other != key {
			err = addIssue(err, events.CodeToolNameCollision, key,
				fmt.Sprintf("the tools %q and %q have the same name for models, %q", other, key, name))
			continue
		}
		names[key], owner[name] = name, key
	}
	if err != nil {
		return names, err
	}
	return names, nil
}

// addIssue adds an issue to err. A collision outranks other codes.
func addIssue(err *events.Error, code events.Code, field, message string) *events.Error {
	if err == nil {
		err = events.Errorf(code, "%s", message)
	} else if code == events.CodeToolNameCollision && err.Code != code {
		err.Code, err.Message = code, message
	}
	err.Issues = append(err.Issues, events.Issue{Field: field, Message: message})
	return err
}
