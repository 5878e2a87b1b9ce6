package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/weirkeeper/weir/schemas"
)

// errUnknownType says that an event is none of Weir's.
var errUnknownType = errors.New("unknown type of event")

// ValidateData checks the data of a received event against the schema of its type. An event of an unknown type, and
// one with a field that differs from a known one only in upper and lower case, is refused: readers would differ about
// what it says.
//
// There is no record of events that this process checked when it made them: accepting an event of Weir's own takes one
// pass over its bytes without allocations, a fraction of reading it as its type afterwards, so that a record would
// save little, and nothing at all between processes.
func ValidateData(e Event) error {
	row, ok := rowsByType[e.Type]
	if !ok {
		return badEvent("%w: %q", errUnknownType, e.Type)
	}
	return validateData(row, e.Data)
}

// validateData checks data on its way out and in.
func validateData(row *Row, raw json.RawMessage) error {
	s, err := schemaOfRow(row)
	if err != nil {
		return err
	}
	if s.quick.accepts(raw) {
		return nil
	}
	if err := s.ValidateRaw(raw); err != nil {
		return badEvent("data of %s: %w", row.Type, err)
	}
	if name, ok := s.quick.misspelt(decodeAny(raw)); ok {
		return badEvent("data of %s: %w", row.Type,
			&InvalidData{Issues: []Issue{{Field: name, Message: "is known in another spelling"}}})
	}
	return nil
}

var rowSchemas sync.Map // name of the schema → *Schema; each compiled once, when it is first needed

func schemaOfRow(row *Row) (*Schema, error) { return schemaNamed(row.Schema()) }

// schemaNamed compiles a schema of this repository.
func schemaNamed(name string) (*Schema, error) {
	if s, ok := rowSchemas.Load(name); ok {
		return s.(*Schema), nil
	}
	raw, err := schemas.FS.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", name, err)
	}
	common, err := schemas.FS.ReadFile(schemas.Common)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", schemas.Common, err)
	}
	s, err := compileSchema(raw, map[string][]byte{schemas.BaseURL + schemas.Common: common})
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", name, err)
	}
	rowSchemas.Store(name, s)
	return s, nil
}
