package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		` { "b" : 1 , "a" : [ true , null ] } `:            `{"a":[true,null],"b":1}`,
		`{"amount":9007199254740993,"x":1.0,"y":1e2}`:      `{"amount":9007199254740993,"x":1.0,"y":1e2}`,
		`[-0,0.10,1E+2,123456789012345678901234567890]`:    `[-0,0.10,1E+2,123456789012345678901234567890]`,
		`"\u0041\/\u00e9\u20ac\ud83d\ude00<>&"`:            `"A/é€😀<>&"`,
		`"\u0000\u001f\b\t\n\f\r\"\\\u007f"`:               "\"\\u0000\\u001f\\b\\t\\n\\f\\r\\\"\\\\\u007f\"",
		`{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"😀":5,"ö":6}`: "{\"\\r\":2,\"1\":4,\"ö\":6,\"€\":1,\"😀\":5,\"\ufb33\":3}",
		`{"a":{"d":1,"c":2},"":0}`:                         `{"":0,"a":{"c":2,"d":1}}`,
		`{"aa":1,"a":2,"b":3,"A":4}`:                       `{"A":4,"a":2,"aa":1,"b":3}`,
		`{}`:                                               `{}`,
		`[]`:                                               `[]`,
		strings.Repeat("[", 64) + strings.Repeat("]", 64):  strings.Repeat("[", 64) + strings.Repeat("]", 64),
	} {
		got, err := Canonical([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s:\n got %s, %v\nwant %s", in, got, err, want)
		}
	}
}

func TestCanonicalRefuses(t *testing.T) {
	t.Parallel()
	for in, at := range map[string]int{
		``:                          1,
		` `:                         2,
		`{`:                         2,
		`{"a":1,}`:                  8,
		`[1,]`:                      4,
		`{'a':1}`:                   2,
		`{"a" 1}`:                   6,
		`{a:1}`:                     2,
		`{"a":1}{"b":2}`:            8,
		`1 2`:                       3,
		`NaN`:                       1,
		`+1`:                        1,
		`01`:                        2,
		`1.`:                        3,
		`.5`:                        1,
		`1e`:                        3,
		`-`:                         2,
		`tru`:                       1,
		`"a`:                        3,
		"\"a\nb\"":                  3,
		`"\x"`:                      2,
		`"\u12"`:                    2,
		`"\ud800"`:                  2,
		`"\ud800\u0041"`:            2,
		`"\udc00"`:                  2,
		"\"\xff\"":                  2,
		"\"\xed\xa0\x80\"":          2,
		"\xef\xbb\xbf{}":            1,
		`{"a":1,"a":2}`:             8,
		`{"a":1,"\u0061":2}`:        8,
		`[{"x":{"b":1,"c":2,"b":3`:  20,
		strings.Repeat("[", 65):     65,
		strings.Repeat(`{"a":`, 65): 64*5 + 1,
		`1e1000`:                    3,
		strings.Repeat("1", 1001):   1,
		"{\"a\":1}\x00":             8,
		`// x`:                      1,
	} {
		got, err := Canonical([]byte(in))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%.40q: got %.40q, %v", in, got, err)
			continue
		}
		if syntax.Offset+1 != at || !strings.Contains(err.Error(), "at position") {
			t.Errorf("%.40q: %v, want position %d", in, err, at)
		}
		if CheckJSON([]byte(in)) == nil {
			t.Errorf("%.40q: CheckJSON accepts it", in)
		}
	}
}

// Large objects keep their keys apart too.
func TestCanonicalManyKeys(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteByte('{')
	for i := range 5000 {
		b.WriteString(`"k` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26) + `":1,`)
	}
	doubled := b.String() + `"ka":2}`
	b.WriteString(`"":1}`)
	if _, err := Canonical([]byte(b.String())); err != nil {
		t.Error(err)
	}
	if _, err := Canonical([]byte(doubled)); err == nil || !strings.Contains(err.Error(), `duplicate key "ka"`) {
		t.Errorf("got %v", err)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,"\u00e9"],"a":{"c":null}}`, `{"a":1,"A":2}`, `"\ud83d\ude00"`, `[1e5,-0.0]`, `{"a":1,"a":2}`,
		`{"😀":1,"\uffff":2}`, " [ ] ", `"\u007f\u2028"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := Canonical(raw)
		if checked := CheckJSON(raw); (err == nil) != (checked == nil) {
			t.Fatalf("%q: Canonical says %v, CheckJSON %v", raw, err, checked)
		}
		if err != nil {
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("%q is accepted and no JSON", raw)
		}
		again, err := Canonical(got)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("%q: not its own canonical form: %q, %v", got, again, err)
		}
		if !reflect.DeepEqual(decodeAny(raw), decodeAny(got)) {
			t.Errorf("%q means something else than %q", got, raw)
		}
	})
}

func FuzzScanner(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"x"]}`, `"\u00`, `[[`, `1e+`, `{"a":1 "b"`, "\"\xc3\x28\"", `nul`, `{"":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := CheckJSON(raw)
		if err == nil && !json.Valid(raw) {
			t.Errorf("%q is accepted and no JSON", raw)
		}
		var syntax *SyntaxError
		if err != nil && (!errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > len(raw)) {
			t.Errorf("%q: %v", raw, err)
		}
	})
}

func TestB2_2_EmptyArguments(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", " ", "\n\t ", "null", " null\n", "{}", " {} "} {
		got, err := ParseArgs(text, false)
		if err != nil || string(got) != "{}" {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func TestB2_1_ArgumentsAreNotChanged(t *testing.T) {
	t.Parallel()
	const text = `{"n":9007199254740993, "m":1.10,"s":"<&>","u":"\u0041"}`
	if got, err := ParseArgs("\n"+text+"\n", false); err != nil || string(got) != text {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCase_ARGS_MalformedArgumentsNeverRun(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":1}{"b":2}`:                  `position 8: unexpected '{', want nothing after the value`,
		`{"a":1,}`:                        `position 8: unexpected '}', want a key in double quotes`,
		`{'a':1}`:                         `position 2: unexpected '\'', want a key in double quotes`,
		`[1]`:                             `must be an object, not an array`,
		`"x"`:                             `must be an object, not a string`,
		`NaN`:                             `position 1: unexpected 'N', want a value`,
		`{"a":` + strings.Repeat("[", 99): `nested too deeply`,
		`{"a":1,"a":2}`:                   `duplicate key "a"`,
		`{"a":"x`:                         `position 8: the text ends, want the end of the string`,
		"{\"a\":\"\xff\"}":                `invalid UTF-8`,
	} {
		got, err := ParseArgs(text, false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %s, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`{"a":1}`, `{"a":`, ""} {
		if got, err := ParseArgs(text, true); !errors.Is(err, ErrTruncated) {
			t.Errorf("cut %q: %s, %v", text, got, err)
		}
	}
}
