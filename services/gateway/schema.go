package gateway

import (
	"cmp"
	"encoding"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"time"
)

// manifestView tells command lines which routes there are, in the form that Mastra's reads.
type manifestView struct {
	Version int         `json:"version"`
	Routes  []routeView `json:"routes"`
}

// routeView is one route; paths are without the prefix /api.
type routeView struct {
	Method        string         `json:"method"`
	Path          string         `json:"path"`
	Summary       string         `json:"summary"`
	ResponseType  string         `json:"responseType"` // json or stream
	PathParams    map[string]any `json:"pathParamSchema,omitempty"`
	QueryParams   map[string]any `json:"queryParamSchema,omitempty"`
	Body          map[string]any `json:"bodySchema,omitempty"`
	Response      map[string]any `json:"responseSchema,omitempty"`
	ResponseShape shapeView      `json:"responseShape"`
}

// shapeView says where in an answer a list is.
type shapeView struct {
	Kind         string `json:"kind"` // record, object-property, single or unknown
	ListProperty string `json:"listProperty,omitempty"`
}

const apiPrefix = "/api"

// manifest is made of the table of routes.
func manifest(*request) (any, error) {
	view := manifestView{Version: 1, Routes: []routeView{}}
	for _, r := range Routes() {
		path, ok := strings.CutPrefix(r.Path, apiPrefix)
		if !ok {
			continue
		}
		one := routeView{
			Method: r.Method, Path: pathParam.ReplaceAllString(path, ":$1"), Summary: r.About, ResponseType: "json",
			PathParams: pathSchema(path), QueryParams: schemaOf(r.Query), Body: schemaOf(r.Body), Response: schemaOf(r.Answer),
			ResponseShape: r.shape(),
		}
		if r.stream != nil {
			one.ResponseType = "stream"
		}
		view.Routes = append(view.Routes, one)
	}
	return view, nil
}

func (r Route) shape() shapeView {
	switch {
	case r.Answer == nil:
		return shapeView{Kind: "unknown"}
	case r.Shape == "record":
		return shapeView{Kind: r.Shape}
	case r.Shape != "":
		return shapeView{Kind: "object-property", ListProperty: r.Shape}
	}
	return shapeView{Kind: "single"}
}

var pathParam = regexp.MustCompile(`\{([A-Za-z]+)\}`)

// pathSchema describes the parameters in a path; nil when there are none.
func pathSchema(path string) map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, m := range pathParam.FindAllStringSubmatch(path, -1) {
		properties[m[1]] = map[string]any{"type": "string"}
		required = append(required, m[1])
	}
	if len(required) == 0 {
		return nil
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

// schemaOf describes the JSON of a value's type; nil for none.
func schemaOf(v any) map[string]any {
	if v == nil {
		return nil
	}
	return typeSchema(reflect.TypeOf(v), map[reflect.Type]bool{})
}

var (
	timeType      = reflect.TypeFor[time.Time]()
	rawType       = reflect.TypeFor[json.RawMessage]()
	marshalerType = reflect.TypeFor[json.Marshaler]()
	textType      = reflect.TypeFor[encoding.TextMarshaler]()
)

// typeSchema describes a type. One that writes itself, or that holds itself, may be anything.
func typeSchema(t reflect.Type, open map[reflect.Type]bool) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == timeType:
		return map[string]any{"type": "string", "format": "date-time"}
	case t == rawType, open[t], writesItself(t, marshalerType):
		return map[string]any{}
	case writesItself(t, textType):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Struct:
		open[t] = true
		defer delete(open, t)
		properties, required := map[string]any{}, []string{}
		addFields(t, properties, &required, open)
		s := map[string]any{"type": "object", "properties": properties}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": typeSchema(t.Elem(), open)}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": typeSchema(t.Elem(), open)}
	case reflect.Interface:
		return map[string]any{}
	default:
		return map[string]any{"type": jsonName(t.Kind())}
	}
}

func writesItself(t, how reflect.Type) bool {
	return t.Implements(how) || reflect.PointerTo(t).Implements(how)
}

// addFields describes the fields of a struct, and of those that are embedded in it.
func addFields(t reflect.Type, properties map[string]any, required *[]string, open map[reflect.Type]bool) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
			continue
		case f.Anonymous && name == "":
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				addFields(inner, properties, required, open)
			}
			continue
		case !f.IsExported():
			continue
		}
		name = cmp.Or(name, f.Name)
		properties[name] = typeSchema(f.Type, open)
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			*required = append(*required, name)
		}
	}
}

// jsonName is what JSON calls a kind of value.
func jsonName(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Map, reflect.Struct:
		return "object"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return "value"
	}
}

// packages tells clients what this server has: of the parts that they ask for, nothing.
func packages(*request) (any, error) {
	return map[string]any{
		"packages": []struct{}{}, "isDev": false, "cmsEnabled": false, "liveKitConnectionRouteEnabled": false,
		"observabilityEnabled": false,
	}, nil
}

// noWorkflows lists none: a run of a workflow is started as one of an agent.
func noWorkflows(*request) (any, error) { return struct{}{}, nil }

func manifestRoutes(scope string) []Route {
	return []Route{
		{Method: http.MethodGet, Path: "/api/system/api-schema", Scope: scope, About: "the routes that there are", Mastra: true, handle: manifest},
		{Method: http.MethodGet, Path: "/api/system/packages", Scope: scope, About: "what this server has", Mastra: true, handle: packages},
		{Method: http.MethodGet, Path: "/api/workflows", Scope: scope, About: "none: workflows are started as agents", Mastra: true, handle: noWorkflows},
	}
}
