// Package egress guards requests that leave for addresses which others may choose: a tool's URL, a redirect, the answer
// of a name server. Nothing inside the network of the process is reached unless the operator allowed it by name.
//
//	guard, err := egress.New("10.1.0.0/16", "shop.internal:8080")
//	transport := guard.Transport()
//
// What the package promises:
//
//   - Schemes are http and https, ports 80 and 443 unless an entry covers another. A proxy named by the environment is
//     not used, because it would connect on our behalf to whatever it is told.
//   - A name is resolved once, by Go's resolver (that of the C library takes 127.1 and 0x7f000001 for addresses), every
//     address is checked, and a checked address is dialled, so that a second answer of a name server changes nothing.
//     The address of the socket is checked once more before it connects.
//   - localhost and names below it are denied by name, whatever their addresses.
//   - What an operator allows comes before what is denied; everything else that is not plainly public is denied.
package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrDenied says that a request would have gone where it may not.
var ErrDenied = errors.New("the address is not allowed")

// denied are the ranges that are not plainly public; netip calls many of them global.
var denied = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",

	"::/128", "::1/128", "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// Public reports whether an address is plainly public. An address with a zone belongs to one interface and is not.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	for _, p := range denied {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// Guard decides which addresses may be reached. It is safe for concurrent use.
type Guard struct {
	allow  []Entry
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Net is what a guard looks names up and connects with.
type Net struct {
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Over makes a guard of the same entries over another network. It is for tests.
func (g *Guard) Over(n Net) *Guard { return &Guard{allow: g.allow, lookup: n.Lookup, dial: n.Dial} }

const dialTimeout = 10 * time.Second

// New makes a guard that lets pass what is public and what the entries allow; see [ParseEntry].
func New(allow ...string) (*Guard, error) {
	g := &Guard{}
	for _, text := range allow {
		e, err := ParseEntry(text)
		if err != nil {
			return nil, err
		}
		g.allow = append(g.allow, e)
	}
	resolver := &net.Resolver{PreferGo: true}
	g.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return resolver.LookupNetIP(ctx, "ip", host)
	}
	return g, nil
}

// Transport makes requests under the guard. The caller may set the fields that the guard does not need: all but the
// dialers and the proxy.
func (g *Guard) Transport() *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            g.Dial,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// CheckURL refuses a URL that no request may be made to, as far as its text tells: its scheme, its port, and its host
// when that is an address. The error says why, without the URL's path and query.
func (g *Guard) CheckURL(u *url.URL) error {
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = cmp.Or(port, "80")
	case "https":
		port = cmp.Or(port, "443")
	default:
		return fmt.Errorf("%w: scheme %q; use http or https", ErrDenied, u.Scheme)
	}
	if u.User != nil {
		return fmt.Errorf("%w: a URL must not hold a user or a password", ErrDenied)
	}
	if strings.HasSuffix(u.Host, ":") { // an empty port
		return fmt.Errorf("%w: %q names no port", ErrDenied, u.Host)
	}
	_, err := g.target(u.Hostname(), port)
	return err
}

// destination is where a connection shall go.
type destination struct {
	host    string
	addr    netip.Addr // when the host is an address
	port    uint16
	allowed bool // by name, so its addresses are not looked at
}

// target reads and checks a host and a port.
func (g *Guard) target(host, port string) (destination, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strings.HasPrefix(port, "0") {
		return destination{}, fmt.Errorf("%w: port %q", ErrDenied, port)
	}
	d := destination{host: canonicalHost(host), port: uint16(n)}
	if a, err := netip.ParseAddr(host); err == nil {
		d.addr = a.Unmap()
		return d, g.checkAddr(d.addr, d.port)
	}
	if d.host == "" || strings.ContainsAny(host, "%[]:/@\\ ") || numeric(d.host) {
		return d, fmt.Errorf("%w: %q is not a name of a host", ErrDenied, host)
	}
	for _, e := range g.allow {
		d.allowed = d.allowed || e.host == d.host && e.port(d.port)
	}
	switch {
	case !d.allowed && local(d.host) && !g.allowsLoopback(d.port):
		return d, fmt.Errorf("%w: %q is this machine", ErrDenied, host)
	case d.allowed, g.usualPort(d.port):
		return d, nil
	}
	for _, e := range g.allow { // its address may be allowed with this port
		if e.host == "" && e.port(d.port) {
			return d, nil
		}
	}
	return d, portError(d.port)
}

// local reports whether a name is reserved for the own machine, whatever a name server says.
func local(host string) bool { return host == "localhost" || strings.HasSuffix(host, ".localhost") }

// allowsLoopback reports whether an address of the own machine is allowed, so that its name may be looked up.
func (g *Guard) allowsLoopback(port uint16) bool {
	return slices.ContainsFunc(g.allow, func(e Entry) bool {
		return e.covers(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port) || e.covers(netip.IPv6Loopback(), port)
	})
}

func (g *Guard) usualPort(port uint16) bool { return port == 80 || port == 443 }

func portError(port uint16) error {
	return fmt.Errorf("%w: port %d; 80 and 443 are, others when they are listed", ErrDenied, port)
}

// checkAddr refuses an address that is neither allowed nor public, with its port.
func (g *Guard) checkAddr(a netip.Addr, port uint16) error {
	for _, e := range g.allow {
		if e.covers(a, port) {
			return nil
		}
	}
	switch {
	case !Public(a):
		return fmt.Errorf("%w: %s is not public", ErrDenied, a)
	case !g.usualPort(port):
		return portError(port)
	}
	return nil
}

// Dial connects to a host, under the guard. It is the DialContext of a transport.
func (g *Guard) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d, err := g.target(host, port)
	if err != nil {
		return nil, err
	}
	addrs, err := g.resolve(ctx, d)
	if err != nil {
		return nil, err
	}
	var last error
	for _, a := range addrs {
		conn, err := g.connect(ctx, network, d, a)
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, last
}

// resolve gives the addresses of a destination. One that is denied refuses them all: a public name that also points
// inside is not to be trusted with the choice.
func (g *Guard) resolve(ctx context.Context, d destination) ([]netip.Addr, error) {
	if d.addr.IsValid() {
		return []netip.Addr{d.addr}, nil
	}
	addrs, err := g.lookup(ctx, d.host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%s has no address", d.host)
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
		if d.allowed {
			continue
		}
		if err := g.checkAddr(addrs[i], d.port); err != nil {
			return nil, fmt.Errorf("%s: %w", d.host, err)
		}
	}
	return addrs, nil
}

// connect dials one checked address.
func (g *Guard) connect(ctx context.Context, network string, d destination, a netip.Addr) (net.Conn, error) {
	address := netip.AddrPortFrom(a, d.port).String()
	if g.dial != nil {
		return g.dial(ctx, network, address)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	if !d.allowed {
		dialer.Control = func(_, socket string, _ syscall.RawConn) error { return g.checkSocket(socket) }
	}
	return dialer.DialContext(ctx, network, address)
}

// checkSocket is the last look, at the very address that a socket connects to.
func (g *Guard) checkSocket(socket string) error {
	at, err := netip.ParseAddrPort(socket)
	if err != nil {
		return fmt.Errorf("%w: %q", ErrDenied, socket)
	}
	return g.checkAddr(at.Addr().Unmap(), at.Port())
}

// canonicalHost is a name in lower case, without the dot that may end it.
func canonicalHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// numeric reports whether a name is an address to some readers: its last label is a number, decimal or hexadecimal.
func numeric(host string) bool {
	label := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
