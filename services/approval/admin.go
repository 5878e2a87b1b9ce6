package approval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
)

// What people administer goes through the gate, because it already may see what that takes, and nobody else has to. The
// subject proves who asks: only its principal may publish there, and a message that the server was made to send there has
// no reply. That is enough for what is only looked at; what changes something needs the proof that decisions need.

// adminVerb is something that can be asked for.
type adminVerb struct {
	scope string
	// serve makes the answer. The body is one JSON value, or empty.
	serve func(s *Service, ctx context.Context, body []byte) (any, error)
}

// adminVerbs is the table of them.
var adminVerbs = map[string]adminVerb{
	events.AdminLag:  {events.MayAdmin, (*Service).lag},
	events.AdminDead: {events.MayAdmin, (*Service).dead},
}

// serveAdmin answers who has the scope. In weir dev everybody has it whose scopes nobody has written down.
func (s *Service) serveAdmin(ctx context.Context, r jetstream.Request) (any, error) {
	req, err := s.parse(r)
	if err != nil {
		return nil, err
	}
	verb, ok := adminVerbs[req.Admin]
	if !ok {
		return nil, events.Errorf(events.CodeInvalidRequest, "%q cannot be asked for; use %s", req.Admin,
			strings.Join(slices.Sorted(maps.Keys(adminVerbs)), ", "))
	}
	def, err := s.principalOf(ctx, req.Principal)
	if err != nil {
		return nil, err
	}
	if def.Scopes == nil && s.cfg.Dev {
		return verb.serve(s, ctx, r.Data)
	}
	if refusal := def.Lacks(verb.scope); refusal != nil {
		return nil, refusal
	}
	return verb.serve(s, ctx, r.Data)
}

// readBody reads what a request asks for more exactly. An unknown field is an error, so that nobody takes a slip for a
// choice.
func readBody(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	err := events.CheckJSON(body)
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.DisallowUnknownFields()
		err = dec.Decode(into)
	}
	if err != nil {
		return events.Errorf(events.CodeInvalidRequest, "%v", err)
	}
	return nil
}

// lag says what the services have not settled, by consumer: messages under way, waiting for redelivery or not delivered
// yet.
func (s *Service) lag(ctx context.Context, body []byte) (any, error) {
	if err := readBody(body, &struct{}{}); err != nil {
		return nil, err
	}
	report := events.LagReport{Consumers: []events.ConsumerLag{}}
	for _, store := range jetstream.Topology(s.ns, jetstream.Settings{Pools: s.cfg.Pools}).Stores {
		for _, c := range store.Consumers {
			b, err := s.conn.Backlog(ctx, store.Name, c.Durable)
			missing := errors.Is(err, jetstream.ErrNotFound)
			if err != nil && !missing {
				return nil, err
			}
			if !missing {
				report.At = b.Now.UTC()
			}
			report.Consumers = append(report.Consumers, events.ConsumerLag{
				Stream: store.Name, Consumer: c.Durable, Outstanding: b.Outstanding, Floor: b.Floor, Missing: missing,
			})
		}
	}
	return report, nil
}

const (
	defaultLetters = 100
	maxLetters     = 1000
	// maxReply bounds a part of the letters, which must fit into a message.
	maxReply = 256 << 10
)

// dead lists what was given up, oldest first, without the payloads: they are raw. A part may be shorter than the limit; the
// last one is empty.
func (s *Service) dead(ctx context.Context, body []byte) (any, error) {
	q := events.DeadQuery{Limit: defaultLetters}
	if err := readBody(body, &q); err != nil {
		return nil, err
	}
	if q.Limit < 1 || q.Limit > maxLetters {
		return nil, events.Errorf(events.CodeInvalidRequest, "limit is %d; use 1 to %d", q.Limit, maxLetters)
	}
	letters, err := s.conn.ListDead(ctx, q.After, q.Limit)
	if err != nil {
		return nil, err
	}
	report := events.DeadReport{Letters: []events.DeadBrief{}, Next: q.After}
	size := 0
	for _, l := range letters {
		brief := events.DeadBrief{
			Letter: l.Letter, At: l.At.UTC().Truncate(time.Millisecond), Service: l.Service, Consumer: l.Consumer, Subject: l.Subject,
			Seq: l.Seq, RunID: l.RunID, Attempts: l.Attempts, Reason: l.Reason,
		}
		body, err := events.Marshal(brief)
		if err != nil {
			return nil, err
		}
		if size += len(body) + 1; size > maxReply && len(report.Letters) > 0 {
			break
		}
		report.Next = l.Letter
		report.Letters = append(report.Letters, brief)
	}
	return report, nil
}
