package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/weirkeeper/weir/events"
	"github.com/weirkeeper/weir/services/client"
)

// retryAfter is when a request that was not accepted may be made again, in seconds.
const retryAfter = 1

// texts are what callers are told when an error comes with a code and a text from inside, which stays there. A code without
// a row is a defect: then it is internal.
var texts = map[events.Code]string{
	events.CodeInvalidRequest: "Invalid request", events.CodeUnauthenticated: unauthenticated, events.CodeForbidden: "Access denied",
	events.CodeNotFound: "Not found", events.CodeTooLarge: "the request is too large", events.CodeRateLimited: "too many requests: try again later",
	events.CodeUnknownOutcome: "it is not known whether the request was stored: look before you make it again",
	events.CodeUnavailable:    "the bus, or a service that this needs, does not answer: nothing was accepted",
}

const unauthenticated = "Invalid or expired token"

// statusOf is the one place where an error becomes a status and a body. Errors that somebody has made for callers are
// shown; of all others callers learn the code at most, and the text is logged.
func statusOf(err error) (status int, body any, inside bool) {
	if s, ok := errors.AsType[*client.SuspendedError](err); ok {
		return http.StatusAccepted, s, false
	}
	if f, ok := errors.AsType[*toolFailedError](err); ok {
		return f.status(), f, false
	}
	if f, ok := errors.AsType[*runFailedError](err); ok {
		return f.Status, f.Body, false
	}
	e, ok := err.(*events.Error) //nolint:errorlint // one that is wrapped has a text from inside
	if ok && e.Code.Known() {
		shown := *e
		if shown.Ask != nil {
			ask := shown.Ask.Shown()
			shown.Ask = &ask
		}
		return e.Code.Status(), &shown, false
	}
	coded, ok := errors.AsType[*events.Error](err)
	if ok && texts[coded.Code] != "" {
		return coded.Code.Status(), &events.Error{Code: coded.Code, Message: texts[coded.Code], RunID: coded.RunID, What: coded.What}, true
	}
	return http.StatusInternalServerError, events.Errorf(events.CodeInternal, "internal error"), true
}

// writeError answers with an error. Nobody is told when the asker has gone.
func (g *Gateway) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	status, body, inside := statusOf(err)
	if inside {
		g.log.WarnContext(r.Context(), "a request failed", "method", r.Method, "path", r.URL.Path, "status", status, "error", err)
	}
	raw, err := events.Marshal(body)
	if err != nil {
		status, raw = http.StatusInternalServerError, []byte(`{"code":"internal","error":"internal error"}`)
	}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	default:
	}
	writeJSON(w, status, raw)
}

// toolFailedError is the error of a tool that was executed directly, with the effect that says whether the request may be made
// again without harm.
type toolFailedError struct {
	*client.ToolFailedError
	effect events.Effect
}

// status is one of those that clients repeat only when the tool has no effects.
func (f *toolFailedError) status() int {
	if f.effect == events.ReadOnly && f.Outcome == events.OutcomeError {
		return http.StatusInternalServerError
	}
	return http.StatusUnprocessableEntity
}
