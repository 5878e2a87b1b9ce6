package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// Object is a JSON object that keeps the order of its members: models write arguments in the order in which a schema
// lists the properties, so the order carries meaning, and equal schemas must stay equal bytes.
type Object []Member

// Member is a member of an object.
type Member struct {
	Name  string
	Value json.RawMessage
}

// ParseObject reads an object; of equal names the last one counts.
func ParseObject(raw json.RawMessage) (Object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("not an object: %.40s", raw)
	}
	o := Object{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		o.Set(name.(string), value) // a key of an object is a string, or Token had failed
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return o, nil
}

// Get is the value of a member.
func (o Object) Get(name string) (json.RawMessage, bool) {
	i := o.index(name)
	if i < 0 {
		return nil, false
	}
	return o[i].Value, true
}

// Has tells whether there is such a member.
func (o Object) Has(name string) bool { return o.index(name) >= 0 }

func (o Object) index(name string) int {
	return slices.IndexFunc(o, func(m Member) bool { return m.Name == name })
}

// Set replaces a member in its place, or adds it at the end.
func (o *Object) Set(name string, value json.RawMessage) {
	if i := o.index(name); i >= 0 {
		(*o)[i].Value = value
		return
	}
	*o = append(*o, Member{name, value})
}

// Remove takes members away.
func (o *Object) Remove(names ...string) {
	*o = slices.DeleteFunc(*o, func(m Member) bool { return slices.Contains(names, m.Name) })
}

// Names are those of the members, in their order.
func (o Object) Names() []string {
	names := make([]string, len(o))
	for i, m := range o {
		names[i] = m.Name
	}
	return names
}

// SetJSON sets a member to a value of Go.
func (o *Object) SetJSON(name string, v any) error {
	raw, err := events.Marshal(v)
	if err == nil {
		o.Set(name, raw)
	}
	return err
}

// Optional reads an object that may be absent; members that are null are left out.
func Optional(raw json.RawMessage) (Object, error) {
	if t := bytes.TrimSpace(raw); len(t) == 0 || string(t) == "null" {
		return nil, nil
	}
	o, err := ParseObject(raw)
	o = slices.DeleteFunc(o, func(m Member) bool { return string(m.Value) == "null" })
	return o, err
}

// MarshalJSON writes the members in their order.
func (o Object) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			out = append(out, ',')
		}
		name, err := events.Marshal(m.Name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, name...), ':'), m.Value...)
	}
	return append(out, '}'), nil
}
