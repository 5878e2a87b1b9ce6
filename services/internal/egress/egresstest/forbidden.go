package egresstest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// inside are IPv4 addresses, at least one of each range that is not plainly public.
var inside = []string{
	"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "169.254.169.254", "172.16.5.4", "172.31.255.255",
	"192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1",
	"240.0.0.1", "255.255.255.255",
}

// Forbidden are URLs to which no connection may be opened: the ways to write an address inside that browsers, resolvers or
// libraries know, and URLs that ask for something else than a web page.
func Forbidden() []string {
	var all []string
	for _, text := range inside {
		for _, host := range spellings(netip.MustParseAddr(text).As4()) {
			all = append(all, "http://"+host+"/")
		}
		all = append(all, around(text)...)
	}
	for host := range strings.FieldsSeq(hosts + " loc\u00adalhost") {
		all = append(all, "http://"+host+"/", "https://"+host+"/x?y=z")
	}
	all = append(all, strings.Fields(urls)...)
	slices.Sort(all)
	return slices.Compact(all)
}

// spellings are ways to write an IPv4 address as a host.
func spellings(a [4]byte) []string {
	n := binary.BigEndian.Uint32(a[:])
	high, low := n>>16, n&0xffff
	dotted := netip.AddrFrom4(a).String()
	each := func(format string) string { return fmt.Sprintf(format, a[0], a[1], a[2], a[3]) }
	list := []string{
		dotted, dotted + ".", dotted + "..", each("%03d.%03d.%03d.%03d"),
		fmt.Sprintf("%d", n), fmt.Sprintf("%d.", n), fmt.Sprintf("0x%x", n), fmt.Sprintf("0X%X", n), fmt.Sprintf("0x00000000%08x", n), fmt.Sprintf("0%o", n),
		fmt.Sprintf("%d", uint64(n)+1<<32),
		each("0x%x.0x%x.0x%x.0x%x"), each("0%o.0%o.0%o.0%o"), each("000000%o.%d.%d.%d"), each("0x%x.%d.0%o.%d"), each("%d.0x%x.%d.0%o"),
		fmt.Sprintf("%d.%d", a[0], n&0xffffff), fmt.Sprintf("%d.%d.%d", a[0], a[1], low), fmt.Sprintf("0x%x.%d", a[0], n&0xffffff),
		fmt.Sprintf("%d.%d.0x%x", a[0], a[1], low), fmt.Sprintf("0%o.0x%x", a[0], n&0xffffff),
		fullWidth(dotted), fullWidth(fmt.Sprintf("%d", n)), strings.ReplaceAll(dotted, ".", "。"), strings.ReplaceAll(dotted, ".", "．"),
		strings.ReplaceAll(dotted, ".", "｡"), circled(dotted), percent(dotted), strings.ReplaceAll(dotted, ".", "%2e"),
		percent(fmt.Sprintf("%d", n)),
	}
	for _, format := range []string{
		"::ffff:%x:%x", "::FFFF:%X:%X", "0:0:0:0:0:ffff:%x:%x", "0000:0000:0000:0000:0000:ffff:%04x:%04x", "::ffff:0:%x:%x", "::%x:%x",
		"0:0:0:0:0:0:%x:%x", "64:ff9b::%x:%x", "64:ff9b:0:0:0:0:%x:%x", "64:ff9b:1::%x:%x", "2002:%x:%x::", "2002:%x:%x::1", "2002:%x:%x:1:2:3:4:5",
	} {
		list = append(list, "["+fmt.Sprintf(format, high, low)+"]")
	}
	return append(list, "[::ffff:"+dotted+"]", "[::"+dotted+"]", "[64:ff9b::"+dotted+"]", "[::ffff:0:"+dotted+"]", "[::ffff:"+dotted+"%25eth0]",
		// Teredo: the address of the client stands there inverted, that of the server as it is.
		fmt.Sprintf("[2001:0:808:808:0:0:%x:%x]", high^0xffff, low^0xffff), fmt.Sprintf("[2001:0:%x:%x::1]", high, low))
}

// around are URLs that hold an address in a place where readers disagree.
func around(a string) []string {
	return []string{
		"http://" + a + ":80/", "http://" + a + ":443/", "https://" + a + "/", "HTTP://" + a + "/", "http://user@" + a + "/",
		"http://user:pass@" + a + "/", "http://example.com@" + a + "/", "http://example.com:80@" + a + "/", "http://example.com%40" + a + "/",
		"http://" + a + "#@example.com/", "http://" + a + "?@example.com/", "http://" + a + `\@example.com/`, "http://" + a + ":80#@example.com/",
		"http://@" + a + "/", "http:///" + a + "/", "http:" + a + "/", "http:/" + a + "/", `http:\\` + a + `\`, "//" + a + "/", a,
		"http://" + a + "%00.example.com/", "http://" + a + "%23.example.com/", "http://" + a + ":080/", "http://" + a + ":8080/", "http://" + a + ":/",
	}
}

func fullWidth(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r - '0' + '０'
		}
		return r
	}, text)
}

func circled(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '0':
			return '⓪'
		case r >= '1' && r <= '9':
			return r - '1' + '①'
		}
		return r
	}, text)
}

func percent(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}

const hosts = `
	localhost LOCALHOST LocalHost localhost. localhost.. a.localhost a.b.LOCALHOST. public.example.localhost xn--.localhost
	ⓛⓞⓒⓐⓛⓗⓞⓢⓣ ｌｏｃａｌｈｏｓｔ a.ｌｏｃａｌｈｏｓｔ localhost。 %6c%6f%63%61%6c%68%6f%73%74 ℓocalhost 𝐥𝐨𝐜𝐚𝐥𝐡𝐨𝐬𝐭
	ip6-localhost localhost.localdomain inside.example mixed.example six.example mapped.example rebind.example
	metadata.google.internal kubernetes.default.svc 0 00 0x0 0. 1 256.0.0.1 1.2.3.4.5 127.1 127.0.1 0177.1 0x7f.1 017700000001
	[::] [::1] [0:0:0:0:0:0:0:1] [0000:0000:0000:0000:0000:0000:0000:0001] [::1%25lo] [::0001] [fe80::1] [fe80::1%25eth0] [fe80::a9fe:a9fe]
	[febf::1] [fec0::1] [fc00::1] [fd00:ec2::254] [fdff::1] [ff02::1] [ff0e::1] [100::1] [2001:db8::1] [2001::1] [2001:10::1] [2001:20::1]
	[3fff::1] [5f00::1] [::2] [::ffff:0:1] [64:ff9b:1:2::1] [2606:4700::1111%25eth0]
	nip.127.0.0.1 example.0x7f000001 ... . a..b -`

//nolint:gosec // the passwords open nothing
const urls = `
	ftp://93.184.216.34/ file:///etc/passwd file://localhost/etc/passwd gopher://93.184.216.34:70/_x dict://93.184.216.34:11211/stat
	ldap://93.184.216.34/ ldaps://93.184.216.34/ tftp://93.184.216.34/x sftp://93.184.216.34/ ssh://93.184.216.34/ telnet://93.184.216.34/
	smb://93.184.216.34/x ws://93.184.216.34/ wss://93.184.216.34/ jar:http://93.184.216.34!/ netdoc:///etc/passwd data:text/plain,x
	javascript:alert(1) view-source:http://127.0.0.1/ unix:///run/docker.sock unix:/run/docker.sock http+unix://%2frun%2fdocker.sock/info blob:http://127.0.0.1/x
	about:blank http:// https:// http:///path http://:80/ http://#x http://?x //93.184.216.34/ /etc/passwd x mailto:a@b
	http://93.184.216.34:22/ http://93.184.216.34:25/ http://93.184.216.34:0/ http://93.184.216.34:-1/ http://93.184.216.34:65536/
	http://93.184.216.34:080/ http://93.184.216.34:/ http://93.184.216.34:8080/ http://93.184.216.34:6379/ http://93.184.216.34:2375/
	http://93.184.216.34:http/ http://93.184.216.34:65616/ http://93.184.216.34:4294967376/ http://93.184.216.34:80:80/
	http://outside.example:6379/ https://outside.example:9200/ http://outside.example:4222/ http://outside.example:22/
	http://user@93.184.216.34/ http://user:pass@93.184.216.34/ http://:@93.184.216.34/ http://outside.example@127.0.0.1:80/
	http://127.0.0.1%2f@93.184.216.34/ http://127.0.0.1:80@outside.example/ http://[93.184.216.34]/ http://[::1]:22/ http://[::1/ http://::1/`
