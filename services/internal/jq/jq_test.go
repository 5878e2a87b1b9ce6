package jq

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// run runs a program and waits for it, however busy the machine is.
func run(t *testing.T, source, input string) (string, error) {
	t.Helper()
	p, err := Compile(source)
	if err != nil {
		return "", err
	}
	p.patience = time.Minute
	out, err := p.Run(t.Context(), json.RawMessage(input))
	return string(out), err
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, input, want string }{
		{".refundId", `{"refundId":"rf-88"}`, `"rf-88"`},
		{"{orderId}", `{"orderId":"42","card":"4242"}`, `{"orderId":"42"}`},
		{".n", `{"n":9007199254740993}`, `9007199254740993`},
		{".n", `{"n":1.10}`, `1.10`},
		{".n", `{"n":1e400}`, `1e400`},
		{`.a[] | select(. > 1)`, `{"a":[1,2,3]}`, `2`},
		{`{type:"text",value:(.items|length|tostring)}`, `{"items":[1,2]}`, `{"type":"text","value":"2"}`},
		{`"<&>"`, `null`, `"<&>"`},
		{`false`, `{}`, `false`},
	} {
		got, err := run(t, c.source, c.input)
		if err != nil || got != c.want {
			t.Errorf("%s of %s = %s, %v, want %s", c.source, c.input, got, err, c.want)
		}
	}
}

func TestValuesByName(t *testing.T) {
	t.Parallel()
	p, err := Compile(`{a: ., b: $call.toolName}`, "call")
	if err != nil {
		t.Fatal(err)
	}
	p.patience = time.Minute
	out, err := p.Run(t.Context(), json.RawMessage(`1`), json.RawMessage(`{"toolName":"refund"}`))
	if err != nil || string(out) != `{"a":1,"b":"refund"}` {
		t.Errorf("got %s, %v", out, err)
	}
	if _, err := p.Run(t.Context(), json.RawMessage(`1`)); err == nil {
		t.Error("a program ran without a value that it names")
	}
}

func TestNothing(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"empty", "null", ".missing", ".[]"} {
		if got, err := run(t, source, `{}`); !errors.Is(err, ErrNothing) {
			t.Errorf("%s = %q, %v, want ErrNothing", source, got, err)
		}
	}
}

// Errors of programs quote no value: they are logged, and a program may be about what must not be.
func TestFailuresQuoteNothing(t *testing.T) {
	t.Parallel()
	const secret = "4242-4242"
	input := `{"card":"` + secret + `"}`
	for _, source := range []string{
		".card.x", ".card | error", "error(.card)", ".card + 1", ".card * 2", ".card | tonumber", ".card | fromjson",
		`.card | .[.]`, `.card | test("(")`, `.card | fromdate`, `.card | implode`,
	} {
		got, err := run(t, source, input)
		if err == nil {
			t.Errorf("%s gives %s", source, got)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the value: %v", source, err)
		}
	}
}

func TestRefusedPrograms(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		"{", "input", "inputs", "input_filename", "debug", "stderr", `include "m"; .`, `import "m" as m; .`, "$x", "nope", "env",
		"$ENV", "env.PATH", "halt", "halt_error", "now", "get_search_list", "def f: f; f", ". as $x | def f: f; f", "[def f: 1; f]",
		"repeat(.)", "until(false; .)", "while(true; .)", "combinations", "setpath([1]; 2)", `@base32d "\(input)"`, "weir_whole",
		".[1e8] = 1", ".[10000] = 1", ".[.n] = 1", "getpath([500000000]) = 1", ".a[.n:] = 1", "pick(.[500000000])", ".a += 1",
		".a *= 2", ". as [$a, {b: $c}] | input", `. as {("a" | input): $x} | $x`, ". as {$a: input} | 1", "if input then 1 else 2 end",
		"if . then 1 elif input then 3 else 2 end", "try input catch .", "reduce input as $i (1; 2)", "foreach .[] as $i (1; 2; input)",
		"label $out | input", "{a: input}", "{(input): 1}", `{"\(input)": 1}`, "[input]", "-input", ".a[input]", ".[input:1]",
		"(input)", "map(input)", "input?", "1 + input", "first(input)", "strftime(\"%Y\")", `format("csv")`, "tostream", "splits",
		`"` + strings.Repeat("x", MaxSource) + `"`, strings.Repeat("[", 4000), "modulemeta", "input_line_number", "builtins",
	} {
		if _, err := Compile(source); err == nil {
			t.Errorf("%.60s compiles", source)
		}
	}
	if _, err := Compile("$call", "call"); err != nil {
		t.Error(err)
	}
}

// Each of these would take all memory, or minutes, if one step of a program could be a large one.
func TestHostilePrograms(t *testing.T) {
	t.Parallel()
	shared := strings.Repeat("[.,.]|", 200) // is 2^200 values, and takes the memory of 200
	for _, source := range []string{
		`"x" * 2000000000`, `. as $x | 2000000000 * "x"`, "[range(1000000000)]", "last(range(1000000000000))",
		`[limit(10000000; range(1000000000))]`, `reduce range(1000) as $i ("x"; . + .)`, `reduce range(1000) as $i ([1]; . + .)`,
		`reduce range(1000) as $i (2; . * .)`, `reduce range(1000) as $i (1.5; . * .) | . == 1`,
		shared + ".", shared + "tojson", shared + "tostring", shared + `"\(.)"`, shared + `"a\("b\(.)")"`, shared + "@json",
		shared + `@base64 "\(.)"`, shared + ". == .", shared + ". < .", shared + "[.] - [.]", shared + "flatten", shared + "sort",
		shared + "[.,.] | sort_by(.)", shared + "unique", shared + "contains(.)", shared + "[.] | index([.])", shared + ". as $x | [$x] | .[[$x]]",
		shared + "add", shared + "join(\",\")", shared + "group_by(.)", shared + "walk(.)", shared + "[..] | length", shared + "[paths] | length",
		"[1,2] | sort_by(" + shared + ".)", "[1,2] | max_by(" + shared + ".)", "[1,2] | unique_by(" + shared + ".)", `{a: (` + shared + `.)} | .a |= tojson`,
		`[limit(12000; range(20000))] | join("x")`, `("x" | ` + strings.Repeat(". + . | ", 12) + `.) as $s | [range(9000)] | join($s)`,
		strings.Repeat("recurse | ", 300) + ".", `[.. | .. | .. | .. | ..] | length`, `"(a{1000}){1000}" as $r | "a" | test($r)`,
		`reduce range(100) as $i ("(a*)*"; . + .) as $r | "aaaaaaaaaaaaaaaaaaab" | test($r)`, `[range(20000)] - [range(20000)]`,
		`("x" | ` + strings.Repeat(". + . | ", 14) + `.) | [match("x"; "g")]`, `("x" | ` + strings.Repeat(". + . | ", 14) + `.) | gsub("x"; "yy")`,
	} {
		p, err := Compile(source)
		if err != nil {
			continue
		}
		out, err := p.Run(t.Context(), json.RawMessage(`[1,2,3]`))
		if err == nil && len(out) > 100 {
			t.Errorf("%.80s gives %d bytes", source, len(out))
		}
	}
}

func TestMasksAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	const input = `{"card":"4242424242424242","user":{"name":"Ada","email":"ada@example.org"},"items":[{"sku":"a","price":2.50},{"sku":"b","price":3}]}`
	for source, want := range map[string]string{
		`del(.card)`:                                                      `{"items":[{"price":2.50,"sku":"a"},{"price":3,"sku":"b"}],"user":{"email":"ada@example.org","name":"Ada"}}`,
		`.card[-4:]`:                                                      `"4242"`,
		`"card ending in \(.card[-4:])"`:                                  `"card ending in 4242"`,
		`.card |= gsub("\\d(?=)"; "*") | .card`:                           ``,
		`.card |= gsub("[0-9]"; "*") | .card`:                             `"****************"`,
		`.user.email = "hidden" | .user`:                                  `{"email":"hidden","name":"Ada"}`,
		`.user | with_entries(select(.key != "email"))`:                   `{"name":"Ada"}`,
		`[.items[] | {sku, price: (.price * 2)}]`:                         `[{"price":5,"sku":"a"},{"price":6,"sku":"b"}]`,
		`.items | map(.price) | add`:                                      `5.5`,
		`if .user.name == "Ada" then "known" else "new" end`:              `"known"`,
		`walk(if type == "string" then "…" else . end) | .card`:           `"…"`,
		`.missing // "none"`:                                              `"none"`,
		`.items[0].sku = .user.name | .items[0].sku`:                      `"Ada"`,
		`{user: {name: .user.name}, n: (.items | length)}`:                `{"n":2,"user":{"name":"Ada"}}`,
		`[.items[] | select(.price > 2.6) | .sku]`:                        `["b"]`,
		`reduce .items[] as $i (0; . + $i.price)`:                         `5.5`,
		`. as {user: {$name}} | $name`:                                    `"Ada"`,
		`[.items[].sku] | sort | join(", ")`:                              `"a, b"`,
		`(.user | keys | first) + "!"`:                                    `"email!"`,
		`try error("x") catch "caught"`:                                   `"caught"`,
		`(.items[] | select(.sku == "a") | .price) = 0 | .items[0].price`: `0`,
		`.user | @base64 "\(.name)"`:                                      `"QWRh"`,
		`[paths(type == "number")] | length`:                              `2`,
		`pick(.user.name)`:                                                `{"user":{"name":"Ada"}}`,
	} {
		got, err := run(t, source, input)
		if want == "" && err == nil || want != "" && (err != nil || got != want) {
			t.Errorf("%s = %s, %v, want %s", source, got, err, want)
		}
	}
}

func TestInputsAreBounded(t *testing.T) {
	t.Parallel()
	p, err := Compile(".")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), json.RawMessage(`"`+strings.Repeat("x", MaxInput)+`"`)); err == nil {
		t.Error("an input over the limit was taken")
	}
	if _, err := p.Run(t.Context(), json.RawMessage(`{`)); err == nil {
		t.Error("an input that is no JSON was taken")
	}
}

func FuzzProgram(f *testing.F) {
	f.Add(".refundId", `{"refundId":"rf-88"}`)
	f.Add("{a: .b} | .a", `{"b":[1,2.50]}`)
	f.Fuzz(func(t *testing.T, source, input string) {
		p, err := Compile(source)
		if err != nil {
			return
		}
		out, err := p.Run(t.Context(), json.RawMessage(input))
		if err == nil && !json.Valid(out) {
			t.Errorf("%q of %q gives %q, which is no JSON", source, input, out)
		}
	})
}
