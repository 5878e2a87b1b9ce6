package rule

import (
	"fmt"
	"strings"
)

// Tool is the identity by which rules match a tool. It is never the key under which an agent holds it, nor the name that a
// model is shown: those are aliases that agents choose.
type Tool struct {
	// ID is the one under which the tool is registered.
	ID string
	// Kind is where its code is: go, http, exec, nats, mcp, builtin or client.
	Kind string
	// Server and Name are those of the MCP server, for kind mcp: its key, and the raw name that it lists.
	Server, Name string
}

// The parts of a pattern.
const (
	sourceMCP = "mcp"
	sourceSep = ":"
	mcpSep    = "/"
)

func isSource(word string) bool {
	switch word {
	case "go", "http", "exec", "nats", sourceMCP, "builtin", "client":
		return true
	}
	return false
}

// Matches tells whether a pattern matches the tool. A pattern is one of
//
//	issue_*              the id, whatever the source
//	http:issue_*         the id, of tools of this source alone
//	mcp:github/delete_*  server and raw name of an MCP tool, each matched whole
//	mcp:github           every tool of that server
//
// A word before a colon that is no source is part of an id, and an id that looks like a pattern with a source is named by
// its own: exec:http:get. An error says that the tool does not tell what the pattern asks for.
func (t Tool) Matches(pattern string) (bool, error) {
	kind, rest, ok := strings.Cut(pattern, sourceSep)
	if !ok || !isSource(kind) {
		if t.ID == "" {
			return false, &Error{Message: "the tool has no id to match"}
		}
		return Matches(pattern, t.ID), nil
	}
	switch {
	case t.Kind == "":
		return false, &Error{Message: "the tool has no source to match"}
	case t.Kind != kind:
		return false, nil
	case kind != sourceMCP && t.ID == "":
		return false, &Error{Message: "the tool has no id to match"}
	case kind != sourceMCP:
		return Matches(rest, t.ID), nil
	case t.Server == "" || t.Name == "":
		return false, &Error{Message: "the tool does not say which server it is of"}
	}
	server, name, named := strings.Cut(rest, mcpSep)
	return Matches(server, t.Server) && (!named || Matches(name, t.Name)), nil
}

// CheckToolPattern finds what can be wrong with a pattern by itself.
func CheckToolPattern(pattern string) error {
	kind, rest, ok := strings.Cut(pattern, sourceSep)
	if !ok || !isSource(kind) {
		return nil
	}
	server, name, named := strings.Cut(rest, mcpSep)
	switch {
	case rest == "":
		return fmt.Errorf("the pattern %q names no tool: write %s* for all of this source", pattern, kind+sourceSep)
	case kind == sourceMCP && (server == "" || named && name == ""):
		return fmt.Errorf("the pattern %q is not mcp:<server>/<tool>; either may be *", pattern)
	}
	return nil
}

// matchesTool matches the tool of an input. What is not known of it is an error where a pattern asks for it, unless
// another one matches.
func matchesTool(patterns []string, value any) (ok bool, err error) {
	if len(patterns) == 0 {
		return true, nil
	}
	t := toolOf(value)
	for _, pattern := range patterns {
		matched, fault := t.Matches(pattern)
		if matched {
			return true, nil
		}
		if err == nil {
			err = fault
		}
	}
	return false, err
}

// toolOf reads the identity of the tool of an input.
func toolOf(value any) (t Tool) {
	m, _ := value.(map[string]any)
	t.ID, _ = m[keyID].(string)
	source, _ := m[keySource].(map[string]any)
	t.Kind, _ = source["kind"].(string)
	t.Server, _ = source["server"].(string)
	t.Name, _ = source["name"].(string)
	return t
}

// matchesAgent matches the id of the agent of an input. Without an id nothing is known, which is an error.
func matchesAgent(patterns []string, value any) (bool, error) {
	if len(patterns) == 0 {
		return true, nil
	}
	m, _ := value.(map[string]any)
	id, _ := m[keyID].(string)
	if id == "" {
		return false, &Error{Message: "the agent has no id to match"}
	}
	for _, pattern := range patterns {
		if Matches(pattern, id) {
			return true, nil
		}
	}
	return false, nil
}

// Matches tells whether a pattern matches an id: * stands for any run of characters, ? for one, everything
// else for itself. An id is matched whole and case counts.
func Matches(pattern, id string) bool {
	p, s := []rune(pattern), []rune(id)
	star, from := -1, 0 // the last * in the pattern, and where its run may go on
	i, k := 0, 0
	for k < len(s) {
		switch {
		case i < len(p) && p[i] == '*':
			star, from = i, k
			i++
		case i < len(p) && (p[i] == '?' || p[i] == s[k]):
			i++
			k++
		case star >= 0:
			from++
			i, k = star+1, from
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
