package toolexecutor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"strconv"
	"strings"
	"time"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/jetstream"
	"github.com/weirkeeper/weir/services/agent"
)

// SourceNATS is the kind of tools that are requests to a NATS service.
const SourceNATS = "nats"

// errorNATS is the name of the error of a request that failed, or that the service has refused.
const errorNATS = "NATSError"

// NATSDef is a tool that is a request to a NATS service of others. It comes from the executor's own configuration, never
// from the bus.
type NATSDef struct {
	// Manifest says what the tool is; zero fields have their defaults.
	Manifest events.Manifest
	// Subject is where requests go. Nothing of a call changes it. Subjects of Weir and of the server are refused; see
	// [events.CheckForeign].
	Subject string
	// Headers are sent with each request.
	Headers map[string]string
	// Secrets are texts that errors must not show, such as values of Headers.
	Secrets []string
	// Timeout of one request. Zero: that of the call.
	Timeout time.Duration
}

// String leaves out headers and secrets.
func (d NATSDef) String() string { return fmt.Sprintf("nats tool %s: %s", d.Manifest.ID, d.Subject) }

// GoString is String.
func (d NATSDef) GoString() string { return d.String() }

// LogValue is String.
func (d NATSDef) LogValue() slog.Value { return slog.StringValue(d.String()) }

// natsTool makes a request for each call.
type natsTool struct {
	outside

	def NATSDef
}

var _ agent.Tool = (*natsTool)(nil)

// NewNATS makes a tool of a NATS service: the arguments are the request, the id of the call is in the headers
// Idempotency-Key and weir-tool-call-id, and the reply is the result: JSON, or text, which becomes a string; at most 1 MiB.
// A reply with the header Nats-Service-Error or Nats-Service-Error-Code, as micro services write them, is the tool's error.
//
// The request goes out once, on the connection of the executor that runs the call, whose user must be allowed to publish on
// the subject. When nobody listens there the error is unavailable, and nothing has happened. Without a reply within Timeout,
// or when the connection is lost, a call with effects is in doubt.
func NewNATS(def NATSDef) (agent.Tool, error) {
	t := &natsTool{outside: newOutside(def.Manifest, SourceNATS, def.Secrets), def: def}
	if err := events.CheckForeign(def.Subject); err != nil {
		return nil, fmt.Errorf("tool %s: subject: %w", def.Manifest.ID, err)
	}
	if err := checkHeaders(def.Headers); err != nil {
		return nil, fmt.Errorf("tool %s: %w", def.Manifest.ID, err)
	}
	for name := range def.Headers {
		if strings.HasPrefix(strings.ToLower(name), "nats-") { // they tell streams, and clients, what to do
			return nil, fmt.Errorf("tool %s: headers: %s is for the server", def.Manifest.ID, name)
		}
	}
	return agent.Checked(t)
}

// requester sends requests to services of others.
type requester interface {
	Request(ctx context.Context, r jetstream.Request) (jetstream.Reply, error)
}

// requesterKey is the key of the requester in the context of a call. Tools are made before there is a connection, and
// hosted by several executors.
type requesterKey struct{}

func withRequester(ctx context.Context, r requester) context.Context {
	return context.WithValue(ctx, requesterKey{}, r)
}

// Run executes one call.
func (t *natsTool) Run(ctx context.Context, call *agent.Call, args json.RawMessage) (json.RawMessage, error) {
	conn, ok := ctx.Value(requesterKey{}).(requester)
	if !ok {
		return nil, t.failure(errorNATS, nil, "a nats tool runs in an executor, which has a connection")
	}
	limited := ctx
	if t.def.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, t.def.Timeout)
		defer cancel()
	}
	reply, err := conn.Request(limited, t.request(call, args))
	if err != nil {
		return nil, t.lost(ctx, limited, err)
	}
	return t.result(reply)
}

func (t *natsTool) request(call *agent.Call, args json.RawMessage) jetstream.Request {
	header := map[string][]string{
		"Content-Type":       {"application/json"},
		headerIdempotencyKey: {call.IdempotencyKey()},
		headerToolCallID:     {call.ToolCallID()},
	}
	for name, value := range t.def.Headers {
		header[name] = []string{value}
	}
	return jetstream.Request{Subject: t.def.Subject, Header: header, Data: args}
}

// lost is the error of a request without a reply.
func (t *natsTool) lost(ctx, limited context.Context, err error) error {
	subject := t.def.Subject
	sent := !errors.Is(err, jetstream.ErrNotSent)
	details := map[string]bool{"sent": sent}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s has not replied: %w", subject, context.Cause(ctx))
	case sent && limited.Err() != nil:
		return agent.InDoubt(t.failure(events.ErrorTimeout, details, subject, " has not replied within ", t.def.Timeout.String()))
	case sent:
		return agent.InDoubt(t.failure(errorNATS, details, subject, ": ", t.quote([]byte(err.Error()), false),
			"; the request was sent, and nobody knows what became of it"))
	case errors.Is(err, jetstream.ErrUnavailable):
		return t.failure(events.ErrorUnavailable, details, "nobody can be reached on ", subject, ": ", t.quote([]byte(err.Error()), false))
	}
	return t.failure(errorNATS, details, t.quote([]byte(err.Error()), false))
}

// result makes a call's outcome of a reply.
func (t *natsTool) result(r jetstream.Reply) (json.RawMessage, error) {
	subject := t.def.Subject
	if r.Refused {
		var details any = map[string]string{"code": r.Code}
		if code, err := strconv.Atoi(r.Code); err == nil {
			details = map[string]int{"code": code}
		}
		text := cmp.Or(r.Reason, string(r.Data), "it did not say why")
		return nil, t.failure(errorNATS, details, subject, " refused: ", t.quote([]byte(text), false))
	}
	if len(r.Data) > maxOutput {
		return nil, t.failure(errorNATS, nil, subject, fmt.Sprintf(" replied with more than %d bytes", maxOutput))
	}
	result, problem := valueOfBody(contentType(r.Header), r.Data)
	if problem != "" {
		return nil, t.failure(errorNATS, nil, subject, " replied with ", problem)
	}
	return result, nil
}

// contentType is the type of a reply, if it names one. Names of headers are spelled as their writer likes.
func contentType(header map[string][]string) string {
	for name, values := range header {
		if strings.EqualFold(name, "content-type") && len(values) > 0 {
			kind, _, _ := mime.ParseMediaType(values[0])
			return kind
		}
	}
	return ""
}
