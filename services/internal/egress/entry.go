package egress

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Entry allows a host or a range of addresses, on one port or on all.
type Entry struct {
	host   string // in lower case; empty for a range
	prefix netip.Prefix
	only   uint16 // 0: every port
}

// ParseEntry reads an entry of an allow list: a host, an address or a range in CIDR form, each of the first two with a
// port if that is to be the only one: shop.internal, shop.internal:8080, 10.1.2.3, [fd00::7]:8080, 10.1.0.0/16.
//
// An entry lifts every other rule for what it covers: all addresses that an allowed name has, and all ports if it names
// none.
func ParseEntry(text string) (Entry, error) {
	bad := func(why string) (Entry, error) {
		return Entry{}, fmt.Errorf("%q: %s; use a host, an address or a range such as 10.1.0.0/16, with a :port if need be",
			text, why)
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		if p != p.Masked() {
			return bad("the range has bits beyond its length")
		}
		return Entry{prefix: p}, nil
	}
	if strings.Contains(text, "/") {
		return bad("not a range")
	}
	e := Entry{host: text}
	if host, port, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return bad("not a port")
		}
		e.host, e.only = host, uint16(n)
	}
	if a, err := netip.ParseAddr(strings.Trim(e.host, "[]")); err == nil {
		if a.Zone() != "" {
			return bad("an address with a zone cannot be allowed")
		}
		a = a.Unmap()
		return Entry{prefix: netip.PrefixFrom(a, a.BitLen()), only: e.only}, nil
	}
	e.host = canonicalHost(e.host)
	if e.host == "" || numeric(e.host) || strings.Trim(e.host, hostCharacters) != "" {
		return bad("not a host")
	}
	return e, nil
}

const hostCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-_."

func (e Entry) port(port uint16) bool { return e.only == 0 || e.only == port }

// covers reports whether an entry for addresses allows this one.
func (e Entry) covers(a netip.Addr, port uint16) bool {
	return e.host == "" && e.prefix.Contains(a) && e.port(port)
}
