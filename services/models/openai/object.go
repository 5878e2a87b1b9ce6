package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/weirkeeper/weir/events"
)

// object is a JSON object that keeps the order of its members: models write arguments in the order in which a schema
// lists the properties, so the order carries meaning, and equal schemas must stay equal bytes.
type object []member

type member struct {
	name  string
	value json.RawMessage
}

// parseObject reads an object; of equal names the last one counts.
func parseObject(raw json.RawMessage) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("not an object: %.40s", raw)
	}
	o := object{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		o.set(name.(string), value) // a key of an object is a string, or Token had failed
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return o, nil
}

func (o object) get(name string) (json.RawMessage, bool) {
	i := o.index(name)
	if i < 0 {
		return nil, false
	}
	return o[i].value, true
}

func (o object) has(name string) bool { return o.index(name) >= 0 }

func (o object) index(name string) int {
	return slices.IndexFunc(o, func(m member) bool { return m.name == name })
}

// set replaces a member in its place, or adds it at the end.
func (o *object) set(name string, value json.RawMessage) {
	if i := o.index(name); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{name, value})
}

func (o *object) remove(names ...string) {
	*o = slices.DeleteFunc(*o, func(m member) bool { return slices.Contains(names, m.name) })
}

func (o object) names() []string {
	names := make([]string, len(o))
	for i, m := range o {
		names[i] = m.name
	}
	return names
}

// MarshalJSON writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			out = append(out, ',')
		}
		name, err := events.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, name...), ':'), m.value...)
	}
	return append(out, '}'), nil
}
