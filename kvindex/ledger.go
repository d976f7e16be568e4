package kvindex

import "github.com/stator-go/stator/kvindex/block"

// This file is the surface that a Stream builds on. A slot that is fed by a
// stream calls blocks by the engine's own names; the index keeps one map from
// name to place, so a removal needs no second table.

// place is where a block lies: the number of its run and its offset there.
type place uint64

// parentRef says below which block a chain hangs. Without has it hangs from the
// root. name is what the slot calls the parent. at is a hint, from resolve; it is
// checked before use and may be zero or stale. hash is the parent's hash where it
// is known, else 0: it tells blocks with one name apart.
type parentRef struct {
	has  bool
	name uint64
	at   place
	hash block.Hash
}

// resolve finds the block that the slot calls name: its hash, its scope and its
// place. It knows blocks that the slot holds in some tier, whoever stored them
// first, and blocks that it was the first to store and others hold still.
func (x *Index) resolve(s Slot, name uint64) (h block.Hash, scope uint32, at place, ok bool) {
	k := x.slot(s)
	if k == nil {
		return 0, 0, 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.gone.Load() {
		return 0, 0, 0, false
	}
	if at, ok = k.last.at, k.last.name == name && k.last.at != 0; ok { // most chains go on where the last one ended
		h, ok = x.blockAt(at)
		ok = ok && uint64(h) == k.last.hash
	}
	if !ok {
		if at, ok = x.lookupKnown(k, name, 0); !ok {
			return 0, 0, 0, false
		}
		h, _ = x.blockAt(at)
	}
	return h, x.hrun(at.run()).m.scope, at, true
}

// holdsNamed says whether the slot holds the named block in tier t.
func (x *Index) holdsNamed(s Slot, t Tier, name uint64) bool {
	k := x.slot(s)
	if k == nil || t >= Tiers {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.gone.Load() {
		return false
	}
	_, ok := x.lookup(k, name, func(p place) bool { return x.holds(x.hrun(p.run()), t, k.num, p.off()) })
	return ok
}

// lookupKnown finds a place of a name: one that the slot holds if there is one,
// else one that it named itself. What another slot calls so, and this one does not
// hold, may be another block: engines whose names leave out adapter or salt give
// equal names to different blocks. A hash that is not 0 must be the block's, and
// then it does not matter who named it.
func (x *Index) lookupKnown(k *slotState, name uint64, hash block.Hash) (place, bool) {
	known := place(0)
	p, ok := x.lookup(k, name, func(p place) bool {
		if h, ok := x.blockAt(p); !ok || hash != 0 && h != hash {
			return false
		}
		if x.holdsAny(x.hrun(p.run()), k.num, p.off()) {
			return true
		}
		if known == 0 && (hash != 0 || k.naming == namingHash || x.hrun(p.run()).m.names == k.names) {
			known = p
		}
		return false
	})
	if ok {
		return p, true
	}
	// A side name counts only while the slot holds its block, so this place is from
	// a map whose entries are checked against the run's names.
	return known, known != 0
}

// lookup finds a place of a name that ok accepts (locked). It asks the slot's own
// map, its side map, and the maps of slots whose blocks it shares.
func (x *Index) lookup(k *slotState, name uint64, ok func(place) bool) (place, bool) {
	accept := func(p place) bool { return x.nameIs(name, p) && ok(p) }
	if p, found := k.m.find(name, accept); found {
		return p, true
	}
	if p, found := k.side.find(name, ok, func(e *sideEntry) bool { return x.stale(k, e) }); found {
		return p, true
	}
	for i := 0; i < len(k.others); i++ {
		m := x.mapAt(k.others[i])
		if m == nil {
			continue
		}
		late := m.pending.Load() > 0 // its writer has yet to name blocks that are in the tree
		m.mu.Lock()
		p, found := m.find(name, accept)
		m.mu.Unlock()
		if found {
			o := k.others[i]
			copy(k.others[1:i+1], k.others[:i])
			k.others[0] = o
			return p, true
		}
		if late {
			m.wait()
			i--
		}
	}
	return 0, false
}
