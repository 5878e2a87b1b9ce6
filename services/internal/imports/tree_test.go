package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's folder as seen from this package.
const root = "../../.."

// source is one Go file of the module.
type source struct {
	path string // from the module's root, with slashes
	pkg  string // its folder, the name of its row in the import table
	file *ast.File
	fset *token.FileSet
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// line is the line of the file at which a node begins, counted from 1.
func (s source) line(n ast.Node) int { return s.fset.Position(n.Pos()).Line }

// sources parses the Go files of this module, those behind build tags included. Nested modules have rules of their
// own; testdata and folders that begin with a dot or an underscore are not built.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && skipped(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		s, err := parse(name, filepath.ToSlash(rel))
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parse(name, rel string) (source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution|parser.ParseComments)
	return source{path: rel, pkg: path.Dir(rel), file: file, fset: fset}, err
}

// skipped tells whether a folder is outside of the module or not built.
func skipped(dir string) bool {
	base := filepath.Base(dir)
	if base == "testdata" || base == "node_modules" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
