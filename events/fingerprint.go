package events

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strconv"
)

// Frozen is what a person approves and an executor runs: one tool, one version, one schema, one string of bytes, in
// one round of one call.
type Frozen struct {
	Namespace         Namespace
	RunID             string
	ToolCallID        string
	Round             int
	ToolID            string
	ToolVersion       string
	InputSchemaDigest string
	Args              []byte
}

// Fingerprint is the digest of what is approved: "sha256:" and the lower-case hex of SHA-256 over weir.fp.v1,
// namespace, run, call, round, tool id, version, input-schema digest and argument bytes, joined by 0x00.
func (f Frozen) Fingerprint() string {
	b := make([]byte, 0, 256+len(f.Args))
	for _, part := range [...]string{
		"weir.fp.v1", string(f.Namespace), f.RunID, f.ToolCallID, strconv.Itoa(f.Round),
		f.ToolID, f.ToolVersion, f.InputSchemaDigest,
	} {
		b = append(b, part...)
		b = append(b, 0)
	}
	sum := sha256.Sum256(append(b, f.Args...))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// SameDigest compares two digests or tokens without telling by its time where they differ.
func SameDigest(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
