// Package lru is a bounded cache. What it holds is keyed by content or by sequence, so an entry is never stale: a miss
// costs reads, never correctness.
package lru

import (
	"container/list"
	"sync"
)

// Cache keeps the entries that were used last, up to a total cost. Its methods may be called from any goroutine.
type Cache[K comparable, V any] struct {
	mu    sync.Mutex
	limit int
	cost  int
	order *list.List // front: used last
	items map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
	cost  int
}

// New makes a cache that holds entries of a total cost of at most limit.
func New[K comparable, V any](limit int) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, order: list.New(), items: map[K]*list.Element{}}
}

// Get returns the value of a key.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[key]
	if !ok {
		var zero V
		return zero, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry[K, V]).value, true
}

// Put stores a value at a cost, and drops what was not used for longest until the total fits. A value that alone is
// over the limit is not kept.
func (c *Cache[K, V]) Put(key K, value V, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(key)
	if cost > c.limit {
		return
	}
	c.items[key] = c.order.PushFront(&entry[K, V]{key, value, cost})
	c.cost += cost
	for c.cost > c.limit {
		c.remove(c.order.Back().Value.(*entry[K, V]).key)
	}
}

// Remove drops a key.
func (c *Cache[K, V]) Remove(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(key)
}

// Len is the number of entries.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items)
}

func (c *Cache[K, V]) remove(key K) {
	e, ok := c.items[key]
	if !ok {
		return
	}
	c.order.Remove(e)
	delete(c.items, key)
	c.cost -= e.Value.(*entry[K, V]).cost
}
