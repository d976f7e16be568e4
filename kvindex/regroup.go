package kvindex

import (
	"errors"
	"slices"

	"github.com/stator-go/stator/kvindex/block"
)

// regrouper turns engine blocks of another size than the index's into blocks of
// the index. It works on tokens, so the sizes need not divide each other.
//
// An engine block is kept as a unit. Each block of the index that a unit
// completes is reached by a way: the units that hold its tokens. The index holds
// the block in a tier as long as all units of one of its ways are held there.
// Two ways lead to one block when, say, an offload tier names the same tokens in
// bigger units.
//
// In the index such blocks go by their own hash as name. Nothing of this is
// touched while engine blocks are as big as the index's. An engine may have both
// kinds, in different tiers; then a unit's blocks hang below units of the same
// kind, and are not counted behind a hole among those even where an engine block
// of the index's size fills it.
type regrouper struct {
	byName map[uint64]*engineUnit
	blocks map[block.Hash]*regrouped
	// pending are blocks whose parent the index does not hold, by its hash: a
	// hole ends every prefix there, so they wait until it is filled.
	pending map[block.Hash][]*regrouped

	// run collects consecutive blocks for one store.
	run struct {
		tier   Tier
		blocks []*regrouped
		names  []uint64
		chain  []block.Hash
	}
	ready []pendingBlock

	tokens []uint32
	media  []block.Media
	spans  mediaSpans
	dup    []uint64
	path   []*engineUnit
}

// An engineUnit is one engine block. It is kept while it is held in some tier, and
// after that as long as units below it are.
//
// Engines with pages of one token make many of them, so they are kept small: what
// lies between the last whole block and a unit's end is put together from the
// units above it when it is needed.
type engineUnit struct {
	name   uint64
	parent *engineUnit // nil at the root, or below a block that is not regrouped

	// The last whole block of the index up to the unit's end, if has: its hash and
	// what the slot calls it. past is the number of tokens after it.
	hash block.Hash
	base uint64

	tokens []uint32       // its own; it shares memory with units of its event
	media  *[]block.Media // that touch it, offsets from its first token; mostly nil
	ways   []*way

	scope uint32
	past  int32
	kids  int32 // units whose parent this is
	held  uint8 // a bit for each tier
	has   bool
}

// ref is the last whole block up to the unit's end.
func (u *engineUnit) ref() parentRef {
	if !u.has {
		return parentRef{}
	}
	return parentRef{has: true, name: u.base, hash: u.hash}
}

// A way is a set of units, each the parent of the next, that together hold the
// tokens of one block.
type way struct {
	of   *regrouped
	last *engineUnit
	need int32
	have [Tiers]int32
}

// A regrouped is a block of the index that units hold together.
type regrouped struct {
	hash   block.Hash
	ref    parentRef // of the block before it
	parent block.Hash
	scope  uint32

	ways   [Tiers]int32 // complete ones
	all    int32        // ways, complete or not
	stored uint8        // bits of the tiers in which the index has it
	waits  uint8        // bits of the tiers in which it waits for its parent
}

type pendingBlock struct {
	b *regrouped
	t Tier
}

// storeUnits stores the blocks of an event as units.
func (st *Stream) storeUnits(e *Event, size int, on *storeBase, hasher *block.Hasher) outcome {
	g := &st.units
	if g.byName == nil {
		g.byName, g.blocks = map[uint64]*engineUnit{}, map[block.Hash]*regrouped{}
	}
	parent := on.unit
	if parent == nil { // stands for what is above the first unit
		parent = &engineUnit{has: on.ref.has, base: on.ref.name, hash: on.hash}
	}
	var own []uint32
	g.spans.start(st.spread)
	for i, name := range e.Hashes {
		u := engineUnit{name: name, parent: parent, scope: on.id}
		if parent.tokens == nil {
			u.parent = nil
		}
		st.completeUnit(&u, parent, e, i, size, hasher)
		old := g.byName[name]
		switch {
		case old != nil && (old.scope != u.scope || !g.sameUnit(old, &u)):
			st.res.Counts.Conflicts += uint64(len(e.Hashes) - i)
			st.refuse(len(e.Hashes)-i, nil)
			st.flushUnits()
			return outRefused
		case old == nil && len(g.byName) >= st.cfg.MaxUnits:
			st.refuse(len(e.Hashes)-i, nil)
			st.flushUnits()
			return outRefused
		case old == nil:
			if own == nil {
				own = slices.Clone(e.Tokens)
			}
			u.tokens = own[i*size : (i+1)*size : (i+1)*size]
			old = &u
			st.linkUnit(old, parent)
		}
		st.holdUnit(old, e.Tier)
		if st.orph.first != nil {
			st.arrived = append(st.arrived, name)
		}
		parent = old
	}
	st.flushUnits()
	return outStored
}

// completeUnit finds the last whole block of the unit that the event's block i
// is, below parent, and leaves the hashes of the blocks it completes in st.chain
// and the tokens after parent's last whole block in g.tokens.
func (st *Stream) completeUnit(u, parent *engineUnit, e *Event, i, size int, hasher *block.Hasher) {
	g := &st.units
	g.unfinished(parent)
	before := len(g.tokens)
	g.tokens = append(g.tokens, e.Tokens[i*size:(i+1)*size]...)
	for _, m := range g.spans.at(i*size, (i+1)*size) {
		if u.media == nil {
			u.media = new([]block.Media)
		}
		m.Offset -= i * size
		*u.media = append(*u.media, m)
		m.Offset += before
		g.media = append(g.media, m)
	}
	st.chain = hasher.Extend(st.chain[:0], parent.hash, parent.has, g.tokens, g.media)
	u.has, u.base, u.hash = parent.has, parent.base, parent.hash
	n := len(st.chain)
	if n > 0 {
		u.hash = st.chain[n-1]
		u.has, u.base = true, uint64(u.hash)
	}
	u.past = int32(len(g.tokens) - n*st.c)
}

// unfinished puts the tokens and media after the unit's last whole block into
// g.tokens and g.media.
func (g *regrouper) unfinished(u *engineUnit) {
	g.tokens, g.media, g.path = g.tokens[:0], g.media[:0], g.path[:0]
	left := int(u.past)
	for ; left > 0; u = u.parent {
		g.path = append(g.path, u)
		left -= len(u.tokens)
	}
	for _, p := range slices.Backward(g.path) { // left is minus what the first one has before the border
		g.tokens = append(g.tokens, p.tokens[max(0, -left):]...)
		if p.media != nil {
			for _, m := range *p.media {
				if m.Offset += left; m.Offset+m.Length > 0 {
					g.media = append(g.media, m)
				}
			}
		}
		left += len(p.tokens)
	}
	clear(g.path)
}

// sameUnit says whether a unit has the tokens of u, whose are in g.tokens.
func (g *regrouper) sameUnit(old, u *engineUnit) bool {
	if old.hash != u.hash || old.has != u.has || old.past != u.past {
		return false
	}
	tail := slices.Clone(g.tokens[len(g.tokens)-int(u.past):])
	g.unfinished(old)
	return slices.Equal(tail, g.tokens)
}

// linkUnit puts a new unit below parent into the tables, with a way to each block
// in st.chain.
func (st *Stream) linkUnit(u, parent *engineUnit) {
	g := &st.units
	g.byName[u.name] = u
	st.ix.pinScope(u.scope)
	if u.parent != nil {
		u.parent.kids++
	}
	ref, left := parent.ref(), int(parent.past)
	for _, h := range st.chain {
		b := g.blocks[h]
		if b == nil {
			b = &regrouped{hash: h, ref: ref, parent: ref.hash, scope: u.scope}
			g.blocks[h] = b
		}
		b.all++
		w := &way{of: b, last: u}
		w.join(u)
		for p := u.parent; left > 0; p = p.parent {
			w.join(p)
			left -= len(p.tokens)
		}
		left = 0
		ref = parentRef{has: true, name: uint64(h), hash: h}
	}
}

// join adds a unit to a way that is being made.
func (w *way) join(u *engineUnit) {
	w.need++
	u.ways = append(u.ways, w)
	for t := range w.have {
		w.have[t] += int32(u.held >> t & 1)
	}
}

// holdUnit notes that a unit is held in a tier, or a copy of it.
func (st *Stream) holdUnit(u *engineUnit, t Tier) {
	if u.held&(1<<t) != 0 {
		st.dup = append(st.dup[:0], u.name)
		st.copied(t, st.dup)
		return
	}
	u.held |= 1 << t
	for _, w := range u.ways {
		w.have[t]++
		if w.have[t] != w.need {
			continue
		}
		w.of.ways[t]++
		if w.of.ways[t] == 1 {
			st.queueBlock(w.of, t)
		}
	}
}

// dropUnit notes that a unit is no longer held in a tier.
func (st *Stream) dropUnit(u *engineUnit, t Tier) {
	st.flushUnits()
	u.held &^= 1 << t
	for _, w := range u.ways {
		if w.have[t] == w.need {
			w.of.ways[t]--
			if w.of.ways[t] == 0 {
				st.dropBlock(w.of, t)
			}
		}
		w.have[t]--
	}
	st.freeUnits(u)
}

// freeUnits takes a unit that nothing needs out of the tables, and then its
// parent.
func (st *Stream) freeUnits(u *engineUnit) {
	g := &st.units
	for u != nil && u.held == 0 && u.kids == 0 {
		for _, w := range u.ways { // all end here, for there are no units below
			for p := u.parent; p != nil; p = p.parent {
				i := slices.Index(p.ways, w)
				if i < 0 {
					break
				}
				p.ways = slices.Delete(p.ways, i, i+1)
			}
			if w.of.all--; w.of.all == 0 {
				g.forgetBlock(w.of)
			}
		}
		delete(g.byName, u.name)
		st.ix.unpinScope(u.scope)
		if u.parent != nil {
			u.parent.kids--
		}
		u = u.parent
	}
	if len(g.byName) == 0 {
		g.byName, g.blocks, g.pending = nil, nil, nil
	}
}

// forgetBlock takes a block without ways out of the tables.
func (g *regrouper) forgetBlock(b *regrouped) {
	delete(g.blocks, b.hash)
	list := g.pending[b.parent]
	if i := slices.Index(list, b); i >= 0 {
		if len(list) == 1 {
			delete(g.pending, b.parent)
		} else {
			g.pending[b.parent] = slices.Delete(list, i, i+1)
		}
	}
}

// queueBlock puts a block that has become complete into the run, so that blocks
// that follow each other are stored at once.
func (st *Stream) queueBlock(b *regrouped, t Tier) {
	r := &st.units.run
	if n := len(r.chain); n > 0 && (r.tier != t || r.chain[n-1] != b.parent || r.blocks[n-1].scope != b.scope || !b.ref.has) {
		st.flushUnits()
	}
	r.tier = t
	r.blocks, r.names, r.chain = append(r.blocks, b), append(r.names, uint64(b.hash)), append(r.chain, b.hash)
}

// flushUnits stores the run, and what waited for its blocks.
func (st *Stream) flushUnits() {
	g := &st.units
	for {
		st.flushRun()
		n := len(g.ready)
		if n == 0 {
			return
		}
		p := g.ready[n-1]
		g.ready = g.ready[:n-1]
		if p.b.ways[p.t] > 0 && p.b.stored&(1<<p.t) == 0 {
			r := &g.run
			r.tier = p.t
			r.blocks, r.names, r.chain = append(r.blocks, p.b), append(r.names, uint64(p.b.hash)), append(r.chain, p.b.hash)
		}
	}
}

func (st *Stream) flushRun() {
	g := &st.units
	r := &g.run
	if len(r.chain) == 0 {
		return
	}
	var err error
	first := r.blocks[0]
	g.dup, err = st.ix.storeNamed(st.slot, r.tier, first.ref, first.scope, r.names, r.chain, g.dup[:0])
	switch {
	case err == nil:
		st.res.Counts.Stored += uint64(len(r.names) - len(g.dup))
		for _, b := range r.blocks {
			b.stored |= 1 << r.tier
		}
		if len(g.pending) > 0 {
			for _, h := range r.chain {
				st.wake(h, uint64(h))
			}
		}
	case errors.Is(err, ErrParent):
		if g.pending == nil {
			g.pending = map[block.Hash][]*regrouped{}
		}
		for _, b := range r.blocks {
			if b.waits == 0 {
				g.pending[b.parent] = append(g.pending[b.parent], b)
			}
			b.waits |= 1 << r.tier
		}
	default:
		st.refuse(len(r.names), err)
	}
	clear(r.blocks)
	r.blocks, r.names, r.chain = r.blocks[:0], r.names[:0], r.chain[:0]
}

// wake readies the blocks that waited for block h, which the index now holds
// under a name. They are stored by flushUnits.
func (st *Stream) wake(h block.Hash, name uint64) {
	g := &st.units
	list := g.pending[h]
	if list == nil {
		return
	}
	delete(g.pending, h)
	for _, b := range list {
		b.ref = parentRef{has: true, name: name, hash: h}
		for t := range Tier(Tiers) {
			if b.waits&(1<<t) != 0 {
				g.ready = append(g.ready, pendingBlock{b, t})
			}
		}
		b.waits = 0
	}
}

// dropBlock takes a block that is no longer complete out of a tier.
func (st *Stream) dropBlock(b *regrouped, t Tier) {
	b.waits &^= 1 << t // its place in pending goes with the block
	if b.stored&(1<<t) == 0 {
		return
	}
	b.stored &^= 1 << t
	st.units.dup = append(st.units.dup[:0], uint64(b.hash))
	if st.ix.removeNamed(st.slot, t, st.units.dup) == 0 {
		st.res.Counts.Removed++
	}
}

// clear forgets everything and gives the memory back.
func (g *regrouper) clear(ix ledger) {
	for _, u := range g.byName {
		ix.unpinScope(u.scope)
	}
	*g = regrouper{}
}
