package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirkeeper/weir/events"
)

// Problem is one thing that is wrong with a file, and where.
type Problem struct {
	File    string
	Line    int // from 1
	Column  int // from 1; 0: unknown
	Path    string
	Message string

	code events.Code
}

// Place is file, line and column, as editors understand them.
func (p Problem) Place() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// String is place, path and message.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Place() + ": " + p.Message
	}
	return p.Place() + ": " + p.Path + ": " + p.Message
}

// Problems are in the order of the file.
type Problems []Problem

// String is one line for each problem.
func (ps Problems) String() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Error is the error of a file: all that is wrong with it.
type Error struct{ Problems Problems }

// Error is one line for each problem.
func (e *Error) Error() string { return e.Problems.String() }

// Unwrap is the problems as the one error shape of Weir: invalid_definition, or tool_name_collision when nothing else
// is wrong, with an issue for each.
func (e *Error) Unwrap() error {
	out := events.Errorf(events.CodeToolNameCollision, "%s", e.Error())
	for _, p := range e.Problems {
		if p.code != events.CodeToolNameCollision {
			out.Code = events.CodeInvalidDefinition
		}
		message := p.Message
		if p.Path != "" {
			message = p.Path + ": " + message
		}
		out.Issues = append(out.Issues, events.Issue{Field: p.Place(), Message: message})
	}
	return out
}

// sorted is the order of the file.
func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Message, b.Message))
	})
	return slices.Compact(ps) // a value that is read twice is wrong once
}

// about reports whether there is a problem with a path or a part of it.
func (ps Problems) about(path string) bool {
	return slices.ContainsFunc(ps, func(p Problem) bool {
		return p.Path == path || strings.HasPrefix(p.Path, path+".") || strings.HasPrefix(p.Path, path+"[")
	})
}
