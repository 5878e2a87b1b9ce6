package jetstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/events"
)

// headerKept begins the headers of a buried message on its dead letter, so that a redriven request keeps its signature.
const headerKept = "weir-dead-"

// DeadLetter is something that a service gave up.
type DeadLetter struct {
	events.DeliveryAbandoned
	Letter  uint64 // its sequence in the stream of dead letters
	At      time.Time
	DataRef string              // digest of the payload as a blob
	Header  map[string][]string // of the message
}

// Bury keeps what had to be given up, for people. A delivery that is buried again, because its acknowledgement was
// lost, makes a second letter, which lists leave out.
func (c *Conn) Bury(ctx context.Context, origin *events.Origin, letter events.DeliveryAbandoned) error {
	return c.buryMsg(ctx, origin, letter, nil)
}

func (c *Conn) buryMsg(ctx context.Context, origin *events.Origin, letter events.DeliveryAbandoned, kept nats.Header) error {
	msg, err := c.letterMsg(ctx, origin, letter)
	if err == nil {
		keepHeaders(msg.Header, kept)
		_, err = c.storeMsg(ctx, msg)
	}
	if err != nil {
		return fmt.Errorf("bury %s: %w", letter.Subject, err)
	}
	return nil
}

// letterMsg makes the message of a letter. What was given up goes to a blob: it may hold secrets, and may be as large as a
// message can be.
func (c *Conn) letterMsg(ctx context.Context, origin *events.Origin, letter events.DeliveryAbandoned) (*nats.Msg, error) {
	body, ref := letter.Payload, ""
	if len(body) > 0 {
		var err error
		if ref, err = c.PutBlob(ctx, []byte(body)); err != nil {
			return nil, err
		}
		letter.Payload = ""
	}
	subject := c.ns.Dead(letter.Service, letter.RunID)
	e, err := origin.Request(subject, letter.RunID, letter, events.Event{})
	if err != nil {
		return nil, err
	}
	if ref != "" {
		e.DataRef, e.Payload = ref, nil // encoded again
	}
	return c.eventMsg(subject, e)
}

// maxKept bounds the headers that go with a letter, which must not make it too large to be stored.
const maxKept = 16 << 10

// keepHeaders adds the headers that belong to the event, not to the way it came.
func keepHeaders(header, kept nats.Header) {
	size := 0
	for name, values := range kept {
		for _, v := range values {
			size += len(name) + len(v)
		}
		if ours.MatchString(name) && size <= maxKept {
			header[headerKept+name] = values
		}
	}
}

var ours = regexp.MustCompile(`(?i)^(content-type|weir-[a-z]{1,20}|ce-[a-z0-9]{1,20})$`)

// ListDead reads dead letters after a sequence, oldest first, at most limit of them; 0 means all. A letter of a moment
// ago may not be among them yet.
func (c *Conn) ListDead(ctx context.Context, after uint64, limit int) ([]DeadLetter, error) {
	var all []DeadLetter
	seen := map[string]bool{}
	for limit == 0 || len(all) < limit {
		m, err := c.directGet(ctx, c.ns.Store(events.StreamDead), msgGet{Seq: after + 1, NextBy: c.ns.DeadAll()})
		if errors.Is(err, ErrNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list dead letters: %w", err)
		}
		after = m.seq
		if letter, err := readLetter(m); err == nil && !seen[letter.what()] {
			seen[letter.what()] = true
			all = append(all, letter)
		}
	}
	return all, nil
}

// what tells deliveries from each other.
func (d DeadLetter) what() string {
	return d.Service + " " + d.Consumer + " " + d.Subject + " " + strconv.FormatUint(d.Seq, 10)
}

func readLetter(m directMsg) (DeadLetter, error) {
	e, err := events.DecodeMsg(m.header, m.data)
	if err != nil {
		return DeadLetter{}, err
	}
	d, err := events.Data[events.DeliveryAbandoned](e)
	if err != nil {
		return DeadLetter{}, err
	}
	letter := DeadLetter{DeliveryAbandoned: d, Letter: m.seq, At: m.at, DataRef: e.DataRef, Header: map[string][]string{}}
	for name, values := range m.header {
		if kept, ok := strings.CutPrefix(name, headerKept); ok {
			letter.Header[kept] = values
		}
	}
	return letter, nil
}

// Redrive sends a request that was given up once more, as it came and with its signature. The sender needs the right to
// publish there. Facts are in the log already and cannot be sent again: what is missing after them is found by the
// sweeper.
func (c *Conn) Redrive(ctx context.Context, letter DeadLetter) (seq uint64, err error) {
	if _, err := c.ns.ParseInbox(letter.Subject); err != nil {
		return 0, fmt.Errorf("redrive dead letter %d: only requests can be sent again: %w", letter.Letter, err)
	}
	body, err := c.Payload(ctx, letter)
	if err == nil {
		seq, err = c.storeMsg(ctx, &nats.Msg{Subject: letter.Subject, Header: letter.Header, Data: body})
	}
	if err != nil {
		return 0, fmt.Errorf("redrive dead letter %d: %w", letter.Letter, err)
	}
	return seq, nil
}

// Payload is what was given up, as it came.
func (c *Conn) Payload(ctx context.Context, letter DeadLetter) ([]byte, error) {
	body := []byte(letter.Payload)
	if letter.DataRef != "" {
		var err error
		if body, err = c.Blob(ctx, letter.DataRef); err != nil {
			return nil, err
		}
	}
	if letter.Base64 {
		return base64.StdEncoding.DecodeString(string(body))
	}
	return body, nil
}
