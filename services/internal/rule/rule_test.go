package rule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirkeeper/weir/services/internal/rule"
)

// object decodes as the gate does.
func object(tb testing.TB, text string) map[string]any {
	tb.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		tb.Fatalf("decode %s: %v", text, err)
	}
	return out
}

func compile(tb testing.TB, expr string) *rule.Program {
	tb.Helper()
	p, err := rule.Compile(expr)
	if err != nil {
		tb.Fatalf("compile %s: %v", expr, err)
	}
	return p
}

// refund is a call that most tests judge.
func refund(tb testing.TB) rule.Input {
	tb.Helper()
	return rule.Input{
		Tool: object(tb, `{"id":"issue_refund","version":"3","effect":"effectful",
			"annotations":{"destructiveHint":true,"readOnlyHint":false}}`),
		Args: object(tb, `{"orderId":"ord-1042","amount":612.50,"count":500,"note":null,"flag":true,
			"to":{"country":"DE","tags":["vip","eu"]},"items":[{"price":10},{"price":20.5}]}`),
		Agent:   object(tb, `{"id":"support"}`),
		Run:     object(tb, `{"id":"r7Kq2","step":1}`),
		Context: object(tb, `{"tenant":"acme"}`),
	}
}

func TestB7_1ExpressionsSeeTheFiveVariables(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		expr string
		want bool
	}{
		{`args.amount > 100`, true},
		{`args.amount > 612.5`, false},
		{`args.amount >= 612.5`, true},
		{`args.count > 100.0`, true},
		{`args.count == 500.0`, true},
		{`args.count in [1.0, 500.0]`, true},
		{`args.amount < 613 && 612 < args.amount`, true},
		{`args.count + 1 == 501`, true},
		{`args.amount * 2.0 == 1225.0`, true},
		{`args.to.country == "DE"`, true},
		{`args["to"]["country"] in ["FR", "IT"]`, false},
		{`"vip" in args.to.tags`, true},
		{`has(args.missing)`, false},
		{`has(args.note) && args.note == null`, true},
		{`args.flag`, true},
		{`!has(args.missing) || args.missing > 3`, true},
		{`args.items.exists(i, i.price > 20)`, true},
		{`args.items.all(i, i.price > 20)`, false},
		{`args.items.map(i, i.price).filter(p, p < 15).size() == 1`, true},
		{`tool.id == "issue_refund" && tool.effect != "read_only"`, true},
		{`has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint`, true},
		{`agent.id.startsWith("supp")`, true},
		{`run.step < 2 && run.id == "r7Kq2"`, true},
		{`context.tenant == "acme"`, true},
		{`args.orderId.matches("^ord-[0-9]+$")`, true},
		{`args.orderId.upperAscii().replace("ORD-", "") == "1042"`, true},
		{`args.orderId.split("-")[1].size() == 4`, true},
		{`["a", "b"].join(",").indexOf("b") == 2 && "aba".lastIndexOf("a") == 2`, true},
		{`"%s-%d".format([args.to.country, args.count]) == "DE-500"`, true},
		{"true // a comment", true},
	} {
		got, err := compile(t, tc.expr).Eval(t.Context(), refund(t))
		if err != nil || got != tc.want {
			t.Errorf("%s = %v, %v, want %v", tc.expr, got, err, tc.want)
		}
	}
}

// faults are expressions that compile and cannot be evaluated for the refund: none may let a call pass.
var faults = []struct{ expr, message string }{
	{`args.missing > 3`, "1:5: no such key: missing"},
	{`args.to.missing.deeper == 1`, "no such key: missing"},
	{`!args.missing`, "no such key: missing"},
	{`context.missing == "x"`, "no such key: missing"},
	{`args[args.orderId] == 1`, "no such key"},
	{`has(args.orderId.country)`, "no such key: country"},
	{`args.items[9].price > 1`, "index out of range"},
	{`args.amount`, "the expression gave double, not bool"},
	{`args.orderId`, "the expression gave string, not bool"},
	{`args.note`, "the expression gave null_type, not bool"},
	{`args.items`, "the expression gave list, not bool"},
	{`args.orderId > 3`, "no such overload"},
	{`args.amount + 1 > 3`, "no such overload"},
	{`args.note.x == 1`, "no such key: x"},
	{`args.orderId && true`, "no such overload"},
	{`args.count / 0 == 1`, "division by zero"},
	{`args.count % 0 == 1`, "modulus by zero"},
	{`args.count * 9223372036854775807 > 0`, "integer overflow"},
	{`int(args.orderId) > 3`, "type conversion error"},
	{`args.items.all(i, i.missing > 3)`, "no such key: missing"},
	{`[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, ` +
		`[1,2,3,4,5,6,7,8].all(e, a + b + c + d + e > 0)))))`, "the cost limit is exceeded"},
}

func TestB7_8FaultsAreErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFaults) // in it no deadline passes: each fault has its own error
}

func testFaults(t *testing.T) {
	for _, tc := range faults {
		got, err := compile(t, tc.expr).Eval(t.Context(), refund(t))
		if got || err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s = %v, %v, want an error with %q", tc.expr, got, err, tc.message)
		}
		if _, ok := errors.AsType[*rule.Error](err); !ok {
			t.Errorf("%s: error is %T", tc.expr, err)
		}
	}
}

func TestB7_8ErrorsTellNoValues(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	in := rule.Input{Args: map[string]any{"key": secret, "list": []any{secret}, "map": map[string]any{"a": secret}}}
	for _, expr := range []string{
		`args[args.key] == 1`, `int(args.key) == 1`, `timestamp(args.key) == timestamp(0)`, `duration(args.key) > duration("1s")`,
		`args.key.substring(99) == ""`, `args.map[args.key] == 1`, `args.list[args.key] == 1`, `bool(args.key)`,
		`args.key`, `args.list`, `args.map`, `args.key.charAt(99) == ""`, `"%d".format([args.key]) == ""`,
	} {
		_, err := compile(t, expr).Eval(t.Context(), in)
		if err == nil {
			t.Errorf("%s: no error", expr)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error tells a value: %v", expr, err)
		}
	}
}

func TestContextEndsEvaluation(t *testing.T) {
	t.Parallel()
	p := compile(t, `args.items.all(i, i.price > 0)`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ok, err := p.Eval(ctx, refund(t)); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, %v", ok, err)
	}
	ctx, cancel = context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if ok, err := p.Eval(ctx, refund(t)); ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past its deadline: %v, %v", ok, err)
	}
	if ok, err := compile(t, `true`).Eval(ctx, refund(t)); ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past its deadline, without a loop: %v, %v", ok, err)
	}
}

// endsWhenAsked is a context that ends between the first and the second look at it.
type endsWhenAsked struct {
	context.Context
	looked bool
}

func (c *endsWhenAsked) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (c *endsWhenAsked) Err() error {
	if !c.looked {
		c.looked = true
		return nil
	}
	return context.Canceled
}

func TestContextEndsALoop(t *testing.T) {
	t.Parallel()
	ctx := &endsWhenAsked{Context: t.Context()}
	ok, err := compile(t, `args.list.all(x, x >= 0)`).Eval(ctx, hostileInput())
	if ok || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestReadsAnnotations(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]bool{
		`tool.id == "a" && has(tool.effect)`:         false,
		`args.tool == "a"`:                           false,
		`tool.annotations.readOnlyHint`:              true,
		`has(tool.annotations)`:                      true,
		`tool["id"] == "a"`:                          true, // not told apart
		`[tool].exists(t, t.id == "a")`:              true,
		`args.items.exists(tool, tool.price > 1000)`: false,
		`.tool.annotations.readOnlyHint`:             true,
	} {
		if got := compile(t, expr).ReadsAnnotations(); got != want {
			t.Errorf("%s: %v, want %v", expr, got, want)
		}
	}
}

func TestReadsOnlyArgs(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]bool{
		`args.amount < 100.0`:                      true,
		`args.items.all(i, i.price < args.limit)`:  true,
		`args.run == "x" && has(args.tool.id)`:     true,
		`true`:                                     true,
		`!has(tool.annotations)`:                   false,
		`args.amount < 100.0 || agent.id == "a"`:   false,
		`run.thread == args.thread`:                false,
		`context == {}`:                            false,
		`args.items.exists(i, i == .context.item)`: false,
		`args.items.exists(run, run.price > 1000)`: false, // not told apart
	} {
		if got := compile(t, expr).ReadsOnlyArgs(); got != want {
			t.Errorf("%s: %v, want %v", expr, got, want)
		}
	}
}

func TestInputMustBeObjects(t *testing.T) {
	t.Parallel()
	p := compile(t, `args.size() == 0`)
	for _, args := range []any{"text", 3, []any{1}, true, json.RawMessage(`{}`)} {
		if ok, err := p.Eval(t.Context(), rule.Input{Args: args}); ok || err == nil {
			t.Errorf("args %T: %v, %v", args, ok, err)
		}
	}
	if ok, err := p.Eval(t.Context(), rule.Input{}); !ok || err != nil {
		t.Errorf("no args: %v, %v", ok, err)
	}
	if ok, err := p.Eval(t.Context(), rule.Input{Args: map[string]any(nil)}); !ok || err != nil {
		t.Errorf("nil args: %v, %v", ok, err)
	}
}

func TestCompileErrorsNamePlaceAndFault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ expr, message string }{
		{``, "1:1: the expression is empty"},
		{" \n\t", "1:1: the expression is empty"},
		{`args.amount >`, "1:14: Syntax error"},
		{"args.amount > 3 &&\n  amount < 4", "2:3: undeclared reference to 'amount'"},
		{`args.amount + 1`, "1:1: the expression gives"},
		{`"yes"`, "1:1: the expression gives string, not bool"},
		{`1`, "1:1: the expression gives int, not bool"},
		{`null`, "1:1: the expression gives null"},
		{`args`, "1:1: the expression gives map(string, dyn), not bool"},
		{`args > 3`, "1:6: found no matching overload"},
		{`agent == "support"`, "1:7: found no matching overload"},
		{`args.x.matches("[")`, "1:16: error parsing regexp"},
		{`args.x.matches(args.y)`, "1:20: the pattern of matches must be written as text"},
		{`args.x.matches("a" + "b")`, "1:20: the pattern of matches must be written as text"},
		{`matches(args.x, args.y)`, "1:21: the pattern of matches must be written as text"},
		{`args.x.frobnicate()`, "1:18: undeclared reference to 'frobnicate'"},
		{`duration("x") > duration("1s")`, "1:10: invalid duration"},
		{"true\xff", "not valid UTF-8"},
		{strings.Repeat("true || ", 600) + "true", "has 4804 bytes, more than 4096"},
	} {
		p, err := rule.Compile(tc.expr)
		if p != nil || err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%.40q: %v, want %q", tc.expr, err, tc.message)
			continue
		}
		typed, ok := errors.AsType[*rule.Error](err)
		if !ok || strings.Contains(typed.Message, "\n") || len(typed.Message) > 300 {
			t.Errorf("%.40q: error is %T %q", tc.expr, err, err)
		}
	}
}

func TestProgramKeepsItsText(t *testing.T) {
	t.Parallel()
	const expr = `args.amount > 100.0`
	if got := compile(t, expr).Expr(); got != expr {
		t.Errorf("Expr() = %q, want %q", got, expr)
	}
}

// TestEvaluationAllocations holds the budget of a rule evaluation: 10. A bigger rule takes about three more
// for each comparison (CEL boxes operands and doubles); a loop takes about 30, for its context and limits.
func TestEvaluationAllocations(t *testing.T) {
	in, ctx := refund(t), t.Context()
	for expr, budget := range map[string]float64{
		`args.amount > 100`:                          10,
		`args.amount > 100 && agent.id == "support"`: 10,
		`args.orderId.matches("^ord-[0-9]+$")`:       10,
		`args.count in [1, 2, 500]`:                  10,
		`has(args.flag) && args.flag`:                10,
		`args.amount > 100 && args.count < 501 && !(tool.id in ["a", "b"]) && context.tenant == "acme"`: 20,
		`args.items.exists(i, i.price > 20)`: 60,
	} {
		p := compile(t, expr)
		got := testing.AllocsPerRun(200, func() {
			if ok, err := p.Eval(ctx, in); !ok || err != nil {
				t.Fatalf("%s = %v, %v", expr, ok, err)
			}
		})
		if got > budget {
			t.Errorf("%s takes %v allocations, more than %v", expr, got, budget)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, tc := range faults {
		f.Add(tc.expr)
	}
	for _, h := range hostile {
		f.Add(h.expr)
	}
	f.Add(`args.amount > 100 && tool.annotations.readOnlyHint`)
	f.Add("args.`x-y` == r\"\\\" || b'1' == b\"2\"")
	in := refund(f)
	f.Fuzz(func(t *testing.T, expr string) {
		p, err := rule.Compile(expr)
		_, typed := errors.AsType[*rule.Error](err)
		switch {
		case err != nil && !typed:
			t.Fatalf("%q: error is %T: %v", expr, err, err)
		case (p == nil) != (err != nil):
			t.Fatalf("%q: %v, %v", expr, p, err)
		case err != nil:
			return
		}
		first, err := p.Eval(t.Context(), in)
		if first && err != nil {
			t.Fatalf("%q: true with %v", expr, err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return // the last resort depends on the machine
		}
		if again, errAgain := p.Eval(t.Context(), in); again != first || (err == nil) != (errAgain == nil) {
			t.Fatalf("%q: %v, %v, then %v, %v", expr, first, err, again, errAgain)
		}
	})
}

func ExampleProgram_Eval() {
	p, err := rule.Compile(`args.amount > 100 && agent.id == "support"`)
	if err != nil {
		fmt.Println(err)
		return
	}
	in := rule.Input{
		Args:  map[string]any{"amount": json.Number("612.50")},
		Agent: map[string]any{"id": "support"},
	}
	fmt.Println(p.Eval(context.Background(), in))
	fmt.Println(p.Eval(context.Background(), rule.Input{}))
	// Output:
	// true <nil>
	// false 1:5: no such key: amount
}
