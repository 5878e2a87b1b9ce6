package adapter

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
)

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// callIDs makes the ids of calls that a provider sees. Weir's ids hold a "=" and may be long, which most patterns
// refuse (the strictest known one is 40 characters of [A-Za-z0-9_-]); the provider's own ids may be missing or equal.
// So the id sent is a digest of Weir's: the same in every request, on every process and for every provider, and
// different for different calls.
type callIDs struct{ used map[string]bool }

// next is the id for the next call of the transcript. An id that is empty or that an earlier call of this transcript
// has already, which only foreign history can have, is told apart by its place.
func (c *callIDs) next(id string) string {
	if c.used == nil {
		c.used = map[string]bool{}
	}
	name := id
	for n := len(c.used); name == "" || c.used[name]; n++ {
		name = id + "\x00" + strconv.Itoa(n)
	}
	c.used[name] = true
	sum := sha256.Sum256([]byte(name))
	return "call_" + idEncoding.EncodeToString(sum[:20])
}
