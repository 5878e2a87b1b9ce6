package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// ranges are first and last of each denied range, and whether the neighbours below and above are public.
var ranges = []struct {
	first, last  string
	below, above bool
}{
	{"0.0.0.0", "0.255.255.255", false, true},
	{"10.0.0.0", "10.255.255.255", true, true},
	{"100.64.0.0", "100.127.255.255", true, true},
	{"127.0.0.0", "127.255.255.255", true, true},
	{"169.254.0.0", "169.254.255.255", true, true},
	{"172.16.0.0", "172.31.255.255", true, true},
	{"192.0.0.0", "192.0.0.255", true, true},
	{"192.0.2.0", "192.0.2.255", true, true},
	{"192.88.99.0", "192.88.99.255", true, true},
	{"192.168.0.0", "192.168.255.255", true, true},
	{"198.18.0.0", "198.19.255.255", true, true},
	{"198.51.100.0", "198.51.100.255", true, true},
	{"203.0.113.0", "203.0.113.255", true, true},
	{"224.0.0.0", "239.255.255.255", true, false},
	{"240.0.0.0", "255.255.255.255", false, false},

	{"::", "::", false, false},
	{"::1", "::1", false, false},
	{"::", "::ffff:ffff", false, true}, // ::/96; what follows is 0:0:0:0:0:1::
	{"::ffff:0:0:0", "::ffff:0:ffff:ffff", true, true},
	{"64:ff9b::", "64:ff9b::ffff:ffff", true, true},
	{"64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", true, true},
	{"100::", "100::ffff:ffff:ffff:ffff", true, true},
	{"2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", true, true},
	{"2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", true, true},
	{"2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true, true},
	{"3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", true, true},
	{"5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true, true},
	{"fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true, true},
	{"fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true, false}, // fec0::/10 follows
	{"fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false, false},
	{"ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false, false},
}

func TestDeniedRanges(t *testing.T) {
	t.Parallel()
	if got, want := len(ranges)+1, len(denied); got != want { // ::ffff:0:0/96 is tested as mapped addresses
		t.Fatalf("%d ranges are tested, %d are denied", got, want)
	}
	check := func(a netip.Addr, public bool) {
		t.Helper()
		if a.IsValid() && Public(a) != public {
			t.Errorf("Public(%s) = %v", a, !public)
		}
		if a.Is4() {
			if mapped := netip.AddrFrom16(a.As16()); Public(mapped) != public {
				t.Errorf("Public(%s) = %v", mapped, !public)
			}
		}
	}
	for _, r := range ranges {
		first, last := netip.MustParseAddr(r.first), netip.MustParseAddr(r.last)
		check(first, false)
		check(last, false)
		check(first.Next(), first == last && r.above)
		check(first.Prev(), r.below)
		check(last.Next(), r.above)
	}
	for _, text := range []string{"8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1"} {
		check(netip.MustParseAddr(text), true)
	}
	check(netip.MustParseAddr("2606:4700::1111%eth0"), false)
	if Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// spellings are ways to write an address that is inside, or a URL that is none of ours.
var spellings = strings.Fields(`
	http://127.0.0.1/ http://127.0.0.1:80/ http://127.1/ http://127.0.1/ http://2130706433/ http://0x7f000001/
	http://0x7f.0.0.1/ http://0x7f.1/ http://0177.0.0.1/ http://017700000001/ http://127.0.0.1./ http://0/ http://0.0.0.0/
	http://00000000/ http://127.000.000.001/ http://[::1]/ http://[::]/ http://[0:0:0:0:0:0:0:1]/ http://[::ffff:127.0.0.1]/
	http://[::ffff:7f00:1]/ http://[::127.0.0.1]/ http://[64:ff9b::7f00:1]/ http://[2002:7f00:1::]/ http://[fe80::1%25eth0]/
	http://[fe80::1]/ http://[fd00::1]/ http://[ff02::1]/ http://[::ffff:0:127.0.0.1]/ http://10.0.0.1/ http://192.168.1.1/
	http://169.254.169.254/latest/meta-data/ http://169.254.169.254.:80/ http://[::ffff:169.254.169.254]/ http://2852039166/
	http://0xa9fea9fe/ http://172.16.0.1/ http://100.64.0.1/ http://198.18.0.1/ http://224.0.0.1/ http://255.255.255.255/
	http://user@93.184.216.34/ http://user:pass@93.184.216.34/ http://127.0.0.1%2f@93.184.216.34/ ftp://93.184.216.34/
	file:///etc/passwd gopher://93.184.216.34/ javascript:alert(1) unix:///run/docker.sock http:// http:///path
	http://93.184.216.34:22/ http://93.184.216.34:0/ http://93.184.216.34:080/ http://93.184.216.34:/ https://example.com:8443/
	http://example.com:6379/ http://1.2.3.4.5/ http://example.0x1/ http://.../`)

func TestSpellings(t *testing.T) {
	t.Parallel()
	g := must(New())
	for _, text := range spellings {
		u, err := url.Parse(text)
		if err != nil {
			continue // refused earlier still
		}
		if err := g.CheckURL(u); !errors.Is(err, ErrDenied) {
			t.Errorf("CheckURL(%s) = %v, want denied", text, err)
		}
	}
	for _, text := range []string{
		"http://93.184.216.34/", "https://93.184.216.34:443/x?y=z", "https://Example.COM/", "http://example.com.:80",
		"https://[2606:4700::1111]/", "https://xn--bcher-kva.example/",
	} {
		if err := g.CheckURL(must(url.Parse(text))); err != nil {
			t.Errorf("CheckURL(%s) = %v", text, err)
		}
	}
}

// Whatever the text of a URL got past, its socket meets the same checks. Full-width digits become digits on the way.
func TestSpellingsAreNotDialled(t *testing.T) {
	t.Parallel()
	g := must(New())
	g.lookup = func(context.Context, string) ([]netip.Addr, error) { return addrs("127.0.0.1"), nil }
	g.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		if !Public(netip.MustParseAddrPort(address).Addr()) {
			t.Errorf("dialled %s", address)
		}
		return nil, errors.New("far enough")
	}
	transport := g.Transport()
	for _, text := range append(spellings, "http://１２７.0.0.1/", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "http://localhost/") {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, text, nil)
		if err != nil {
			continue
		}
		if _, err := transport.RoundTrip(req); err == nil { //nolint:bodyclose // there is none
			t.Errorf("%s was reached", text)
		}
	}
}

// TestEveryAddressIsChecked: one address that may not be dialled among those of a name refuses the name. (SEC-3)
func TestEveryAddressIsChecked(t *testing.T) {
	t.Parallel()
	tests := []struct {
		allow   []string
		address string
		answer  []netip.Addr
		want    string // what is dialled; empty: denied
	}{
		{nil, "example.com:443", addrs("93.184.216.34"), "93.184.216.34:443"},
		{nil, "example.com:443", addrs("::ffff:93.184.216.34"), "93.184.216.34:443"},
		{nil, "example.com:443", addrs("93.184.216.34", "127.0.0.1"), ""},
		{nil, "example.com:443", addrs("127.0.0.1", "93.184.216.34"), ""},
		{nil, "example.com:8443", addrs("93.184.216.34"), ""},
		{nil, "example.com:443", nil, ""},
		{[]string{"example.com:8443"}, "example.com:8443", addrs("93.184.216.34"), "93.184.216.34:8443"},
		{[]string{"example.com:8443"}, "example.com:8444", addrs("93.184.216.34"), ""},
		{[]string{"Example.com."}, "EXAMPLE.com:1234", addrs("10.0.0.1"), "10.0.0.1:1234"},
		{[]string{"example.com"}, "www.example.com:80", addrs("10.0.0.1"), ""},
		{[]string{"10.0.0.0/8"}, "shop.internal:80", addrs("10.1.2.3"), "10.1.2.3:80"},
		{[]string{"10.0.0.0/8"}, "shop.internal:8080", addrs("10.1.2.3"), "10.1.2.3:8080"},
		{[]string{"10.0.0.0/8"}, "shop.internal:80", addrs("11.1.2.3"), "11.1.2.3:80"},
		{[]string{"10.0.0.0/8"}, "shop.internal:8080", addrs("11.1.2.3"), ""},
		{[]string{"10.0.0.0/8"}, "shop.internal:80", addrs("10.1.2.3", "192.168.0.1"), ""},
		{[]string{"127.0.0.1:9000"}, "127.0.0.1:9000", nil, "127.0.0.1:9000"},
		{[]string{"127.0.0.1:9000"}, "127.0.0.1:9001", nil, ""},
		{[]string{"[::1]:9000"}, "[::1]:9000", nil, "[::1]:9000"},
		{[]string{"127.0.0.1"}, "[::ffff:127.0.0.1]:5000", nil, "127.0.0.1:5000"},
		{[]string{"127.0.0.1"}, "localhost:5000", addrs("127.0.0.1"), "127.0.0.1:5000"},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.allow, test.address, test.answer), func(t *testing.T) {
			t.Parallel()
			g := must(New(test.allow...))
			dialled := ""
			g.lookup = func(context.Context, string) ([]netip.Addr, error) { return test.answer, nil }
			g.dial = func(_ context.Context, _, address string) (net.Conn, error) {
				dialled = address
				return nil, errors.New("far enough")
			}
			_, err := g.Dial(t.Context(), "tcp", test.address)
			if dialled != test.want {
				t.Errorf("dialled %q, want %q (%v)", dialled, test.want, err)
			}
			if test.want == "" && len(test.answer) > 0 && !errors.Is(err, ErrDenied) {
				t.Errorf("err = %v, want denied", err)
			}
		})
	}
}

// A name server that changes its mind after the check is not asked again. (SEC-3)
func TestRebinding(t *testing.T) {
	t.Parallel()
	g := must(New())
	asked := 0
	g.lookup = func(context.Context, string) ([]netip.Addr, error) {
		asked++
		if asked > 1 {
			return addrs("127.0.0.1"), nil
		}
		return addrs("93.184.216.34"), nil
	}
	var dialled []string
	g.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("far enough")
	}
	for range 2 {
		_, _ = g.Dial(t.Context(), "tcp", "rebind.example:80")
	}
	if len(dialled) != 1 || dialled[0] != "93.184.216.34:80" {
		t.Errorf("dialled %v, want the checked address once", dialled)
	}
}

// The socket itself is checked: a listener inside sees no connection even if everything before had failed.
func TestSocketIsChecked(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at := netip.MustParseAddrPort(l.Addr().String())

	g := must(New())
	if _, err := g.connect(t.Context(), "tcp", destination{port: at.Port()}, at.Addr()); !errors.Is(err, ErrDenied) {
		t.Errorf("err = %v, want denied", err)
	}
	g = must(New(l.Addr().String()))
	conn, err := g.Dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatalf("an allowed address: %v", err)
	}
	_ = conn.Close()
}

func TestParseEntry(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "http://example.com", "example.com/", "10.0.0.1/8", "10.0.0.0/33", "1.2.3.4.5", "127.1", "0x7f000001", "*",
		"*.example.com", "example.com:0", "example.com:http", "example.com:70000", "fe80::1%eth0", "a b", "user@example.com",
		"example.com:80:80",
	} {
		if e, err := ParseEntry(text); err == nil {
			t.Errorf("ParseEntry(%q) = %+v, want an error", text, e)
		}
	}
	for _, text := range []string{
		"example.com", "shop.internal:8080", "localhost", "10.1.2.3", "10.1.2.3:80", "10.0.0.0/8", "::1", "[::1]", "[fd00::7]:8080",
		"fd00::/8", "my_host-2",
	} {
		if _, err := ParseEntry(text); err != nil {
			t.Errorf("ParseEntry(%q): %v", text, err)
		}
	}
}

func TestNoProxyOfTheEnvironment(t *testing.T) {
	t.Parallel()
	if must(New()).Transport().Proxy != nil {
		t.Error("the transport asks for a proxy")
	}
}

func addrs(texts ...string) []netip.Addr {
	list := make([]netip.Addr, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParseAddr(text)
	}
	return list
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
