package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/jetstream"
)

func TestErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		api  natsjs.APIError
		want error
	}{
		{natsjs.APIError{Code: 404, ErrorCode: 10037}, jetstream.ErrNotFound},
		{natsjs.APIError{Code: 404, ErrorCode: 10014}, jetstream.ErrNotFound},
		{natsjs.APIError{Code: 404, ErrorCode: 10059}, jetstream.ErrUnavailable}, // no stream is not "no fact"
		{natsjs.APIError{Code: 400, ErrorCode: 10071, Description: "wrong last sequence: 7"}, jetstream.ErrConflict},
		{natsjs.APIError{Code: 400, ErrorCode: 10164}, jetstream.ErrBusy},
		{natsjs.APIError{Code: 503, ErrorCode: 10163}, jetstream.ErrUnavailable},
		{natsjs.APIError{Code: 503, ErrorCode: 10008}, jetstream.ErrUnavailable},
		{natsjs.APIError{Code: 503, ErrorCode: 10039}, jetstream.ErrUnavailable},
		{natsjs.APIError{Code: 503, ErrorCode: 10023}, jetstream.ErrFull},
		{natsjs.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}, jetstream.ErrFull},
		{natsjs.APIError{Code: 503, ErrorCode: 10077, Description: "store is closed"}, jetstream.ErrUnavailable},
		{natsjs.APIError{Code: 400, ErrorCode: 10054}, jetstream.ErrTooLarge},
	} {
		got := jetstream.MapError(fmt.Errorf("nats: %w", &tc.api))
		if !errors.Is(got, tc.want) {
			t.Errorf("%d: %v, want %v", tc.api.ErrorCode, got, tc.want)
		}
		for _, other := range jetstream.Errors {
			if !errors.Is(other, tc.want) && errors.Is(got, other) {
				t.Errorf("%d: also %v", tc.api.ErrorCode, other)
			}
		}
	}
	unknown := jetstream.MapError(&natsjs.APIError{Code: 400, ErrorCode: 10111, Description: "rollup not permitted"})
	for _, other := range jetstream.Errors {
		if errors.Is(unknown, other) {
			t.Errorf("a refusal for another reason is %v", other)
		}
	}
}

func TestErrorsOfTheClient(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ err, want error }{
		{context.DeadlineExceeded, jetstream.ErrTimeout},
		{nats.ErrTimeout, jetstream.ErrTimeout},
		{nats.ErrNoResponders, jetstream.ErrUnavailable},
		{nats.ErrDisconnected, jetstream.ErrUnavailable},
		{nats.ErrConnectionClosed, jetstream.ErrUnavailable},
		{nats.ErrMaxPayload, jetstream.ErrTooLarge},
		{nats.ErrAuthorization, jetstream.ErrPermission},
		{nats.ErrPermissionViolation, jetstream.ErrPermission},
		{natsjs.ErrMsgNotFound, jetstream.ErrNotFound},
		{context.Canceled, context.Canceled},
		{fmt.Errorf("again: %w", jetstream.ErrFull), jetstream.ErrFull},
	} {
		got := jetstream.MapError(fmt.Errorf("doing something: %w", tc.err))
		if !errors.Is(got, tc.want) || !errors.Is(got, tc.err) {
			t.Errorf("%v became %v, want %v", tc.err, got, tc.want)
		}
	}
	if jetstream.MapError(nil) != nil {
		t.Error("no error became one")
	}
}
