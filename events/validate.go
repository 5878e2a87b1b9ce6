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

// SchemaDigest is the digest under which a schema of a tool is known: that of its canonical form, so that white space
// and the order of keys do not count.
func SchemaDigest(raw []byte) (string, error) {
	canonical, err := Canonical(raw)
	if err != nil {
		return "", err
	}
	return Digest(canonical), nil
}

// maxSchemas bounds the compiled schemas of tools that a process keeps.
const maxSchemas = 512

var toolSchemas = schemaCache{byText: map[string]cachedSchema{}}

// schemaCache keeps compiled schemas by the digest of their text, so an entry is never stale. When it is full, half
// of it is forgotten.
type schemaCache struct {
	mu     sync.Mutex
	byText map[string]cachedSchema
}

type cachedSchema struct {
	schema *Schema
	digest string
}

// SchemaOf is the compiled form of a tool's schema, compiled once per process. The digest is that of [SchemaDigest];
// one that is not the schema's is an error, and an empty one is not compared.
func SchemaOf(digest string, raw []byte) (*Schema, error) {
	c, err := toolSchemas.of(raw)
	if err != nil {
		return nil, err
	}
	if digest != "" && !SameDigest(digest, c.digest) {
		return nil, fmt.Errorf("schema: its digest is %s, not %s", c.digest, digest)
	}
	return c.schema, nil
}

func (c *schemaCache) of(raw []byte) (cachedSchema, error) {
	key := Digest(raw)
	c.mu.Lock()
	known, ok := c.byText[key]
	c.mu.Unlock()
	if ok {
		return known, nil
	}
	s, err := CompileSchema(raw)
	if err != nil {
		return cachedSchema{}, err
	}
	digest, err := SchemaDigest(raw)
	if err != nil {
		return cachedSchema{}, fmt.Errorf("schema: %w", err)
	}
	made := cachedSchema{s, digest}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byText) >= maxSchemas {
		for old := range c.byText {
			if delete(c.byText, old); len(c.byText) <= maxSchemas/2 {
				break
			}
		}
	}
	c.byText[key] = made
	return made, nil
}
