package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"text/template"
	"time"

	"github.com/weirkeeper/weir/events"
)

// rule is a compiled Rule.
type rule struct {
	Rule

	user    []*regexp.Regexp
	results map[string]*regexp.Regexp
	think   *writer
	say     *writer
	args    []func(values map[string]any) (string, error) // of each call
	delay   time.Duration
	failed  atomic.Int64 // how often it has failed so far
}

// match tells whether the rule fits, and what the groups of its patterns caught.
func (r *rule) match(c *conversation) (map[string]string, bool) {
	if !r.When.fits(c) {
		return nil, false
	}
	groups := map[string]string{}
	says := func(re *regexp.Regexp) bool { return capture(re, c.user, groups) }
	if len(r.user) > 0 && !slices.ContainsFunc(r.user, says) {
		return nil, false
	}
	for tool, pattern := range r.results {
		result := c.latest(tool)
		if result == nil || !capture(pattern, result.text, groups) {
			return nil, false
		}
	}
	return groups, true
}

func capture(pattern *regexp.Regexp, text string, groups map[string]string) bool {
	found := pattern.FindStringSubmatch(text)
	for i, name := range pattern.SubexpNames() {
		if found != nil && name != "" {
			groups[name] = found[i]
		}
	}
	return found != nil
}

// fails tells whether the rule fails this time.
func (r *rule) fails() bool {
	return r.Fail != nil && (r.Fail.Times == 0 || r.failed.Add(1) <= int64(r.Fail.Times))
}

func compile(p *Playbook) ([]*rule, error) {
	var rules []*rule
	for i, source := range p.Rules {
		r, err := compileRule(source, p.Delay)
		if err != nil {
			return nil, fmt.Errorf("playbook: rule %d: %w", i+1, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func compileRule(source Rule, delay events.Duration) (*rule, error) {
	r := &rule{Rule: source, delay: time.Duration(delay)}
	if source.Delay != 0 {
		r.delay = time.Duration(source.Delay)
	}
	if source.Say == "" && source.Think == "" && len(source.Calls) == 0 && source.Fail == nil && source.Finish == "" {
		return nil, errors.New("it neither says, calls nor fails")
	}
	var err error
	if r.user, r.results, err = source.When.patterns(); err != nil {
		return nil, err
	}
	if r.think, err = newWriter(source.Think); err != nil {
		return nil, fmt.Errorf("think: %w", err)
	}
	if r.say, err = newWriter(source.Say); err != nil {
		return nil, fmt.Errorf("say: %w", err)
	}
	for i, c := range source.Calls {
		if c.Tool == "" {
			return nil, fmt.Errorf("calls: call %d names no tool", i+1)
		}
		write, err := compileArgs(c.Args)
		if err != nil {
			return nil, fmt.Errorf("calls: %s: %w", c.Tool, err)
		}
		r.args = append(r.args, write)
	}
	return r, nil
}

// compileArgs prepares arguments: a text is a template as a whole, in any other value each text is one.
func compileArgs(raw json.RawMessage) (func(map[string]any) (string, error), error) {
	var whole string
	if len(raw) == 0 || json.Unmarshal(raw, &whole) == nil {
		w, err := newWriter(whole)
		if err != nil {
			return nil, err
		}
		return w.write, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // digits stay as they were written
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	fixed := true
	tree, err := each(tree, func(s string) (any, error) {
		w, err := newWriter(s)
		fixed = fixed && (w == nil || w.tmpl == nil)
		return w, err
	})
	if err != nil {
		return nil, err
	}
	if fixed {
		var out bytes.Buffer
		err := json.Compact(&out, raw)
		return func(map[string]any) (string, error) { return out.String(), nil }, err
	}
	return func(values map[string]any) (string, error) { return render(tree, values) }, nil
}

// render writes a tree whose texts are templates as JSON.
func render(tree any, values map[string]any) (string, error) {
	done, err := each(tree, func(w *writer) (any, error) { return w.write(values) })
	if err != nil {
		return "", err
	}
	raw, err := events.Marshal(done)
	return string(raw), err
}

// each copies a tree of JSON values with every leaf of one type replaced.
func each[T any](tree any, replace func(T) (any, error)) (any, error) {
	switch v := tree.(type) {
	case T:
		return replace(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, child := range v {
			var err error
			if out[k], err = each(child, replace); err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, child := range v {
			var err error
			if out[i], err = each(child, replace); err != nil {
				return nil, err
			}
		}
		return out, nil
	default:
		return tree, nil
	}
}

// writer is a template, or a text that needs none.
type writer struct {
	text string
	tmpl *template.Template
}

func newWriter(text string) (*writer, error) {
	if !strings.Contains(text, "{{") {
		return &writer{text: text}, nil
	}
	t, err := template.New("template").Option("missingkey=error").Funcs(template.FuncMap{"json": toJSON, "text": toText}).Parse(text)
	return &writer{tmpl: t}, err
}

func (w *writer) write(values map[string]any) (string, error) {
	if w.tmpl == nil {
		return w.text, nil
	}
	var out strings.Builder
	err := w.tmpl.Execute(&out, values)
	return out.String(), err
}

// toText is a text as it is and any other value as JSON.
func toText(v any) (string, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	return toJSON(v)
}

func toJSON(v any) (string, error) {
	raw, err := events.Marshal(v)
	return string(raw), err
}
