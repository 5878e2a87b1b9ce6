package rule_test

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirkeeper/weir/services/internal/rule"
)

func TestNumbersMeanTheirValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ number, expr string }{
		{"500", `args.n == 500 && args.n > 100.0 && type(args.n) == int`},
		{"612.50", `args.n > 100 && args.n == 612.5 && type(args.n) == double`},
		{"-3", `args.n < 0 && args.n < -2.5`},
		{"100.00", `args.n == 100 && args.n % 7 == 2`},
		{"1e2", `args.n == 100`},
		{"1.5E+1", `args.n == 15`},
		{"-0", `args.n == 0`},
		{"-0.0e5", `args.n == 0`},
		{"0.1", `args.n == 0.1`},
		{"1e-300", `args.n > 0`},
		{"9007199254740993", `args.n == 9007199254740993 && args.n != 9007199254740992`},
		{"9007199254740993.0", `args.n == 9007199254740993 && args.n != 9007199254740992`},
		{"9007199254740993e0", `args.n != 9007199254740992`},
		{"9223372036854775807", `args.n == 9223372036854775807`},
		{"-9223372036854775808", `args.n == -9223372036854775808`},
		{"9.223372036854775807e18", `args.n == 9223372036854775807`},
		{"9007199254740993.5", `args.n > 100`},
	} {
		for _, wrap := range []func(any) any{
			func(n any) any { return n },
			func(n any) any { return []any{map[string]any{"n": n}}[0].(map[string]any)["n"] },
		} {
			in := rule.Input{Args: map[string]any{"n": wrap(json.Number(tc.number))}}
			if ok, err := compile(t, tc.expr).Eval(t.Context(), in); !ok || err != nil {
				t.Errorf("%s: %s = %v, %v", tc.number, tc.expr, ok, err)
			}
		}
	}
}

func TestNumbersWithoutExactFormAreErrors(t *testing.T) {
	t.Parallel()
	for _, n := range []any{
		json.Number("9223372036854775808"), json.Number("-9223372036854775809"), json.Number("1e19"),
		json.Number("123456789012345678901234567890"), json.Number("1e400"), json.Number("-1e400"),
		json.Number("1e-400"), json.Number(""), json.Number("NaN"), json.Number("Inf"), json.Number("0x10"),
		json.Number("1_000"), json.Number("1.2.3"), json.Number("--1"), json.Number(strings.Repeat("1", 500)),
		json.Number("0." + strings.Repeat("1", 500)), math.NaN(), math.Inf(1), uint64(1), float32(1),
		json.RawMessage("1"),
		struct{}{},
		map[int]any{},
	} {
		nested := map[string]any{"x": []any{map[string]any{"y": n}}, "ok": true}
		for _, expr := range []string{
			`args.x[0].y > 0`, `args.ok`, `true || args.ok`, `args.x[0].y > 0 || args.ok`, `1 in args.x || args.ok`,
			`args.x.exists(e, e.y == 1) || args.ok`, `args.size() > 0`, `args == args`,
		} {
			ok, err := compile(t, expr).Eval(t.Context(), rule.Input{Args: nested})
			// An expression that never looks at the arguments has no reason to fail.
			if looks := expr != `true || args.ok`; looks && (ok || err == nil) {
				t.Errorf("%T %v: %s = %v, %v, want an error", n, n, expr, ok, err)
			}
		}
	}
}

func TestFaultInOneVariableLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	in := refund(t)
	in.Context = map[string]any{"n": json.Number("1e400")}
	if ok, err := compile(t, `args.amount > 100`).Eval(t.Context(), in); !ok || err != nil {
		t.Errorf("without the variable: %v, %v", ok, err)
	}
	if ok, err := compile(t, `args.amount > 100 || context.n > 1`).Eval(t.Context(), in); !ok || err != nil {
		t.Errorf("not evaluated: %v, %v", ok, err)
	}
	if ok, err := compile(t, `context.n > 1 || args.amount > 100`).Eval(t.Context(), in); ok || err == nil {
		t.Errorf("evaluated first: %v, %v", ok, err)
	}
}

func TestNestingIsBounded(t *testing.T) {
	t.Parallel()
	var v any = "x"
	for range 200 {
		v = map[string]any{"a": []any{v}}
	}
	ok, err := compile(t, `has(args.a)`).Eval(t.Context(), rule.Input{Args: map[string]any{"a": v}})
	if ok || err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestGoValuesConvert(t *testing.T) {
	t.Parallel()
	in := rule.Input{Run: map[string]any{
		"int": 3, "int64": int64(1 << 60), "float": 1.5, "strings": []string{"a", "b"}, "nil": nil,
	}}
	const expr = `run.int == 3 && run.int64 == 1152921504606846976 && run.float == 1.5 && "b" in run.strings && run.nil == null`
	if ok, err := compile(t, expr).Eval(t.Context(), in); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// TestComparisonsAgreeWithArithmetic compares what rules say about numbers with what Go says.
func TestComparisonsAgreeWithArithmetic(t *testing.T) {
	t.Parallel()
	less := compile(t, `args.a < args.b`)
	equal := compile(t, `args.a == args.b`)
	rapid.Check(t, func(rt *rapid.T) {
		a := rapid.Int64Range(-1<<50, 1<<50).Draw(rt, "a")
		b := rapid.Int64Range(-1<<50, 1<<50).Draw(rt, "b")
		if rapid.Bool().Draw(rt, "near") {
			b = a + rapid.Int64Range(-1, 1).Draw(rt, "by")
		}
		spell := func(n int64, as string) json.Number {
			switch as {
			case "int":
				return json.Number(strconv.FormatInt(n, 10))
			case "decimal":
				return json.Number(strconv.FormatInt(n, 10) + ".0")
			default:
				return json.Number(strconv.FormatFloat(float64(n), 'e', -1, 64))
			}
		}
		how := rapid.SampledFrom([]string{"int", "decimal", "exponent"})
		in := rule.Input{Args: map[string]any{"a": spell(a, how.Draw(rt, "as")), "b": spell(b, how.Draw(rt, "as"))}}
		if got, err := less.Eval(t.Context(), in); err != nil || got != (a < b) {
			rt.Errorf("%v: a < b is %v, %v", in.Args, got, err)
		}
		if got, err := equal.Eval(t.Context(), in); err != nil || got != (a == b) {
			rt.Errorf("%v: a == b is %v, %v", in.Args, got, err)
		}
	})
}
