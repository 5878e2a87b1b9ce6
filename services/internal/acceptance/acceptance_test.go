package acceptance

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write table.md anew")

const root = "../../.."

// row is an id of the promised behaviour.
type row struct{ area, n int }

func (r row) String() string { return fmt.Sprintf("B%d.%d", r.area, r.n) }

func compareRows(a, b row) int {
	if a.area != b.area {
		return a.area - b.area
	}
	return a.n - b.n
}

// TestEveryRowHasATest fails for a promised row that no test stands for, and for a test that stands for none.
func TestEveryRowHasATest(t *testing.T) {
	t.Parallel()
	promised, later := rows(t, "rows.txt"), rows(t, "later.txt")
	tests := found(t)
	for _, r := range slices.SortedFunc(maps.Keys(promised), compareRows) {
		why, waits := later[r]
		switch {
		case len(tests[r]) == 0 && !waits:
			t.Errorf("%s (%s) has no test", r, promised[r])
		case len(tests[r]) > 0 && waits:
			t.Errorf("%s has a test, so it need not wait for %s", r, why)
		}
	}
	for r := range later {
		if _, ok := promised[r]; !ok {
			t.Errorf("%s waits, and is not promised", r)
		}
	}
	areas := map[int]bool{}
	for r := range promised {
		areas[r.area] = true
	}
	for r, names := range tests {
		if _, ok := promised[r]; !ok && areas[r.area] {
			t.Errorf("there is no row %s; it is in the name of %s", r, strings.Join(names, ", "))
		}
	}
}

func TestTableIsUpToDate(t *testing.T) {
	t.Parallel()
	want := table(rows(t, "rows.txt"), rows(t, "later.txt"), found(t))
	if *update {
		if err := os.WriteFile("table.md", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("table.md")
	if err != nil || string(got) != want {
		t.Errorf("table.md is out of date (%v); run go test ./services/internal/acceptance -update", err)
	}
}

func TestRowsOfNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]row{
		"TestB8_16FirstWins":          {{8, 16}},
		"TestB8_16_B8_17Races":        {{8, 16}, {8, 17}},
		"TestB7_3to5Precedence":       {{7, 3}, {7, 4}, {7, 5}},
		"TestB2_10And13OtherPrefixes": {{2, 10}, {2, 13}},
		"TestB14_EndChunks":           nil,
		"TestParseB":                  nil,
		"TestAttack12":                nil,
		"Many at once. (B8.30, I7)":   {{8, 30}},
		"TestB10_1To3Lists":           {{10, 1}, {10, 2}, {10, 3}},
	} {
		if got := rowsOf(name); !slices.Equal(got, want) {
			t.Errorf("%s stands for %v, want %v", name, got, want)
		}
	}
}

// rows reads a file of rows: an id and a text in each line.
func rows(t *testing.T, file string) map[row]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[row]string{}
	for line := range strings.Lines(string(text)) {
		id, promise, _ := strings.Cut(strings.TrimSpace(line), " ")
		var r row
		if _, err := fmt.Sscanf(id, "B%d.%d", &r.area, &r.n); err != nil || promise == "" {
			t.Fatalf("%s: %q is no row", file, line)
		}
		if _, twice := all[r]; twice {
			t.Errorf("%s: %s stands there twice", file, r)
		}
		all[r] = promise
	}
	return all
}

var (
	idForm   = regexp.MustCompile(`B(\d+)[_.](\d+)((?:(?:[tT]o|And)\d+)*)`)
	moreForm = regexp.MustCompile(`([tT]o|And)(\d+)`)
)

// rowsOf are the rows that a name, or the prose of a story, holds.
func rowsOf(name string) []row {
	var all []row
	for _, m := range idForm.FindAllStringSubmatch(name, -1) {
		area, n := number(m[1]), number(m[2])
		all = append(all, row{area, n})
		for _, more := range moreForm.FindAllStringSubmatch(m[3], -1) {
			last := number(more[2])
			if more[1] == "And" {
				n = last - 1
			}
			for n < last {
				n++
				all = append(all, row{area, n})
			}
		}
	}
	return all
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // the expression lets digits through alone
	return n
}

// found are the tests of the repository by row: package and name of a function, or the path of a story.
func found(t *testing.T) map[row][]string {
	t.Helper()
	all := map[row][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		tests, err := testsIn(path)
		for name, text := range tests {
			for _, r := range rowsOf(text) {
				if !slices.Contains(all[r], name) {
					all[r] = append(all[r], name)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// testsIn gives the tests of a file by name, each with the text that holds its rows: a function with its own name, a story
// with its prose.
func testsIn(path string) (map[string]string, error) {
	from, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	from = filepath.ToSlash(from)
	switch {
	case strings.HasSuffix(path, ".txtar"):
		text, err := os.ReadFile(path)
		prose, _, _ := strings.Cut(string(text), "\n-- ")
		return map[string]string{from: prose}, err
	case !strings.HasSuffix(path, "_test.go"):
		return nil, nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
			names[filepath.ToSlash(filepath.Join(filepath.Dir(from), f.Name.Name))] = f.Name.Name
		}
	}
	return names, nil
}

// table shows the rows and their tests.
func table(promised, later map[row]string, tests map[row][]string) string {
	var b strings.Builder
	b.WriteString("# Promised behaviour and its tests\n\nWritten by `go test ./services/internal/acceptance -update`.\n\n" +
		"| row | behaviour | tests |\n|---|---|---|\n")
	for _, r := range slices.SortedFunc(maps.Keys(promised), compareRows) {
		shown := "waits for " + later[r]
		if names := tests[r]; len(names) > 0 {
			shown = "`" + strings.Join(names, "`<br>`") + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r, promised[r], shown)
	}
	return b.String()
}
