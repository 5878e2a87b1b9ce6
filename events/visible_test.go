package events_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/weirkeeper/weir/events"
)

// TestVisible shows what would deceive who reads it: SECURITY.md 7, "the approver sees something else".
func TestVisible(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                           "",
		"Refund order 1042: 12.50 €": "Refund order 1042: 12.50 €",
		"zwei\nZeilen\tmit Tab":      "zwei\nZeilen\tmit Tab",
		"日本語 العربية ไทย नमस्ते e\u0301": "日本語 العربية ไทย नमस्ते e\u0301",
		"a\u00a0b\u3000c\u2009d":                "a\u00a0b\u3000c\u2009d", // blanks, as wide as they are
		"раypal":                                "раypal",                 // its first two letters are Cyrillic: they can be seen
		"❌ 👍 🏴":                                 "❌ 👍 🏴",
		"order\u202e2401":                       "order<U+202E>2401",
		"\u2066left\u2067right\u2068auto\u2069": "<U+2066>left<U+2067>right<U+2068>auto<U+2069>",
		"a\u061cb\u200eb\u200fb":                "a<U+061C>b<U+200E>b<U+200F>b",
		"pay\u200bpal":                          "pay<U+200B>pal",
		"a\u200cb\u200db\u2060b\ufeffb":         "a<U+200C>b<U+200D>b<U+2060>b<U+FEFF>b",
		"soft\u00adhyphen":                      "soft<U+00AD>hyphen",
		"\x1b[2K\x1b[1Aapproved":                "<U+001B>[2K<U+001B>[1Aapproved",
		"\x1b]0;title\x07":                      "<U+001B>]0;title<U+0007>",
		"\u009b2J":                              "<U+009B>2J", // the same, by one character of C1
		"wrong\rright":                          "wrong<U+000D>right",
		"a\x00b\x08c\x7fd":                      "a<U+0000>b<U+0008>c<U+007F>d",
		"line\u2028paragraph\u2029next\u0085":   "line<U+2028>paragraph<U+2029>next<U+0085>",
		"tags \U000e0041\U000e007f":             "tags <U+E0041><U+E007F>",
		"heart \u2764\ufe0f \U000e0100":         "heart \u2764<U+FE0F> <U+E0100>",
		"fillers \u115f\u1160\u3164\uffa0":      "fillers <U+115F><U+1160><U+3164><U+FFA0>",
		"joiner \u034f mongolian \u180e\u180b":  "joiner <U+034F> mongolian <U+180E><U+180B>",
		"private \ue000 nobody's \u0378":        "private <U+E000> nobody's <U+0378>",
		"bytes \xff\xc3(":                       "bytes <0xFF><0xC3>(",
		"replaced \ufffd":                       "replaced <U+FFFD>",
	} {
		if got := events.Visible(in); got != want {
			t.Errorf("%+q is shown as %+q, want %+q", in, got, want)
		}
	}
}

// TestVisibleOfEveryCharacter: whatever is not shown by its number is graphic, or a newline or tab; and showing twice is
// showing once.
func TestVisibleOfEveryCharacter(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		shown := events.Visible(string(r))
		if shown == string(r) {
			if r != '\n' && r != '\t' && (!unicode.IsGraphic(r) || unicode.Is(unicode.Variation_Selector, r) ||
				unicode.Is(unicode.Bidi_Control, r) || unicode.Is(unicode.Join_Control, r)) {
				t.Errorf("%U is shown as it is", r)
			}
			continue
		}
		if !strings.HasPrefix(shown, "<U+") || events.Visible(shown) != shown {
			t.Errorf("%U is shown as %+q", r, shown)
		}
	}
}

// TestVisibleJSON: the same value, and nothing hidden in it.
func TestVisibleJSON(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		`{"a":"plain ä €"}`, "{\"\u202eb\":\"c\u200b\U000e0041\x7f\u009b\"}", "{\n\t\"a\": \"\\u202e\ufeff\" }\r\n",
	} {
		out := events.VisibleJSON([]byte(in))
		var want, got any
		if err := json.Unmarshal([]byte(in), &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%+q: %v", out, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if s := strings.ReplaceAll(string(out), "\r", ""); events.Visible(s) != s {
			t.Errorf("%+q hides something", out)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\u202eb\xff\x1b[0m")
	f.Fuzz(func(t *testing.T, s string) {
		shown := events.Visible(s)
		if !utf8.ValidString(shown) || events.Visible(shown) != shown || strings.ContainsAny(shown, "\x1b\r\u202e\u200b") {
			t.Errorf("%+q is shown as %+q", s, shown)
		}
	})
}
