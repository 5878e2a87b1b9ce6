package gateway

import (
	"net/http"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// caller is who makes a request, and what it may.
type caller struct {
	*client.Client
	def events.PrincipalDef // with the scopes of its token alone
}

// needs refuses who has none of the scopes, which a text names with spaces between.
func (c *caller) needs(scopes string) error {
	if refusal := c.def.Lacks(strings.Fields(scopes)...); refusal != nil {
		return refusal
	}
	return nil
}

// authenticate says who makes a request: the owner of its API token, or, where no login is asked for, the one principal
// that there is. No header but that names anybody.
func (g *Gateway) authenticate(r *http.Request) (*caller, error) {
	if g.cfg.Open != "" {
		def, err := g.self.Principal(r.Context(), g.cfg.Open)
		if err != nil {
			return nil, err
		}
		if def == nil {
			def = &events.PrincipalDef{ID: g.cfg.Open}
		}
		return &caller{g.client(def.ID), *def}, nil
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	hash := events.TokenHash(strings.TrimSpace(text))
	if !strings.EqualFold(scheme, "Bearer") || hash == "" {
		return nil, events.Errorf(events.CodeUnauthenticated, unauthenticated)
	}
	token, err := g.self.Token(r.Context(), hash)
	if err != nil {
		return nil, err
	}
	if token == nil || !token.Valid(time.Now()) {
		return nil, events.Errorf(events.CodeUnauthenticated, unauthenticated)
	}
	def, err := g.self.Principal(r.Context(), token.Principal)
	if err != nil {
		return nil, err
	}
	if def == nil { // it was taken away
		return nil, events.Errorf(events.CodeUnauthenticated, unauthenticated)
	}
	return &caller{g.client(def.ID), token.Limit(*def)}, nil
}
