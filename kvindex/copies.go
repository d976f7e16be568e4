package kvindex

import "slices"

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

// aliases are the other names of blocks whose engine hash was taken when they
// came: some engines give one hash to equal tokens under two adapters or salts.
// The second block is kept under a name made of the engine's hash and its own.
type aliases struct {
	of map[uint64][]uint64 // engine hash -> names made for it
	n  int
	// scopes is set once the slot holds blocks of another scope than the plain
	// one: only then can two blocks have one engine hash, and only then is it
	// worth a look-up for each block.
	scopes bool
}

const (
	maxAliases = 1 << 16 // names in all; more conflicts are refused
	maxAliasOf = 8       // names of one engine hash
)

// find returns the name that was made for a block, if one was.
func (a *aliases) find(name, hash uint64) (uint64, bool) {
	if a.n == 0 {
		return 0, false
	}
	made := aliasName(name, hash)
	return made, slices.Contains(a.of[name], made)
}

// add makes the name of a block that has none. It reports false when there is no
// room.
func (a *aliases) add(name, hash uint64) (uint64, bool) {
	made, list := aliasName(name, hash), a.of[name]
	if a.n >= maxAliases || len(list) >= maxAliasOf {
		return 0, false
	}
	if a.of == nil {
		a.of = map[uint64][]uint64{}
	}
	a.of[name] = append(list, made)
	a.n++
	return made, true
}

// drop forgets one made name.
func (a *aliases) drop(name, made uint64) {
	list := a.of[name]
	i := slices.Index(list, made)
	if i < 0 {
		return
	}
	if a.n--; len(list) == 1 {
		delete(a.of, name)
	} else {
		a.of[name] = slices.Delete(list, i, i+1)
	}
}

func (a *aliases) clear() { *a = aliases{} }

// aliasName mixes the two by the finisher of MurmurHash3.
func aliasName(name, hash uint64) uint64 {
	v := name ^ (hash<<31 | hash>>33)
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}
