package jetstreamtest

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/weirkeeper/weir/jetstream/embedded"
)

// Slip stores a message past the services and without a guard, as somebody could who has the rights of one, and returns
// its sequence. Subject is the name under which the stream takes it in.
func Slip(tb testing.TB, srv *embedded.Server, subject string, header map[string][]string, payload string) uint64 {
	tb.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(srv.InProcess()))
	if err != nil {
		tb.Fatal(err)
	}
	defer nc.Close()
	reply, err := nc.RequestMsgWithContext(tb.Context(), &nats.Msg{Subject: subject, Header: header, Data: []byte(payload)})
	if err != nil {
		tb.Fatalf("store a message on %s: %v", subject, err)
	}
	var ack struct {
		Seq   uint64          `json:"seq"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Seq == 0 {
		tb.Fatalf("store a message on %s: %s, %v", subject, reply.Data, err)
	}
	return ack.Seq
}
