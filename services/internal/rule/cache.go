package rule

import (
	"container/list"
	"sync"
)

// Cache keeps compiled expressions by their source text, so it cannot be stale. It is bounded, drops what was
// not used for longest, and keeps refusals too: a wrong expression that comes with every request is compiled
// once. Safe for concurrent use. A miss costs a compilation, never correctness.
type Cache struct {
	size int

	mu     sync.Mutex
	recent *list.List // of *cached, latest first
	byExpr map[string]*list.Element
}

type cached struct {
	expr    string
	program *Program
	err     error
}

// NewCache makes a cache of at most size expressions; below 1 it is 1.
func NewCache(size int) *Cache {
	return &Cache{size: max(size, 1), recent: list.New(), byExpr: make(map[string]*list.Element)}
}

// Get gives the program of an expression, or the *Error why there is none.
func (c *Cache) Get(expr string) (*Program, error) {
	if err := checkSource(expr); err != nil {
		return nil, err // also keeps long texts out of memory
	}
	if e := c.lookup(expr); e != nil {
		return e.program, e.err
	}
	// Not under the lock: others must not wait for a compilation. Two at once are wasted work only.
	p, err := Compile(expr)
	e := c.add(&cached{expr: expr, program: p, err: err})
	return e.program, e.err
}

// Len gives the number of expressions kept.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Len()
}

func (c *Cache) lookup(expr string) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byExpr[expr]
	if !ok {
		return nil
	}
	c.recent.MoveToFront(e)
	return e.Value.(*cached)
}

// add keeps an entry, or returns the one that another goroutine has added meanwhile.
func (c *Cache) add(n *cached) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byExpr[n.expr]; ok {
		return e.Value.(*cached)
	}
	c.byExpr[n.expr] = c.recent.PushFront(n)
	for c.recent.Len() > c.size {
		oldest := c.recent.Back()
		c.recent.Remove(oldest)
		delete(c.byExpr, oldest.Value.(*cached).expr)
	}
	return n
}
