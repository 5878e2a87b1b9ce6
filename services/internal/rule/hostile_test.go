package rule_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirkeeper/weir/services/internal/rule"
)

func chained(seed, step string, n int) string { return seed + strings.Repeat(step, n) }

// hostile are expressions that try to take time or memory, each with the limit that ends it. args.text has
// 200,000 bytes, args.list 1,000 numbers, args.deep 60 levels.
var hostile = []struct{ name, expr, ends string }{
	// refused when compiled
	{"types nested deep", strings.Repeat("[", 60) + "1" + strings.Repeat("]", 60) + " == []", "nested deeper"},
	{"maps nested deep", strings.Repeat("{'a':", 60) + "1" + strings.Repeat("}", 60) + " == {}", "nested deeper"},
	{"loops nested deep", strings.Repeat("[1].all(x, ", 60) + "true" + strings.Repeat(")", 60), "nested deeper"},
	{"loops chained", chained(`[[1]]`, ".map(a,{'a':a,'b':a})", 100) + " == []", "nested deeper"},
	{"parentheses", strings.Repeat("(", 2000) + "true" + strings.Repeat(")", 2000), "recursion limit"},
	{"selections", "args" + strings.Repeat(".a", 2000) + " == 1", "recursion depth"},
	{"additions", strings.Repeat("args.text+", 400) + `"" == ""`, "recursion depth"},
	{"large pattern", `args.text.matches("(a{1,100}){1,10}")`, "the patterns take"},
	{"many patterns", strings.Repeat(`args.text.matches("a{300}") && `, 9) + "true", "the patterns take"},
	{"pattern of the model", `args.text.matches(args.text)`, "must be written as text"},
	{"digits of a double", `"%.999999999f".format([1.0]) == ""`, "precision"},
	// ended by what its values would take
	{"texts doubled", chained(`[args.text]`, ".map(a,a+a)", 6) + `[0] == ""`, "limit is exceeded"},
	{"lists doubled", chained(`[args.list]`, ".map(a,a+a)", 6) + `[0].size() > 3`, "size limit"},
	{"lists shared", chained(`[args.list]`, ".map(a,[a,a,a,a,a])", 4) + ` == []`, "size limit"},
	{"maps shared", chained(`[args.list]`, ".map(a,{'a':a,'b':a,'c':a,'d':a})", 3) + ` == []`, "size limit"},
	{"lists squared", `args.list.map(x, args.list).size() > 0`, "size limit"},
	{"texts collected", `args.list.map(x, args.text).join("") == ""`, "size limit"},
	{"loop over too much", `args.wide.all(x, x == 1)`, "size limit"},
	// refused before the one step that would take it
	{"replacement", `args.text.replace("a", args.text) == ""`, "too large for this function"},
	{"replacement of nothing", `args.text.replace("", "aaaaaaaaaaaaa") == ""`, "too large for this function"},
	{"separator", `args.list.map(x, "").join(args.text) == ""`, "too large for this function"},
	{"formatted", `"%s%s%s%s%s%s%s".format([args.text,args.text,args.text,args.text,args.text,args.text,args.text]) == ""`, "too large for this function"},
	{"naive search", `args.text.indexOf(args.text.substring(199900)) > 0`, "too large for this function"},
	{"naive search from the end", `args.text.lastIndexOf(args.text.substring(199900)) > 0`, "too large for this function"},
	{"wide pattern", `args.text.matches("(a?){30}(a|b){30}z")`, "too large for this function"},
	// ended by the cost
	{"loops in loops", `args.list.all(x, args.list.all(y, args.list.all(z, x+y+z >= 0)))`, "cost limit"},
	{"search in a loop", `args.list.all(x, x in args.list)`, "cost limit"},
	{"equality in a loop", `args.list.all(x, args.list == args.list)`, "cost limit"},
	{"pattern in a loop", `args.list.all(x, !args.text.matches("b$"))`, "cost limit"},
	{"copy in a loop", `args.list.all(x, args.text.reverse() != "")`, "cost limit"},
	{"text indexed in a loop", `args.list.all(x, args.text.charAt(x) == "a")`, "cost limit"},
	{"conversion in a loop", `args.list.all(x, bytes(args.text) != b"")`, "cost limit"},
	{"equalities", strings.Repeat(`args.wide == args.wide && `, 100) + "true", "cost limit"},
	{"splits", strings.Repeat(`args.text.split("").size() > 5 && `, 100) + "true", "cost limit"},
	// harmless although they look otherwise
	{"backtracking", `args.text.matches("(a*)*b")`, ""},
	{"negations", strings.Repeat("!", 4000) + "true", ""},
	{"a deep value", `args.deep == args.deep`, ""},
	{"a long loop", `args.list.filter(x, x > 100).size() > 1`, ""},
}

func hostileInput() rule.Input {
	list := make([]any, 1000)
	for i := range list {
		list[i] = json.Number(strconv.Itoa(i))
	}
	var deep any = "x"
	for range 60 {
		deep = []any{deep}
	}
	return rule.Input{Args: map[string]any{
		"text": strings.Repeat("a", 200_000), "list": list, "deep": deep, "wide": make([]any, 50_000),
	}}
}

func TestHostileExpressionsEnd(t *testing.T) {
	t.Parallel()
	in := hostileInput()
	for _, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // in it no deadline passes: the limits alone must do
				ok, err := false, error(nil)
				p, err := rule.Compile(tc.expr)
				if err == nil {
					ok, err = p.Eval(t.Context(), in)
				}
				switch {
				case tc.ends == "" && err != nil:
					t.Errorf("error %v, want none", err)
				case tc.ends != "" && (ok || err == nil || !strings.Contains(err.Error(), tc.ends)):
					t.Errorf("%v, %v, want an error with %q", ok, err, tc.ends)
				}
			})
		})
	}
}
