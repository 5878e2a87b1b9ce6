package jetstreamtest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/weirkeeper/weir/jetstream/embedded"
	"github.com/weirkeeper/weir/jetstream/jetstreamtest"
)

// Three replicas keep what was stored while any one server is away, and the one that was away catches up.
func TestStartCluster(t *testing.T) {
	t.Parallel()
	servers := jetstreamtest.StartCluster(t, 3)
	nc, err := nats.Connect(urls(servers), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := addStream(t, nc, 3)
	publish(t, js, "facts.a")
	info := stream(t, js, "facts").CachedInfo()
	members := []string{info.Cluster.Leader}
	for _, r := range info.Cluster.Replicas {
		members = append(members, r.Name)
	}
	slices.Sort(members)
	if diff := cmp.Diff([]string{"n1", "n2", "n3"}, members); diff != "" {
		t.Error(diff)
	}

	leader := byName(t, servers, info.Cluster.Leader)
	leader.Shutdown()
	publishUntilStored(t, js, "facts.b")
	jetstreamtest.Restart(t, leader)
	publishUntilStored(t, js, "facts.c")
	if diff := cmp.Diff([]string{"facts.a", "facts.b", "facts.c"}, slices.Compact(subjects(t, js))); diff != "" {
		t.Error(diff)
	}
}

func urls(servers []*embedded.Server) string {
	all := make([]string, len(servers))
	for i, srv := range servers {
		all[i] = srv.ClientURL()
	}
	return strings.Join(all, ",")
}

func byName(t *testing.T, servers []*embedded.Server, name string) *embedded.Server {
	t.Helper()
	i := slices.IndexFunc(servers, func(srv *embedded.Server) bool { return srv.Name() == name })
	if i < 0 {
		t.Fatalf("no server is named %q", name)
	}
	return servers[i]
}

// publishUntilStored tries through an election. A time-out may have stored the message, so it can be there
// twice.
func publishUntilStored(t *testing.T, js natsjs.JetStream, subject string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if _, err = js.Publish(t.Context(), subject, nil, natsjs.WithRetryAttempts(40)); err == nil {
			return
		}
	}
	t.Fatal(err)
}
