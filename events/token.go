package events

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// RegistryToken is the kind of API tokens in the registry, by the hash of their text: token.<hash>.
const RegistryToken = "token"

// tokenPrefix begins the text of every API token, so that scanners for leaked secrets find it.
const tokenPrefix = "weir_"

// TokenDef is what is kept of an API token: not its text, which only its owner has (registry, token.<hash>).
type TokenDef struct {
	ID        string    `json:"id"`             // by which people name it
	Principal string    `json:"principal"`      // in whose name requests with it are made
	Scopes    []string  `json:"scopes"`         // at most these of the principal's; null: all of them
	Note      string    `json:"note,omitempty"` // what it is for
	CreatedAt time.Time `json:"createdAt"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"` // zero: never
}

// NewToken makes the text of an API token: 256 random bits.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// TokenHash is under what an API token is kept. The text has as many random bits as the hash, so it needs no salt, and who
// reads the registry cannot find it. It is empty for what is no token.
func TokenHash(text string) string {
	if !strings.HasPrefix(text, tokenPrefix) {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Valid reports whether the token counts at a time.
func (t TokenDef) Valid(at time.Time) bool {
	return t.Principal != "" && (t.ExpiresAt.IsZero() || at.Before(t.ExpiresAt))
}

// Limit is the principal with the scopes of the token alone: none that it has not itself.
func (t TokenDef) Limit(p PrincipalDef) PrincipalDef {
	scopes := []string{}
	for _, s := range PrincipalScopes() {
		if p.May(s) && (t.Scopes == nil || slices.Contains(t.Scopes, s)) {
			scopes = append(scopes, s)
		}
	}
	p.Scopes = scopes
	return p
}
