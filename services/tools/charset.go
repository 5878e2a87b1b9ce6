package tools

import (
	"bytes"
	"mime"
	"strings"

	"golang.org/x/text/encoding/htmlindex"
)

// marks are what a text may begin with to tell its charset; they count before the content type, as in browsers.
var marks = []struct{ mark, charset string }{
	{"\xef\xbb\xbf", "utf-8"}, {"\xfe\xff", "utf-16be"}, {"\xff\xfe", "utf-16le"},
}

// decodeText is a body as text. A charset that is not named or not known is UTF-8; bytes that are none of its characters
// become U+FFFD.
func decodeText(body []byte, contentType string) string {
	_, params, _ := mime.ParseMediaType(contentType) // what cannot be read names no charset
	charset := params["charset"]
	for _, m := range marks {
		if rest, ok := bytes.CutPrefix(body, []byte(m.mark)); ok {
			body, charset = rest, m.charset
			break
		}
	}
	if enc, err := htmlindex.Get(charset); err == nil {
		if text, err := enc.NewDecoder().Bytes(body); err == nil {
			body = text
		}
	}
	return strings.ToValidUTF8(string(body), "\uFFFD")
}
