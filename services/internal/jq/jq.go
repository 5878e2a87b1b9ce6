// Package jq runs jq programs that come with definitions: small ones, on values that pass through a service. A program
// sees its input and what it is given by name, and nothing else: no environment, no files, no modules, no other inputs.
// It has a deadline, neither its input nor its output may be large, and each of its steps is a small one (guard.go): it
// defines no functions, and calls those that guard.go lists.
package jq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/itchyny/gojq"
)

// The limits. Memory is bounded by them, and by what a few milliseconds can fill in small steps.
const (
	// MaxSource bounds a program, in bytes: it is read by people.
	MaxSource = 4 << 10
	// MaxInput bounds the text of a value that a program is given, in bytes.
	MaxInput = 1 << 20
	// MaxOutput bounds the text of what it makes, in bytes.
	MaxOutput = 1 << 20
	// patience bounds one run.
	patience = 50 * time.Millisecond
	// maxNesting bounds the depth of a value, which may share its parts and so be larger than memory when written.
	maxNesting = 64
	// maxElements bounds the elements of an output.
	maxElements = 100_000
)

// ErrNothing says that a program gave no value, or null.
var ErrNothing = errors.New("the jq program gives nothing")

// Program is a compiled program. It may be used by several goroutines at once.
type Program struct {
	source string
	code   *gojq.Code
	names  []string
	// patience bounds one run. Tests of what programs give have more than others, so that a busy machine fails none.
	patience time.Duration
}

// Compile compiles a program. Names are those, without the $, by which it may use the values that [Program.Run] is given
// beside the input. What a program may not do is refused here, by name.
func Compile(source string, names ...string) (p *Program, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("jq: cannot be compiled: %v", r)
		}
	}()
	if len(source) > MaxSource {
		return nil, fmt.Errorf("jq: the program has %d bytes, more than %d", len(source), MaxSource)
	}
	query, err := gojq.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("jq: %w", err)
	}
	variables := make([]string, len(names))
	for i, name := range names {
		variables[i] = "$" + name
	}
	if err := new(guard).query(query); err != nil {
		return nil, fmt.Errorf("jq: %w", err)
	}
	code, err := gojq.Compile(query, append(options(), gojq.WithVariables(variables))...)
	if err != nil {
		return nil, fmt.Errorf("jq: %w", err)
	}
	return &Program{source: source, code: code, names: slices.Clone(names), patience: patience}, nil
}

// Run gives the first value that the program makes of an input, numbers that it does not calculate with digit by digit.
// Values are those for its names, in order; they and the input are JSON. A program that fails, takes longer than 50 ms
// or makes too much is an error that quotes no value, and one that gives nothing or null is [ErrNothing].
func (p *Program) Run(ctx context.Context, input json.RawMessage, values ...json.RawMessage) (out json.RawMessage, err error) {
	if len(values) != len(p.names) {
		return nil, fmt.Errorf("jq: %d values for the names %v", len(values), p.names)
	}
	all := make([]any, 0, len(values)+1)
	for _, raw := range append([]json.RawMessage{input}, values...) {
		v, err := decode(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, errors.New("jq: the program panicked")
		}
	}()
	v, ok := p.code.RunWithContext(ctx, all[0], all[1:]...).Next()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("jq: the program takes longer than %v", p.patience)
	}
	if !ok || v == nil {
		return nil, ErrNothing
	}
	if failed, isError := v.(error); isError {
		return nil, failure(failed)
	}
	return encode(v)
}

// failure is the error of a program, without the values that it may quote.
func failure(err error) error {
	if halt, ok := errors.AsType[*gojq.HaltError](err); ok && halt.Value() == nil {
		return ErrNothing
	}
	return errors.New("jq: the program failed")
}

func decode(raw json.RawMessage) (any, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	if len(raw) > MaxInput {
		return nil, fmt.Errorf("jq: a value of %d bytes, more than %d", len(raw), MaxInput)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("jq: the input is not JSON")
	}
	return v, nil
}

func encode(v any) (json.RawMessage, error) {
	left := size{elements: maxElements, bytes: MaxOutput}
	if !left.fits(v, 0) {
		return nil, errors.New("jq: the output is too large")
	}
	raw, err := gojq.Marshal(v)
	if err != nil {
		return nil, errors.New("jq: the output is not JSON")
	}
	if len(raw) > MaxOutput {
		return nil, errors.New("jq: the output is too large")
	}
	return raw, nil
}

// size is how much more of an output is allowed.
type size struct{ elements, bytes int }

func (s *size) fits(v any, depth int) bool {
	s.elements--
	if s.elements < 0 || s.bytes < 0 || depth > maxNesting {
		return false
	}
	switch v := v.(type) {
	case string:
		s.bytes -= len(v)
	case json.Number:
		s.bytes -= len(v)
	case *big.Int:
		s.bytes -= v.BitLen() / 2 // digits of two big numbers are multiplied with each other
	case []any:
		for _, item := range v {
			if !s.fits(item, depth+1) {
				return false
			}
		}
	case map[string]any:
		for key, field := range v {
			s.bytes -= len(key)
			if !s.fits(field, depth+1) {
				return false
			}
		}
	}
	return s.bytes >= 0
}
