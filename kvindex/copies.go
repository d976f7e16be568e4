package kvindex

// copyCounts counts the physical copies of blocks that a slot holds more than
// once in a tier. Engines store a block again when two requests compute it at
// the same time, or when a fully cached prompt needs its last token computed,
// and remove each copy singly. Only counts above one are kept.
type copyCounts struct {
	n   [Tiers]map[uint64]uint32
	max int // names in each tier
}

// add notes one more copy of a block that is held.
func (c *copyCounts) add(t Tier, name uint64) {
	if n := c.n[t][name]; n > 0 {
		c.n[t][name] = n + 1
		return
	}
	c.set(t, name, 2)
}

// set notes the number of copies of a block that is held.
func (c *copyCounts) set(t Tier, name uint64, n uint32) {
	if n <= 1 {
		delete(c.n[t], name)
		return
	}
	if _, ok := c.n[t][name]; !ok && len(c.n[t]) >= c.max {
		return
	}
	if c.n[t] == nil {
		c.n[t] = map[uint64]uint32{}
	}
	c.n[t][name] = n
}

// release takes one copy away and reports whether another is left.
func (c *copyCounts) release(t Tier, name uint64) bool {
	n := c.n[t][name]
	if n < 2 {
		return false
	}
	c.set(t, name, n-1)
	return true
}

func (c *copyCounts) drop(t Tier, name uint64) { delete(c.n[t], name) }

func (c *copyCounts) len() (n int) {
	for _, m := range c.n {
		n += len(m)
	}
	return n
}

// clear forgets all counts and gives the memory back.
func (c *copyCounts) clear() { c.n = [Tiers]map[uint64]uint32{} }
