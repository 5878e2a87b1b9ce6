// Package jetstreamtest gives every test a real NATS server of its own, in this process. A package that uses
// it hands its TestMain to Main.
//
//	func TestMain(m *testing.M) { jetstreamtest.Main(m) }
//
//	func TestExpiry(t *testing.T) {
//		t.Parallel()
//		synctest.Test(t, func(t *testing.T) {
//			srv := jetstreamtest.StartServer(t)
//			…
//			time.Sleep(24 * time.Hour) // fake
//		})
//	}
//
// # Rules of a bubble
//
// Start the server inside, connect only through srv.InProcess (a socket blocks fake time for ever), and close
// connections before the bubble ends: t.Cleanup does it in the right order, because the server was started
// first. Fake days are cheap, months are not: keep-alives go on.
//
// nats.go recycles timers through a pool of the whole process. A timer of one bubble that another bubble, or
// a test in real time, takes from there ends the test binary with "select on synctest channel from outside
// bubble" or "reset of synctest timer from outside bubble", even when the bubbles follow each other. So
// nothing in a bubble may call what uses the pool: Flush, FlushTimeout, RTT, Request and NextMsg with a
// duration (the forms with a context are safe), Drain of a connection or a subscription, and a reconnect that
// succeeds. Close connections, make new ones after Restart, and test reconnecting in real time, with
// StartListening.
package jetstreamtest

import (
	"testing"

	"github.com/weirkeeper/weir/jetstream/embedded"
)

// StartServer starts a server with file storage, in process only, and stops it when the test ends. It works
// inside a synctest bubble and outside.
func StartServer(tb testing.TB) *embedded.Server {
	tb.Helper()
	return start(tb, embedded.Options{Dir: tb.TempDir()})
}

// StartListening is StartServer with a free port of the loopback address, for clients that reconnect after
// Restart and for other processes. Never inside a bubble.
func StartListening(tb testing.TB) *embedded.Server {
	tb.Helper()
	return start(tb, embedded.Options{Dir: tb.TempDir(), Listen: "127.0.0.1:0"})
}

// Restart stops srv, unless it already is, and returns another server on the same directory and address, as
// after a clean stop of the process. Stored messages, consumers and their progress are still there.
// Connections in process end with srv; those by address come back by themselves.
func Restart(tb testing.TB, srv *embedded.Server) *embedded.Server {
	tb.Helper()
	next, err := srv.Restart(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(next.Shutdown)
	if err := await(tb.Context(), "the restarted server is not current", next.Current); err != nil {
		tb.Fatal(err)
	}
	return next
}

func start(tb testing.TB, o embedded.Options) *embedded.Server {
	tb.Helper()
	needKeeper(tb)
	srv, err := embedded.Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(srv.Shutdown)
	return srv
}
