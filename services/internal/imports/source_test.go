package imports

import (
	"bufio"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// topLevel is all that the root holds, beside names that begin with a dot and what .gitignore names there. Anything
// else belongs into one of its folders.
var topLevel = []string{
	"events", "schemas", "jetstream", "services", "deploy",
	"go.mod", "go.sum", "LICENSE", "Makefile", "README.md", "CHANGELOG.md",
}

func TestTopLevel(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	ignored := ignoredAtRoot(t)
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) && !slices.Contains(ignored, name) {
			t.Errorf("%s is not one of the fixed names of the top level", name)
		}
	}
}

// ignoredAtRoot lists the lines of .gitignore that name something in the root alone, as /bin/ does.
func ignoredAtRoot(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "/"); ok {
			names = append(names, strings.TrimSuffix(name, "/"))
		}
	}
	return names
}

// Subjects, keys and consumer names are built and parsed in events alone: a subject joined by hand elsewhere
// escapes the one place where foreign text becomes a token.
var handmade = []*regexp.Regexp{
	regexp.MustCompile(`(^|[^\w.])weir\.$`),                           // "weir.", the start of one
	regexp.MustCompile(`(^|[^\w.])weir\.[a-z%*][\w%*=-]*\.[\w%*>=-]`), // "weir.default.run"
	regexp.MustCompile(`\.main\.|\.call\.`),                           // the middle of one
}

// notSubjects are literals that look like subjects and are not.
var notSubjects = regexp.MustCompile(`weir\.(yaml|yml|json)\b|^gen_ai\.[a-z_.]+$`)

func isHandmade(literal string) bool {
	literal = notSubjects.ReplaceAllString(literal, "")
	return slices.ContainsFunc(handmade, func(re *regexp.Regexp) bool { return re.MatchString(literal) })
}

func TestSubjectsAreBuiltInEvents(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.isTest() || s.pkg == "events" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			if isHandmade(text) {
				t.Errorf("%s:%d: %s is a subject built by hand: use events/subject.go", s.path, s.line(lit), lit.Value)
			}
			return true
		})
	}
}

func TestIsHandmade(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"weir.":                         true,
		"weir.%s.run.%s":                true,
		"nats sub 'weir.default.run.>'": true,
		"%s.main.>":                     true,
		"run.%s.call.%s.go":             true,
		"weir.lock":                     false,
		"weir.yaml.bak":                 false,
		"read weir.yaml: line 3":        false,
		"no rule in weir.yaml. Add one": false,
		"a sentence about weir.":        true, // rare: word it differently
		"github.com/weirkeeper/weir":    false,
		"call.held":                     false,
		"the main call":                 false,
	}
	for literal, want := range tests {
		if got := isHandmade(literal); got != want {
			t.Errorf("isHandmade(%q) = %v, want %v", literal, got, want)
		}
	}
}

// TestNobodySleeps lets through only a sleep in fake time, which says so on its line.
func TestNobodySleeps(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		inTests := s.isTest() || slices.Contains(testkits, s.pkg)
		var lines []string
		eachUse(s, "time", []string{"Sleep"}, func(n ast.Node) {
			if lines == nil {
				lines = readLines(t, s)
			}
			_, comment, _ := strings.Cut(lines[s.line(n)-1], "//")
			if !inTests || !strings.Contains(comment, "fake") {
				t.Errorf("%s:%d: wait on a channel or a context; in a bubble of testing/synctest write // fake", s.path, s.line(n))
			}
		})
	}
}

// TestEnvironment keeps the environment where flags are read: a library that looks into it cannot be configured twice.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.isTest() || strings.HasPrefix(s.pkg, "services/cmd/") {
			continue
		}
		eachUse(s, "os", []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}, func(n ast.Node) {
			t.Errorf("%s:%d: the environment is read in services/cmd only", s.path, s.line(n))
		})
	}
}

// eachUse calls found for every mention of one of the names of a standard package in a file.
func eachUse(s source, pkg string, names []string, found func(ast.Node)) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg && slices.Contains(names, sel.Sel.Name) {
			found(sel)
		}
		return true
	})
}

func readLines(t *testing.T, s source) []string {
	t.Helper()
	f, err := os.Open(filepath.Join(root, filepath.FromSlash(s.path)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var lines []string
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	if err := scan.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
