package jetstream

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"os"

	"github.com/nats-io/nkeys"

	"github.com/weirkeeper/weir/events"
)

// NewKey makes a key that signs events.
func NewKey() (events.Key, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return events.Key{}, fmt.Errorf("make key: %w", err)
	}
	return keyOf(pair)
}

// LoadKey reads a key from a file that holds its nkey seed ("SU…") and nothing else but blanks.
func LoadKey(path string) (events.Key, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return events.Key{}, fmt.Errorf("read key: %w", err)
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(text))
	if err != nil {
		return events.Key{}, fmt.Errorf("read key %s: not an nkey seed: %w", path, err)
	}
	key, err := keyOf(pair)
	if err != nil {
		return events.Key{}, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

// SaveKey writes a key's seed to a new file that only its owner may read. A file that is there is never replaced,
// because whoever has lost a signing key cannot get it back.
func SaveKey(path string, key events.Key) error {
	seed, err := nkeys.EncodeSeed(nkeys.PrefixByteUser, key.Private.Seed())
	if err != nil {
		return fmt.Errorf("save key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("save key: %w", err)
	}
	if _, err := f.Write(append(seed, '\n')); err != nil {
		_ = f.Close() // the write's error says more
		return fmt.Errorf("save key: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("save key: %w", err)
	}
	return nil
}

// ParsePublic reads the text form of a public key ("U…").
func ParsePublic(text string) (ed25519.PublicKey, error) {
	raw, err := nkeys.Decode(nkeys.PrefixByteUser, []byte(text))
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%q is not the public key of a user (U…)", text)
	}
	return raw, nil
}

func keyOf(pair nkeys.KeyPair) (events.Key, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return events.Key{}, err
	}
	if _, err := ParsePublic(public); err != nil {
		return events.Key{}, fmt.Errorf("seed of another kind than user (SU…): %w", err)
	}
	seed, err := pair.Seed()
	if err != nil {
		return events.Key{}, err
	}
	_, raw, err := nkeys.DecodeSeed(seed)
	if err != nil {
		return events.Key{}, err
	}
	return events.Key{Public: public, Private: ed25519.NewKeyFromSeed(raw)}, nil
}
