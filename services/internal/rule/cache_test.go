package rule_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weirkeeper/weir/services/internal/rule"
)

func TestCacheKeepsProgramsAndRefusals(t *testing.T) {
	t.Parallel()
	c := rule.NewCache(2)
	a, err := c.Get(`args.a == 1`)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := c.Get(`args.a == 1`); again != a {
		t.Error("compiled twice")
	}
	_, wrong := c.Get(`args.a ==`)
	if _, again := c.Get(`args.a ==`); wrong == nil || !errors.Is(again, wrong) {
		t.Errorf("refusals differ: %v, %v", wrong, again)
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := rule.NewCache(2)
	get := func(expr string) *rule.Program {
		t.Helper()
		p, err := c.Get(expr)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := get(`args.a == 1`), get(`args.b == 1`)
	get(`args.a == 1`) // b is now the one not used for longest
	get(`args.c == 1`)
	if c.Len() != 2 {
		t.Errorf("%d kept, want 2", c.Len())
	}
	if get(`args.a == 1`) != a {
		t.Error("a was dropped although it was used later than b")
	}
	if get(`args.b == 1`) == b {
		t.Error("b was kept")
	}
	if _, err := c.Get(strings.Repeat(" ", 5000) + "true"); err == nil || c.Len() != 2 {
		t.Errorf("a text too long is kept: %v, %d", err, c.Len())
	}
	if small := rule.NewCache(0); small.Len() != 0 {
		t.Error("a new cache is not empty")
	} else if _, err := small.Get("true"); err != nil || small.Len() != 1 {
		t.Errorf("a cache of size 0 keeps %d, %v", small.Len(), err)
	}
}

func TestCacheAndProgramsAreShared(t *testing.T) {
	t.Parallel()
	c := rule.NewCache(3)
	in := refund(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				p, err := c.Get(fmt.Sprintf(`args.items.exists(i, i.price > %d)`, (i+g)%5))
				if err != nil {
					t.Error(err)
					return
				}
				if ok, err := p.Eval(t.Context(), in); !ok || err != nil {
					t.Errorf("%s = %v, %v", p.Expr(), ok, err)
				}
			}
		})
	}
	wg.Wait()
}
