package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// Agents lists the registered agents by their ids.
func (c *Client) Agents(ctx context.Context) ([]events.AgentDef, error) {
	if err := c.needsRegistry("looking at agents"); err != nil {
		return nil, err
	}
	list, err := named[events.AgentDef](ctx, c, events.RegistryAgent)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b events.AgentDef) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// Agent finds a registered agent by its id.
func (c *Client) Agent(ctx context.Context, id string) (*events.AgentDef, error) {
	if err := c.needsRegistry("looking at agents"); err != nil {
		return nil, err
	}
	raw, err := c.conn.NamedNow(ctx, events.RegistryAgent, id)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, events.NotFound("agent", "Agent with id %s not found", id)
	}
	if err != nil {
		return nil, busError(err)
	}
	var def events.AgentDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return nil, events.Errorf(events.CodeInvalidDefinition, "the definition of agent %s cannot be read: apply it again", id)
	}
	return &def, nil
}

// Rules are the sets of the operators' rules.
func (c *Client) Rules(ctx context.Context) ([]events.RuleSet, error) {
	if err := c.needsRegistry("looking at rules"); err != nil {
		return nil, err
	}
	return named[events.RuleSet](ctx, c, events.RegistryRule)
}

// Principal is how a principal is known to the registry; nil when it is not. What it says may be a second old.
func (c *Client) Principal(ctx context.Context, id string) (*events.PrincipalDef, error) {
	return namedOne[events.PrincipalDef](ctx, c, events.RegistryPrincipal, id)
}

// Token is the API token with a hash; nil when there is none. What it says may be a second old.
func (c *Client) Token(ctx context.Context, hash string) (*events.TokenDef, error) {
	return namedOne[events.TokenDef](ctx, c, events.RegistryToken, hash)
}

// namedOne reads a definition by its name, as it was a second ago at most; nil when there is none.
func namedOne[T any](ctx context.Context, c *Client, kind, id string) (*T, error) {
	raw, err := c.conn.Named(ctx, kind, id)
	if errors.Is(err, jetstream.ErrNotFound) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, busError(err)
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, events.Errorf(events.CodeInvalidDefinition, "the %s %s cannot be read", kind, id)
	}
	return &v, nil
}
