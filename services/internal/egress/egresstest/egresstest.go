// Package egresstest holds what requests to addresses of others' choosing must not reach, and a small internet on which
// that shows: whatever is dialled inside arrives at one listener, which counts.
//
//	net := egresstest.New(t)
//	guard.Over(net.Net())
//	… // fetch egresstest.Forbidden(), by itself and by net.Redirect(…)
//	net.Inside() // must be 0
package egresstest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirkeeper/weir/services/internal/egress"
)

// Outside is a public name, and its address.
const (
	Outside        = "outside.example"
	OutsideAddress = "93.184.216.34"
)

// Internet is an outside, which is a server, and an inside, which is a listener. Name servers are hostile: every name
// that is not the outside's is an address inside.
type Internet struct {
	server *httptest.Server
	inside net.Listener
	count  atomic.Int64
	asked  atomic.Int64 // for the name whose address changes
}

// New starts an internet. The outside answers with what handle says, after the redirects that [Internet.Redirect] asks for.
func New(tb testing.TB, handle http.HandlerFunc) *Internet {
	tb.Helper()
	n := &Internet{}
	n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := r.URL.Query().Get("to")
		if to == "" {
			handle(w, r)
			return
		}
		if left, err := strconv.Atoi(r.URL.Query().Get("hops")); err == nil && left > 1 {
			to = n.Redirect(to, left-1)
		}
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	}))
	tb.Cleanup(n.server.Close)
	var err error
	if n.inside, err = net.Listen("tcp", "127.0.0.1:0"); err != nil { //nolint:noctx // it listens at once
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := n.inside.Accept()
			if err != nil {
				return
			}
			n.count.Add(1)
			_ = conn.Close()
		}
	}()
	tb.Cleanup(func() {
		_ = n.inside.Close()
		<-done
	})
	return n
}

// Redirect is a URL outside that redirects so often, at last to a URL.
func (n *Internet) Redirect(to string, hops int) string {
	query := url.Values{"to": {to}, "hops": {strconv.Itoa(hops)}}
	return "http://" + Outside + "/redirect?" + query.Encode()
}

// Inside is how many connections arrived inside.
func (n *Internet) Inside() int64 { return n.count.Load() }

// Net is how one gets there.
func (n *Internet) Net() egress.Net { return egress.Net{Lookup: n.lookup, Dial: n.dial} }

func (n *Internet) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	public, private := netip.MustParseAddr(OutsideAddress), netip.MustParseAddr("127.0.0.1")
	switch host = strings.ToLower(host); {
	case host == Outside:
		return []netip.Addr{public}, nil
	case host == "mixed.example":
		return []netip.Addr{public, netip.MustParseAddr("10.0.0.7")}, nil
	case host == "six.example":
		return []netip.Addr{netip.MustParseAddr("64:ff9b::7f00:1")}, nil
	case host == "mapped.example":
		return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, nil
	case host == "turning.example" && n.asked.Add(1)%2 == 1:
		return []netip.Addr{public}, nil
	}
	return []netip.Addr{private}, nil
}

// dial leads to the outside for its address, and inside for all others.
func (n *Internet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	to := n.inside.Addr().String()
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().String() == OutsideAddress {
		to = n.server.Listener.Addr().String()
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}
