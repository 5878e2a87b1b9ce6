package lru

import "testing"

func TestCacheDropsWhatWasNotUsed(t *testing.T) {
	t.Parallel()
	c := New[string, int](3)
	c.Put("a", 1, 1)
	c.Put("b", 2, 1)
	c.Put("c", 3, 1)
	c.Get("a")
	c.Put("d", 4, 1)
	if _, ok := c.Get("b"); ok {
		t.Error("b was not used for longest and is still there")
	}
	for _, k := range []string{"a", "c", "d"} {
		if _, ok := c.Get(k); !ok {
			t.Errorf("%s is gone", k)
		}
	}
}

func TestCacheCountsCost(t *testing.T) {
	t.Parallel()
	c := New[string, int](10)
	c.Put("big", 1, 11)
	if c.Len() != 0 {
		t.Error("an entry over the limit was kept")
	}
	c.Put("a", 1, 6)
	c.Put("a", 2, 4)
	c.Put("b", 3, 6)
	if v, ok := c.Get("a"); !ok || v != 2 || c.Len() != 2 {
		t.Errorf("a = %d, %v, %d entries; want 2, true, 2: a replaced entry costs nothing", v, ok, c.Len())
	}
	c.Remove("a")
	if c.Len() != 1 {
		t.Error("a removed entry is still counted")
	}
}
