package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirkeeper/weir/services/agent"
)

const (
	maxErrorBody = 16 << 10
	maxErrorText = 300
)

// Reasons for which a turn fails, beside what a server says.
var (
	errIdle = errors.New("the provider was silent for too long")
	errCut  = errors.New("the stream ended before the answer did")
)

// ProviderError is what a provider says about a failure, in the forms that they use. As an error of [Turn.Take] it fails the
// turn.
type ProviderError struct {
	Message Text `json:"message"`
	Type    Text `json:"type"`
	Code    Text `json:"code"`   // "rate_limit_exceeded", or a status as a number
	Status  Text `json:"status"` // "UNAVAILABLE", where Google's interface shows through
}

// Error is the message.
func (e *ProviderError) Error() string { return string(e.Message) }

// ReadError finds the error in {"error":{…}}, {"error":"text"}, [{"error":{…}}] or {"message":"text"}. A body of
// another kind gives its beginning.
func ReadError(body []byte) *ProviderError {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer struct {
		ProviderError
		Error  json.RawMessage `json:"error"`
		Detail Text            `json:"detail"`
	}
	if json.Unmarshal(body, &outer) != nil {
		return &ProviderError{Message: Text(body)}
	}
	if outer.Message == "" {
		outer.Message = outer.Detail
	}
	if len(outer.Error) == 0 || string(outer.Error) == "null" {
		return &outer.ProviderError
	}
	return ErrorValue(outer.Error)
}

// ErrorValue reads the value of an "error" member.
func ErrorValue(raw json.RawMessage) *ProviderError {
	var e ProviderError
	var message Text
	if json.Unmarshal(raw, &e) == nil && e != (ProviderError{}) {
		return &e
	}
	if json.Unmarshal(raw, &message) == nil && message != "" {
		return &ProviderError{Message: message}
	}
	return &ProviderError{Message: Text(raw)}
}

// status is the HTTP status that an error in a stream names, or zero.
func (e *ProviderError) status() int {
	if n, err := strconv.Atoi(string(e.Code)); err == nil && n >= 400 && n < 600 {
		return n
	}
	return 0
}

// CodeRefused is the code of an error that is about the request, and so does not pass.
const CodeRefused = "invalid_request_error"

// Failures that do not pass by waiting, and those that do though a status says nothing.
var (
	finalCodes = []string{
		"insufficient_quota", "billing_hard_limit_reached", "invalid_api_key", "model_not_found",
		"context_length_exceeded", CodeRefused, "authentication_error", "permission_error",
		"invalid_prompt", "content_policy_violation", "not_found_error", "request_too_large", "billing_error",
	}
	passingCodes = []string{
		"rate_limit_exceeded", "rate_limit_error", "overloaded", "overloaded_error", "server_error", "api_error",
		"timeout", "timeout_error", "service_unavailable", "UNAVAILABLE", "RESOURCE_EXHAUSTED",
	}
)

// retryable tells whether the same request may work later: overload and faults of the server may, what is wrong with
// the request or the account does not. A failure in the middle of a stream that names nothing is the server's.
func (e *ProviderError) retryable(status int) bool {
	kinds := []string{string(e.Code), string(e.Type), string(e.Status)}
	is := func(list []string) bool {
		return slices.ContainsFunc(kinds, func(k string) bool { return slices.Contains(list, k) })
	}
	switch {
	case is(finalCodes):
		return false
	case is(passingCodes), status == 0:
		return true
	default:
		return status == http.StatusRequestTimeout || status == http.StatusTooEarly ||
			status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
	}
}

// refused is the failure that a response with a status other than 200 tells.
func (c *Client) refused(resp *http.Response) *agent.ModelError {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // a part of it is as good
	e := ReadError(body)
	if strings.Contains(resp.Header.Get("Content-Type"), "html") {
		e.Message = "" // a page of some proxy
	}
	out := &agent.ModelError{
		Status:    resp.StatusCode,
		Retryable: e.retryable(resp.StatusCode),
		After:     max(retryAfter(resp.Header, time.Now()), retryDelay(body)),
		Err:       fmt.Errorf("%s: %s", c.host, c.clean(string(e.Message))),
	}
	if resp.StatusCode < 400 {
		out.Err = fmt.Errorf("%s: not an answer; check the base URL", c.host)
		out.Retryable = false
	}
	if resp.Header.Get("X-Should-Retry") == "false" {
		out.Retryable = false
	}
	return out
}

// inStream is the failure that an event of a stream tells.
func (c *Client) inStream(e *ProviderError) *agent.ModelError {
	status := e.status()
	return &agent.ModelError{Status: status, Retryable: e.retryable(status), Err: fmt.Errorf("%s: %s", c.host, c.clean(string(e.Message)))}
}

// broken is the failure of a request or a stream that ended by an error of the connection. Its text names the fault,
// never the URL, which may hold a credential. ctx is the turn's own: when it has ended the caller wanted that.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if out, ok := errors.AsType[*url.Error](err); ok {
		err = out.Err
	}
	retryable := !errors.Is(err, errFrame)
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		retryable = false
	}
	return &agent.ModelError{Retryable: retryable, Err: fmt.Errorf("%s: %w", c.host, err)}
}

// retryAfter is how long a server asks to be left alone, or zero. It may name milliseconds, seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// inBody is how Google says how long to wait: {"error":{"details":[{"@type":"…RetryInfo","retryDelay":"34.5s"}]}}.
var inBody = regexp.MustCompile(`"retryDelay"\s*:\s*"([0-9]{1,6}(?:\.[0-9]{1,9})?s)"`)

// retryDelay is how long an error asks to wait, or zero.
func retryDelay(body []byte) time.Duration {
	m := inBody.FindSubmatch(body)
	if m == nil {
		return 0
	}
	d, _ := time.ParseDuration(string(m[1])) // the pattern is that of a duration
	return d
}

// keyLike are tokens that look like keys. Servers quote a part of a wrong key back.
var keyLike = regexp.MustCompile(`\b(?:sk|pk|rk|xai|gsk|key|Bearer)[-_ ][A-Za-z0-9*._-]{6,}|\bAIza[A-Za-z0-9*._-]{6,}`)

// clean makes what a server said fit for logs and events: no key, one line, bounded.
func (c *Client) clean(s string) string {
	for _, secret := range c.secrets {
		s = strings.ReplaceAll(s, secret, "[secret]")
	}
	s = keyLike.ReplaceAllString(s, "[secret]")
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if s = strings.TrimSpace(s); s == "" {
		return "the provider gave no reason"
	}
	if len(s) > maxErrorText {
		s = strings.ToValidUTF8(s[:maxErrorText], "") + "…"
	}
	return s
}
