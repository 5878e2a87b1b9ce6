package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Errors that callers tell apart. What the client and the server say is mapped to them in this file alone; the text
// stays inside.
var (
	ErrNotFound    = errors.New("not found")
	ErrConflict    = errors.New("conflict")    // somebody else was faster
	ErrTooLarge    = errors.New("too large")   // refused before it was sent
	ErrFull        = errors.New("store full")  // a limit of the stream or the server
	ErrPermission  = errors.New("forbidden")   // the user's permissions
	ErrUnavailable = errors.New("unavailable") // no connection, no leader, no such stream
	ErrTimeout     = errors.New("timed out")   // unknown whether it happened
	ErrTampered    = errors.New("tampering")   // a stored fact that no service of Weir wrote there
)

// errBusy says that another append of the same chain is in flight (three replicas only): try again.
var errBusy = errors.New("another append of the chain is in flight")

// Codes of the server that the client has no names for.
const (
	codeNoPeers      natsjs.ErrorCode = 10005
	codeNotAssigned  natsjs.ErrorCode = 10007
	codeNoMetaLeader natsjs.ErrorCode = 10008
	codeNotLeader    natsjs.ErrorCode = 10009
	codeOffline      natsjs.ErrorCode = 10118

	codeAccountLimit natsjs.ErrorCode = 10002
	codeServerLimit  natsjs.ErrorCode = 10023
	codeStorageLimit natsjs.ErrorCode = 10047
	codeStoreFailed  natsjs.ErrorCode = 10077 // the stream's own limit
)

// codes is the one table from the server's codes to this package's errors.
var codes = map[natsjs.ErrorCode]error{
	natsjs.JSErrCodeMessageNotFound:                 ErrNotFound,
	natsjs.JSErrCodeConsumerNotFound:                ErrNotFound,
	natsjs.JSErrCodeConsumerDoesNotExist:            ErrNotFound,
	natsjs.JSErrCodeStreamNotFound:                  ErrUnavailable, // never "no such fact"
	natsjs.JSErrCodeStreamWrongLastSequence:         ErrConflict,
	natsjs.JSErrCodeStreamWrongLastSequenceConstant: errBusy,
	natsjs.JSErrCodeConsumerExists:                  ErrConflict,
	natsjs.JSErrCodeConsumerAlreadyExists:           ErrConflict,
	natsjs.JSErrCodeStreamNameInUse:                 ErrConflict,
	natsjs.JSErrCodeStreamMessageExceedsMaximum:     ErrTooLarge,
	natsjs.JSErrCodeJetStreamNotEnabled:             ErrUnavailable,
	natsjs.JSErrCodeJetStreamNotEnabledForAccount:   ErrUnavailable,
	codeAccountLimit:                                ErrFull,
	codeServerLimit:                                 ErrFull,
	codeStorageLimit:                                ErrFull,
	codeStoreFailed:                                 ErrFull,
	codeNoPeers:                                     ErrUnavailable,
	codeNotAssigned:                                 ErrUnavailable,
	codeNoMetaLeader:                                ErrUnavailable,
	codeNotLeader:                                   ErrUnavailable,
	codeOffline:                                     ErrUnavailable,
}

// mapped are the errors that mapError keeps.
var mapped = []error{
	ErrNotFound, ErrConflict, ErrTooLarge, ErrFull, ErrPermission, ErrUnavailable, ErrTimeout,
	ErrTampered, errBusy,
}

// mapError turns an error of the client into one of this package. It keeps what is already mapped.
func mapError(err error) error {
	if err == nil {
		return nil
	}
	if api, ok := errors.AsType[*natsjs.APIError](err); ok {
		return mapAPIError(api)
	}
	switch {
	case slices.ContainsFunc(mapped, func(own error) bool { return errors.Is(err, own) }):
		return err
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthorization):
		return fmt.Errorf("%w: %w", ErrPermission, err)
	case errors.Is(err, natsjs.ErrMsgNotFound), errors.Is(err, natsjs.ErrKeyNotFound),
		errors.Is(err, natsjs.ErrConsumerNotFound), errors.Is(err, natsjs.ErrStreamNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func mapAPIError(api *natsjs.APIError) error {
	own, ok := codes[api.ErrorCode]
	switch {
	case api.ErrorCode == codeStoreFailed && !strings.Contains(api.Description, "exceeded"):
		own = ErrUnavailable // a server that stops refuses with the same code as a full stream
	case ok:
	case api.Code == 503:
		own = ErrUnavailable
	default:
		return fmt.Errorf("server: %w", api)
	}
	return fmt.Errorf("%w: %w", own, api)
}

// decodeAnswer reads an answer of the JetStream API.
func decodeAnswer(data []byte, into any) error {
	var failed struct {
		Error *natsjs.APIError `json:"error"`
	}
	if err := json.Unmarshal(data, &failed); err != nil {
		return fmt.Errorf("%w: answer of the server: %w", ErrUnavailable, err)
	}
	if failed.Error != nil {
		return mapAPIError(failed.Error)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: answer of the server: %w", ErrUnavailable, err)
	}
	return nil
}
