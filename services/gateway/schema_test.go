package gateway_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirkeeper/weir/services/gateway"
)

// The manifest for command lines names every route of the table, with schemas of the very types that are decoded.
func TestAPISchema(t *testing.T) {
	t.Parallel()
	s := open(t, start(t))
	type schema struct {
		Type       string
		Properties map[string]json.RawMessage
		Required   []string
	}
	var m struct {
		Version int
		Routes  []struct {
			Method, Path, ResponseType string
			PathParamSchema            *schema
			BodySchema                 *schema
			ResponseShape              struct{ Kind, ListProperty string }
		}
	}
	s.get("/api/system/api-schema").want(http.StatusOK).into(&m)
	api := 0
	for _, r := range gateway.Routes() {
		if strings.HasPrefix(r.Path, "/api/") {
			api++
		}
	}
	if m.Version != 1 || len(m.Routes) != api {
		t.Errorf("version %d, %d routes; want 1, %d", m.Version, len(m.Routes), api)
	}
	found := 0
	for _, r := range m.Routes {
		if strings.Contains(r.Path, "{") || strings.HasPrefix(r.Path, "/api") {
			t.Errorf("path = %s", r.Path)
		}
		switch r.Method + " " + r.Path {
		case "POST /agents/:agentId/stream":
			if r.ResponseType != "stream" || !slices.Equal(r.BodySchema.Required, []string{"messages"}) || r.PathParamSchema.Properties["agentId"] == nil {
				t.Errorf("stream = %+v", r)
			}
			found++
		case "POST /tools/:toolId/execute":
			if r.ResponseType != "json" || !slices.Equal(r.BodySchema.Required, []string{"data"}) {
				t.Errorf("execute = %+v", r)
			}
			found++
		case "GET /agents":
			if r.ResponseShape.Kind != "record" {
				t.Errorf("agents = %+v", r)
			}
			found++
		case "GET /asks":
			if r.ResponseShape.Kind != "object-property" || r.ResponseShape.ListProperty != "items" {
				t.Errorf("asks = %+v", r)
			}
			found++
		}
	}
	if found != 4 {
		t.Errorf("%d of 4 routes were found", found)
	}
	s.get("/api/system/packages").want(http.StatusOK, `"packages":[]`)
	s.get("/api/workflows").want(http.StatusOK, `{}`)
}
