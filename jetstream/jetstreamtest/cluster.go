package jetstreamtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/weirkeeper/weir/jetstream/embedded"
)

const (
	// clusterTimeout bounds the first election, which takes a second or two and up to nine when votes split.
	clusterTimeout = time.Minute
	// clusterPoll is how often the servers are asked whether the election is over.
	clusterPoll = 20 * time.Millisecond
	// clusterTries bounds the search for free ports: another process may take one before its server does.
	clusterTries = 5
)

// StartCluster starts n servers with file storage that form one cluster on the loopback address, waits until
// streams of n replicas can be made, and stops them when the test ends. Servers listen for clients, so a
// client that knows all their URLs survives the stop of one. It needs sockets and so real time: never inside
// a bubble.
func StartCluster(tb testing.TB, n int) []*embedded.Server {
	tb.Helper()
	needKeeper(tb)
	servers, err := startMembers(tb, n)
	for try := 1; errors.Is(err, syscall.EADDRINUSE) && try < clusterTries; try++ {
		servers, err = startMembers(tb, n)
	}
	if err != nil {
		tb.Fatal(err)
	}
	for _, srv := range servers {
		tb.Cleanup(srv.Shutdown)
	}
	if err := awaitCluster(tb.Context(), servers); err != nil {
		tb.Fatal(err)
	}
	return servers
}

// startMembers starts all n or none.
func startMembers(tb testing.TB, n int) ([]*embedded.Server, error) {
	tb.Helper()
	ports, err := freePorts(tb.Context(), n)
	if err != nil {
		return nil, err
	}
	routes := make([]string, n)
	for i, port := range ports {
		routes[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	var servers []*embedded.Server
	for i, port := range ports {
		srv, err := embedded.Start(tb.Context(), embedded.Options{
			Dir:     tb.TempDir(),
			Listen:  "127.0.0.1:0",
			Name:    fmt.Sprintf("n%d", i+1),
			Cluster: &embedded.ClusterOptions{Name: "weir-test", Port: port, Routes: routes},
		})
		if err != nil {
			for _, started := range servers {
				started.Shutdown()
			}
			return nil, err
		}
		servers = append(servers, srv)
	}
	return servers, nil
}

// freePorts asks the system for n ports and gives them back for the servers: routes must be known before the
// first member starts.
func freePorts(ctx context.Context, n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all stay open until the last is found, so that they differ
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// awaitCluster waits until every member is current and the leader sees all of them.
func awaitCluster(ctx context.Context, servers []*embedded.Server) error {
	return await(ctx, "the cluster has not formed", func() bool {
		seen := 0
		for _, srv := range servers {
			if !srv.Current() {
				return false
			}
			seen = max(seen, len(srv.Peers()))
		}
		return seen == len(servers)
	})
}

func await(ctx context.Context, failure string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	tick := time.NewTicker(clusterPoll)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s after %v: %w", failure, clusterTimeout, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
