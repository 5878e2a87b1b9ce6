package egress_test

import (
	"net/http"
	"testing"

	"github.com/weirkeeper/weir/services/internal/egress"
	"github.com/weirkeeper/weir/services/internal/egress/egresstest"
)

// TestB15_18Corpus asks the bare transport for every URL that leads inside: no connection arrives there.
func TestB15_18Corpus(t *testing.T) {
	t.Parallel()
	guard, err := egress.New()
	if err != nil {
		t.Fatal(err)
	}
	n := egresstest.New(t, func(http.ResponseWriter, *http.Request) {})
	transport := guard.Over(n.Net()).Transport()
	defer transport.CloseIdleConnections()
	all := egresstest.Forbidden()
	if len(all) < 300 {
		t.Errorf("%d URLs, want at least 300", len(all))
	}
	for _, text := range all {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, text, nil)
		if err != nil {
			continue
		}
		if resp, err := transport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
		if n.Inside() != 0 {
			t.Fatalf("%s: a connection arrived inside", text)
		}
	}
	t.Logf("%d URLs", len(all))
}
