package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

const (
	// blobPart is the size of a part: four of them cost less than one message of the largest size.
	blobPart = 256 << 10
	// maxBlob bounds what one value may take of a reader's memory.
	maxBlob = 64 << 20
)

// PutBlob stores a value by its content and returns its digest ("sha256:…"). Each part is a chain of one fact, so
// storing the same value again, or at the same time elsewhere, changes nothing.
func (c *Conn) PutBlob(ctx context.Context, body []byte) (digest string, err error) {
	digest = events.Digest(body)
	if len(body) > maxBlob {
		return "", fmt.Errorf("put blob of %d bytes: %w: the limit is %d", len(body), ErrTooLarge, maxBlob)
	}
	subject, err := c.blobSubject(digest)
	if err != nil {
		return "", err
	}
	for i, rest := 0, body; i == 0 || len(rest) > 0; i++ {
		part := rest[:min(len(rest), blobPart)]
		rest = rest[len(part):]
		msg := nats.NewMsg(subject + strconv.Itoa(i))
		msg.Data = part
		msg.Header.Set(headerExpected, "0")
		if _, err := c.storeMsg(ctx, msg); err != nil && !errors.Is(err, ErrConflict) {
			return "", fmt.Errorf("put blob %s: %w", digest, err)
		}
	}
	return digest, nil
}

// Blob reads a value and proves that it is the one that the digest names; [ErrNotFound] when it is not there, or not
// whole.
func (c *Conn) Blob(ctx context.Context, digest string) ([]byte, error) {
	subject, err := c.blobSubject(digest)
	if err != nil {
		return nil, err
	}
	var body []byte
	for i := 0; len(body) <= maxBlob; i++ {
		m, err := c.directGet(ctx, c.blobStream(), msgGet{LastBy: subject + strconv.Itoa(i)})
		if errors.Is(err, ErrNotFound) && i > 0 {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read blob %s: %w", digest, err)
		}
		body = append(body, m.data...)
		if len(m.data) < blobPart {
			break
		}
	}
	if events.Digest(body) != digest {
		return nil, fmt.Errorf("read blob %s: %w: what is stored is not whole, or something else", digest, ErrNotFound)
	}
	return body, nil
}

// WholeResult puts back a result that is a blob. One that is not there is [ErrUnavailable]: it was stored before what refers
// to it, so it shows later.
func (c *Conn) WholeResult(ctx context.Context, f *events.CallFinished) error {
	if f.DataRef == "" {
		return nil
	}
	body, err := c.referred(ctx, f.DataRef)
	if err != nil {
		return err
	}
	f.Result, f.DataRef = body, ""
	return nil
}

// Whole are messages with the results in them that are blobs. Those that are given stay as they are.
func (c *Conn) Whole(ctx context.Context, messages []events.Message) ([]events.Message, error) {
	messages, err := c.recalled(ctx, messages)
	if err != nil {
		return nil, err
	}
	whole := messages
	for i, m := range messages {
		for k, p := range m.Parts {
			if p.Type != events.PartToolResult || p.Output != nil || p.DataRef == "" {
				continue
			}
			body, err := c.referred(ctx, p.DataRef)
			if err != nil {
				return nil, err
			}
			if &whole[0] == &messages[0] {
				whole = slices.Clone(messages)
			}
			if &whole[i].Parts[0] == &messages[i].Parts[0] {
				whole[i].Parts = slices.Clone(m.Parts)
			}
			p.Output, p.DataRef = &events.ModelOutput{Type: events.OutputJSON, Value: body}, ""
			whole[i].Parts[k] = p
		}
	}
	return whole, nil
}

// recalled are messages with those in them that a run recalls of its thread, when these are a blob. They come first.
func (c *Conn) recalled(ctx context.Context, messages []events.Message) ([]events.Message, error) {
	if len(messages) == 0 || len(messages[0].Parts) != 1 || messages[0].Parts[0].Type != events.PartRecalled {
		return messages, nil
	}
	said, err := c.referredMessages(ctx, messages[0].Parts[0].DataRef)
	return slices.Concat(said, messages[1:]), err
}

// referredMessages are messages that are a blob.
func (c *Conn) referredMessages(ctx context.Context, ref string) ([]events.Message, error) {
	body, err := c.referred(ctx, ref)
	if err != nil {
		return nil, err
	}
	var said []events.Message
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, fmt.Errorf("%w: blob %s holds no messages: %w", ErrTampered, ref, err)
	}
	return said, nil
}

// putMessages stores messages as a blob.
func (c *Conn) putMessages(ctx context.Context, said []events.Message) (ref string, size int, err error) {
	raw, err := events.Marshal(said)
	if err != nil {
		return "", 0, err
	}
	ref, err = c.PutBlob(ctx, raw)
	return ref, len(raw), err
}

// referred is a blob that a fact refers to.
func (c *Conn) referred(ctx context.Context, ref string) ([]byte, error) {
	body, err := c.Blob(ctx, ref)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: blob %s is not there", ErrUnavailable, ref)
	}
	return body, err
}

func (c *Conn) blobStream() string { return "OBJ_" + c.ns.Store(events.BucketBlobs) }

// blobSubject is where the parts of a value stand, up to the number.
func (c *Conn) blobSubject(digest string) (string, error) {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%w: %q is not a digest (sha256:<hex>)", events.ErrBadID, digest)
	}
	return "$O." + c.ns.Store(events.BucketBlobs) + ".C." + hex + ".", nil
}
