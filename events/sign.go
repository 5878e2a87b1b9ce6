package events

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
)

// ErrBadSignature says that a signature is missing, malformed, or not that of the key over these bytes.
var ErrBadSignature = errors.New("signature does not verify")

// signedBytes joins what a signature covers: domain, stored subject and payload, by 0x00.
func signedBytes(domain, subject string, payload []byte) []byte {
	b := make([]byte, 0, len(domain)+len(subject)+len(payload)+2)
	b = append(b, domain...)
	b = append(b, 0)
	b = append(b, subject...)
	b = append(b, 0)
	return append(b, payload...)
}

// Sign signs a payload for the subject under which it will be stored (never the ingest name).
func Sign(key Key, domain, subject string, payload []byte) Signature {
	sig := ed25519.Sign(key.Private, signedBytes(domain, subject, payload))
	return Signature{Key: key.Public, Sig: base64.RawURLEncoding.EncodeToString(sig)}
}

// Keys are the public keys that a service accepts, by their nkey text form.
type Keys map[string]ed25519.PublicKey

// Verify checks that one of the keys signed exactly this payload for exactly this subject in this domain.
func (k Keys) Verify(domain, subject string, payload []byte, s Signature) error {
	pub, ok := k[s.Key]
	if !ok {
		return ErrBadSignature
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(s.Sig)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return ErrBadSignature
	}
	if !ed25519.Verify(pub, signedBytes(domain, subject, payload), sig) {
		return ErrBadSignature
	}
	return nil
}

// VerifyFact checks the signature of a stored fact of a type that is signed.
func (k Keys) VerifyFact(e Event) error {
	row, ok := RowOf(e.Type)
	if !ok || row.Domain == "" {
		return ErrBadSignature
	}
	return k.Verify(row.Domain, e.Place.Subject(), e.Payload, e.Signature)
}
