package agent

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirkeeper/weir/events"
)

var legal = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,62}$`)

// NAME-2: keys as MCP servers send them.
func TestB1_5SafeName(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"weatherTool": "weatherTool", "get-it": "get-it", "a.b": "a_b", "a/b": "a_b", "a b": "a_b", "日本": "__",
		"3d": "_3d", "-x": "_-x", "_x": "_x", "": "", "a\xffb": "a_b",
		strings.Repeat("x", 63): strings.Repeat("x", 63),
	} {
		if got := SafeName(key); got != want {
			t.Errorf("SafeName(%q) = %q, want %q", key, got, want)
		}
	}
}

// NAME-1: keys that share their first 64 and last 30 characters. The names are part of stored transcripts, so they
// must never change.
func TestB1_5LongKeysStayDistinct(t *testing.T) {
	t.Parallel()
	head, tail := strings.Repeat("a", 64), strings.Repeat("z", 30)
	one, two := SafeName(head+"1"+tail), SafeName(head+"2"+tail)
	if one == two || !legal.MatchString(one) || len(one) != 63 {
		t.Errorf("%q and %q", one, two)
	}
	if want := strings.Repeat("a", 54) + "_b3d53e01"; one != want {
		t.Errorf("got %q, want %q", one, want)
	}
	names, err := SafeNames([]string{head + "1" + tail, head + "2" + tail})
	if err != nil || len(names) != 2 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestSafeNameIsLegalAndStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringN(1, 100, 300).Draw(t, "key")
		name := SafeName(key)
		if !legal.MatchString(name) {
			t.Fatalf("SafeName(%q) = %q", key, name)
		}
		if again := SafeName(name); again != name {
			t.Fatalf("SafeName(%q) = %q, then %q", key, name, again)
		}
	})
}

func TestB1_6Collision(t *testing.T) {
	t.Parallel()
	names, err := SafeNames([]string{"a/b", "x", "a.b", "a b", ""})
	collision, ok := errors.AsType[*events.Error](err)
	if !ok || collision.Code != events.CodeToolNameCollision || len(collision.Issues) != 3 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), `"a b"`) || !strings.Contains(err.Error(), `"a.b"`) {
		t.Errorf("got %v, want both keys", err)
	}
	if len(names) != 2 || names["a b"] != "a_b" || names["x"] != "x" {
		t.Errorf("got %v", names)
	}
	if _, err := SafeNames([]string{""}); events.CodeOf(err) != events.CodeInvalidDefinition {
		t.Errorf("got %v", err)
	}
	if names, err := SafeNames([]string{"a", "a"}); err != nil || len(names) != 1 {
		t.Errorf("the same key twice: %v, %v", names, err)
	}
}
