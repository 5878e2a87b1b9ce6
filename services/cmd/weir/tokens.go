package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

func newTokensCommand(a *app) *cobra.Command {
	return parent(&cobra.Command{
		Use: "tokens", Aliases: []string{"token"}, Short: "Make, see and take back API tokens for the gateway",
		Long: `Make, see and take back API tokens. Who sends one to the gateway (Authorization: Bearer …) is the principal that it was made
for, within the scopes of both. The registry keeps the hash of a token and never its text, so a lost one is made anew.

The principal must be in weir.yaml with "auth: gateway". These commands need the right to write the registry, as weir apply.`,
		Example: `  weir tokens new alice --scope read,decide --for 720h --note "the console on her laptop"
  weir tokens ls
  weir tokens rm 3f9a0c17e2b4`,
	}, newNewTokenCommand(a), newListTokensCommand(a), newRemoveTokenCommand(a))
}

// tokenOptions are the flags of weir tokens new.
type tokenOptions struct {
	scopes []string
	lasts  time.Duration
	note   string
}

//nolint:gosec // it names fields, and holds no credential
const tokenJSON = `{"id", "principal", "scopes" (null: all of the principal's), "note", "createdAt", "expiresAt" (absent: never)}`

func newNewTokenCommand(a *app) *cobra.Command {
	var o tokenOptions
	cmd := &cobra.Command{
		Use: "new PRINCIPAL", Short: "Make an API token", Args: cobra.ExactArgs(1),
		Long: `Make an API token for a principal. Its text is printed once and kept nowhere.

JSON: {"token", "id", "principal", "scopes", "note", "createdAt", "expiresAt"}.`,
		Example: `  weir tokens new alice --scope read,decide --for 720h
  curl -H "Authorization: Bearer $(weir tokens new ci --scope start,read)" http://127.0.0.1:4111/api/agents`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.newToken(cmd.Context(), args[0], o) },
	}
	cmd.Flags().StringSliceVar(&o.scopes, "scope", nil, "at most these scopes of the principal's: "+
		strings.Join(events.PrincipalScopes(), ", ")+" (default: all that it has)")
	cmd.Flags().DurationVar(&o.lasts, "for", 0, "how long it counts (default: until it is taken back)")
	cmd.Flags().StringVar(&o.note, "note", "", "what it is for")
	return cmd
}

func (a *app) newToken(ctx context.Context, principal string, o tokenOptions) error {
	for _, s := range o.scopes {
		if !slices.Contains(events.PrincipalScopes(), s) {
			return usagef("there is no scope %q: use %s", s, strings.Join(events.PrincipalScopes(), ", "))
		}
	}
	if o.lasts < 0 {
		return usagef("--for: want a span from now on, such as 720h")
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if err := needsGatewayPrincipal(ctx, conn, principal); err != nil {
		return err
	}
	text, now := events.NewToken(), time.Now().UTC().Truncate(time.Second)
	hash := events.TokenHash(text)
	def := events.TokenDef{ID: tokenID(hash), Principal: principal, Scopes: o.scopes, Note: o.note, CreatedAt: now}
	if o.lasts > 0 {
		def.ExpiresAt = now.Add(o.lasts)
	}
	raw, err := events.Marshal(def)
	if err == nil {
		err = conn.PutNamed(ctx, events.RegistryToken, hash, raw)
	}
	if err != nil {
		return fmt.Errorf("store the token: %w", err)
	}
	a.note("token %s of %s: it is shown this once", def.ID, principal)
	return a.print(struct {
		Token string `json:"token"`
		events.TokenDef
	}{text, def}, func(w io.Writer) { _, _ = io.WriteString(w, text+"\n") })
}

// tokenID is by which people name a token: enough of its hash.
func tokenID(hash string) string { return hash[:12] }

// needsGatewayPrincipal refuses a principal whose decisions would not count through a gateway.
func needsGatewayPrincipal(ctx context.Context, conn *jetstream.Conn, id string) error {
	raw, err := conn.NamedNow(ctx, events.RegistryPrincipal, id)
	if errors.Is(err, jetstream.ErrNotFound) {
		return events.NotFound("principal", "principal %s is not known: name it in weir.yaml with auth: gateway, and apply that", id)
	}
	if err != nil {
		return err
	}
	var def events.PrincipalDef
	if err := json.Unmarshal(raw, &def); err != nil {
		return fmt.Errorf("principal %s: %w", id, err)
	}
	if def.Auth != events.AuthGateway {
		return events.Errorf(events.CodeInvalidRequest, "principal %s proves itself by %q, so what a gateway decides in its name would not "+
			"count: tokens are for principals with auth: gateway", id, def.Auth)
	}
	return nil
}

func newListTokensCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the API tokens", Args: cobra.NoArgs,
		Long: `List the API tokens, by principal. Expired ones are listed until they are taken back.

Columns: id, principal, scopes, until when, what it is for.

JSON: {"tokens": [` + tokenJSON + `]}.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listTokens(cmd.Context()) },
	}
}

// tokens are those in the registry, by their hashes.
func tokens(ctx context.Context, conn *jetstream.Conn) (map[string]events.TokenDef, error) {
	raw, err := conn.ListNamed(ctx, events.RegistryToken)
	if err != nil {
		return nil, err
	}
	all := map[string]events.TokenDef{}
	for hash, body := range raw {
		def := events.TokenDef{ID: hash}
		if err := json.Unmarshal(body, &def); err != nil {
			def = events.TokenDef{ID: hash, Note: "cannot be read"} // so it can be taken back
		}
		all[hash] = def
	}
	return all, nil
}

func (a *app) listTokens(ctx context.Context) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	all, err := tokens(ctx, conn)
	if err != nil {
		return err
	}
	list := []events.TokenDef{}
	for _, def := range all {
		list = append(list, def)
	}
	slices.SortFunc(list, func(a, b events.TokenDef) int {
		return cmp.Or(cmp.Compare(a.Principal, b.Principal), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	if a.json {
		return writeJSON(a.out, struct {
			Tokens []events.TokenDef `json:"tokens"`
		}{list})
	}
	var rows [][]string
	for _, def := range list {
		scopes, until := "all", "for good"
		if def.Scopes != nil {
			scopes = orNone(def.Scopes)
		}
		if !def.ExpiresAt.IsZero() {
			until = def.ExpiresAt.Format(time.RFC3339)
		}
		rows = append(rows, []string{def.ID, def.Principal, scopes, until, def.Note})
	}
	a.table([]string{"ID", "PRINCIPAL", "SCOPES", "UNTIL", "NOTE"}, rows)
	return nil
}

func newRemoveTokenCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Aliases: []string{"revoke"}, Short: "Take API tokens back", Args: cobra.MinimumNArgs(1),
		Long: `Take API tokens back, by the ids that weir tokens ls shows. Gateways refuse them within a second, and cut off what is being
streamed to them within five.

JSON: {"removed": ["…"]}.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.removeTokens(cmd.Context(), args) },
	}
}

func (a *app) removeTokens(ctx context.Context, ids []string) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	all, err := tokens(ctx, conn)
	if err != nil {
		return err
	}
	hashes := map[string]string{}
	for hash, def := range all {
		hashes[def.ID] = hash
	}
	for _, id := range ids {
		if hashes[id] == "" {
			return events.NotFound("token", "there is no token %s: weir tokens ls shows those that there are", id)
		}
	}
	for _, id := range ids {
		if err := conn.DeleteNamed(ctx, events.RegistryToken, hashes[id]); err != nil {
			return err
		}
	}
	return a.print(struct {
		Removed []string `json:"removed"`
	}{ids}, func(io.Writer) { a.note("%d taken back", len(ids)) })
}
