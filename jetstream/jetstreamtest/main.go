package jetstreamtest

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/jetstream/embedded"
)

// kept says that the keeper runs, so that a forgotten TestMain is told and not guessed from a crash.
var kept atomic.Bool

// Main runs the tests of a package beside the keeper, a server with one file stream that outlives all of
// them. It is the whole TestMain of every package that starts servers:
//
//	func TestMain(m *testing.M) { jetstreamtest.Main(m) }
//
// nats-server keeps one ticker for all file stores of the process, started by the first and stopped with the
// last. Started in a bubble, the ticker would belong to it, and the next bubble would crash the test binary.
// The keeper's stream is the first and the last, outside all bubbles; a keeper without a stream does not help.
func Main(m *testing.M) {
	stop, err := startKeeper()
	if err != nil {
		fmt.Fprintln(os.Stderr, "jetstreamtest: start the keeper:", err)
		os.Exit(1)
	}
	defer stop() // the exit code is taken from m by the caller
	kept.Store(true)
	debug.SetGCPercent(800) // tests make many short-lived servers and keep little: a fifth of their time is collection
	debug.SetMemoryLimit(2 << 30)
	m.Run()
}

func needKeeper(tb testing.TB) {
	tb.Helper()
	if !kept.Load() {
		tb.Fatal("this package needs: func TestMain(m *testing.M) { jetstreamtest.Main(m) }")
	}
}

// startKeeper leaves nothing behind when it fails.
func startKeeper() (stop func(), err error) {
	dir, err := os.MkdirTemp("", "weir-keeper-")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	srv, err := embedded.Start(ctx, embedded.Options{Dir: dir, Name: "keeper"})
	if err != nil {
		return nil, removing(dir, err)
	}
	if err := addFileStream(ctx, srv); err != nil {
		srv.Shutdown()
		return nil, removing(dir, err)
	}
	return func() {
		srv.Shutdown()
		_ = os.RemoveAll(dir) // the tests are over, and the folder is temporary
	}, nil
}

func addFileStream(ctx context.Context, srv *embedded.Server) error {
	nc, err := nats.Connect("", nats.InProcessServer(srv.InProcess()))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateStream(ctx, natsjs.StreamConfig{Name: "keeper", Subjects: []string{"keeper"}})
	return err
}

func removing(dir string, err error) error {
	_ = os.RemoveAll(dir) // err says more
	return err
}
