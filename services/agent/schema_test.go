package agent

import (
	"encoding/json"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirkeeper/weir/events"
)

type tree struct {
	Name     string  `json:"name"`
	Children []*tree `json:"children,omitempty"`
}

type base struct {
	ID string `json:"id"`
}

type wide struct {
	base
	Number   json.Number       `json:"number"`
	Raw      json.RawMessage   `json:"raw"`
	At       time.Time         `json:"at"`
	Span     events.Duration   `json:"span"`
	Big      *big.Int          `json:"big"`
	Addr     netip.Addr        `json:"addr"`
	Link     url.URL           `json:"link"`
	Open     map[string]any    `json:"open"`
	Counts   map[string]int    `json:"counts"`
	List     []string          `json:"list"`
	Next     *base             `json:"next"`
	Opt      *int              `json:"opt,omitempty"`
	Approval events.Approval   `json:"approval"`
	Any      any               `json:"any"`
	Bytes    []byte            `json:"bytes"`
	Text     int64             `json:"text,string"`
	Kind     string            `json:"kind" jsonschema:"enum=a,enum=b"`
	Nested   []map[string]base `json:"nested"`
	Hidden   string            `json:"-"`
}

func TestB1_8SchemaOfGoTypes(t *testing.T) {
	t.Parallel()
	raw, err := inputSchema(reflect.TypeFor[wide]())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"properties":{"id":{"type":"string"},"number":{"type":"number"},"raw":true,"at":{"type":"string","format":"date-time"},` +
		`"span":{"type":"string"},"big":{"type":"integer"},"addr":{"type":"string"},"link":true,"open":{"additionalProperties":true,"type":"object"},` +
		`"counts":{"additionalProperties":{"type":"integer"},"type":"object"},"list":{"items":{"type":"string"},"type":"array"},` +
		`"next":{"properties":{"id":{"type":"string"}},"type":"object","required":["id"]},"opt":{"type":"integer"},"approval":true,"any":true,` +
		`"bytes":{"type":"string","contentEncoding":"base64"},"text":{"type":"string"},"kind":{"type":"string","enum":["a","b"]},` +
		`"nested":{"items":{"additionalProperties":{"properties":{"id":{"type":"string"}},"type":"object","required":["id"]},"type":"object"},"type":"array"}},` +
		`"type":"object","required":["id","number","raw","at","span","big","addr","link","open","counts","list","next","approval","any","bytes","text","kind","nested"]}`
	if string(raw) != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
	if _, err := events.CompileSchema(raw); err != nil {
		t.Error(err)
	}
}

// The schema of an output type takes whatever a value of the type encodes to, nil values included.
func TestOutputSchemaTakesWhatGoEncodes(t *testing.T) {
	t.Parallel()
	n := 1
	full := wide{
		base: base{"i"}, Number: "9007199254740993", Raw: json.RawMessage(`[1]`), At: time.Unix(0, 0).UTC(),
		Big: big.NewInt(7), Addr: netip.MustParseAddr("::1"), Open: map[string]any{"x": nil}, Counts: map[string]int{"a": 1},
		List: []string{"a"}, Next: &base{}, Opt: &n, Any: 1.5, Bytes: []byte{1}, Kind: "a",
		Nested: []map[string]base{nil, {"x": {}}},
	}
	empty := wide{Number: "0", Kind: "b", Raw: json.RawMessage("null")}
	raw, err := outputSchema(reflect.TypeFor[wide]())
	if err != nil {
		t.Fatal(err)
	}
	s, err := events.CompileSchema(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []wide{full, empty} {
		doc, err := events.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ValidateRaw(doc); err != nil {
			t.Errorf("%s: %v", doc, err)
		}
	}
	if err := s.ValidateRaw(json.RawMessage(`{}`)); err == nil {
		t.Error("the schema takes anything")
	}
}

func TestSchemaOfRecursiveTypes(t *testing.T) {
	t.Parallel()
	raw, err := inputSchema(reflect.TypeFor[tree]())
	if err != nil {
		t.Fatal(err)
	}
	s, err := events.CompileSchema(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	if err := s.ValidateRaw(json.RawMessage(`{"name":"a","children":[{"name":"b"}]}`)); err != nil {
		t.Error(err)
	}
	if err := s.ValidateRaw(json.RawMessage(`{"name":"a","children":[{"nam":"b"}]}`)); err == nil {
		t.Errorf("%s takes a child without a name", raw)
	}
	if !strings.HasPrefix(string(raw), `{"$ref":"#/$defs/tree1","$defs":`) || !strings.HasSuffix(string(raw), `,"type":"object"}`) {
		t.Errorf("got %s", raw)
	}
	if raw, err := outputSchema(reflect.TypeFor[tree]()); raw != nil || err != nil {
		t.Errorf("output: %s, %v", raw, err)
	}
}

func TestSchemaOfAnything(t *testing.T) {
	t.Parallel()
	for _, typ := range []reflect.Type{reflect.TypeFor[any](), reflect.TypeFor[json.RawMessage]()} {
		in, errIn := inputSchema(typ)
		out, errOut := outputSchema(typ)
		if in != nil || out != nil || errIn != nil || errOut != nil {
			t.Errorf("%s: %s %v, %s %v", typ, in, errIn, out, errOut)
		}
	}
}

func TestSchemaOfWhatJSONCannotHold(t *testing.T) {
	t.Parallel()
	type bad struct {
		C chan int `json:"c"`
	}
	if _, err := inputSchema(reflect.TypeFor[bad]()); err == nil {
		t.Error("want an error")
	}
	if _, err := events.CompileSchema(SchemaOf[bad]()); err == nil {
		t.Error("the schema of a channel compiles")
	}
}

type pair[T any] struct {
	Of   T        `json:"of"`
	More *pair[T] `json:"more,omitempty"`
}

func TestSchemaNamesOfGenericTypes(t *testing.T) {
	t.Parallel()
	type both struct {
		Texts   *pair[string] `json:"texts"`
		Numbers *pair[int]    `json:"numbers"`
	}
	s, err := events.CompileSchema(SchemaOf[both]())
	if err != nil {
		t.Fatalf("%s: %v", SchemaOf[both](), err)
	}
	if err := s.ValidateRaw(json.RawMessage(`{"texts":{"of":"a","more":{"of":"b"}},"numbers":{"of":1,"more":{"of":2}}}`)); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{`{"texts":{"of":1},"numbers":{"of":1}}`, `{"texts":{"of":"a"},"numbers":{"of":1,"more":{"of":"b"}}}`} {
		if err := s.ValidateRaw(json.RawMessage(wrong)); err == nil {
			t.Errorf("takes %s", wrong)
		}
	}
}
