package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// sweepPerEvent is the number of runs that a store looks at for dead slots.
const sweepPerEvent = 16

// Sweep gives back the memory of detached slots and of tables that have become
// too big. It works in small steps beside lookups and stores, and takes time in
// proportion to the size of the index when a slot was detached since the last
// call, next to none otherwise. Call it every few seconds, or after workers left.
func (x *Index) Sweep() {
	for more := true; more; {
		x.mu.Lock()
		x.sweep(runChunk / 2)
		more = x.unswept()
		x.mu.Unlock()
	}
	x.mu.Lock()
	x.trim()
	x.mu.Unlock()
}

// unswept says whether a dead slot still holds blocks.
func (x *Index) unswept() bool {
	for _, k := range x.dead {
		if k.held != [Tiers]int64{} {
			return true
		}
	}
	return false
}

// sweep looks at n runs for dead slots. A dead slot's number is free when nothing
// is held by it any more, wherever the sweep is then: counts are exact, so there
// is no need for a whole pass (locked).
func (x *Index) sweep(n int) {
	if len(x.dead) == 0 {
		return
	}
	hit := false
	for ; n > 0; n-- {
		c := x.cursor >> runBits
		if int(c) >= len(x.metas) {
			x.cursor = 0
			if len(x.metas) == 0 {
				break
			}
			continue
		}
		if x.metas[c] == nil || x.metas[c].used == 0 {
			x.cursor = (c + 1) << runBits
			continue
		}
		hit = x.sweepRun(x.cursor) || hit
		x.cursor++
	}
	if hit {
		x.bury()
	}
}

// sweepRun takes a run from the dead slots that hold it.
func (x *Index) sweepRun(id uint32) bool {
	r := x.hrun(id)
	if r.win == 0 {
		return false
	}
	hit := false
	x.eachPlane(r, func(t Tier, whole uint64, l *list) {
		for i, v := range x.bits(whole) {
			hit = hit || v&x.deadIn(i) != 0
		}
		if t > TierCPU {
			return // the lower tiers share a list
		}
		for _, e := range x.entries(l) {
			hit = hit || x.isDead(entrySlot(e))
		}
	})
	if !hit {
		return false
	}
	r.open()
	table := *x.table.Load()
	n := r.length()
	for t := TierGPU; t < Tiers; t++ {
		whole, nwhole, l, capacity := x.plane(r, t)
		if whole == nil {
			break
		}
		ws := x.bits(*whole)
		for i := range ws {
			d := ws[i] & x.deadIn(i)
			if d == 0 {
				continue
			}
			atomic.StoreUint64(&ws[i], ws[i]&^d)
			*nwhole -= uint32(bits.OnesCount64(d))
			for ; d != 0; d &= d - 1 {
				x.hold(table[i*64+bits.TrailingZeros64(d)].Load(), t, -int64(n))
			}
		}
		if old := *whole; old != 0 && *nwhole == 0 {
			atomic.StoreUint64(whole, 0)
			x.freeWords(old, uint32(old))
		}
		for i := 0; i < int(uint32(l.ents)); {
			e := x.entries(l)[i]
			if entryTier(e) != t || !x.isDead(entrySlot(e)) {
				i++
				continue
			}
			x.hold(table[entrySlot(e)].Load(), t, -int64(min(entryTo(e), n)-entryFrom(e)))
			x.dropEntry(l, capacity, i)
		}
	}
	x.settle(r, nil)
	r.close()
	return true
}

// eachPlane calls f for the tiers in which a run has coverage words.
func (x *Index) eachPlane(r hrun, f func(t Tier, whole uint64, l *list)) {
	for t := TierGPU; t < Tiers; t++ {
		whole, _, l, _ := x.plane(r, t)
		if whole == nil {
			return
		}
		f(t, *whole, l)
	}
}

// deadIn is a word of dead slots; a bitset may have more words than slots have.
func (x *Index) deadIn(i int) uint64 {
	if i < len(x.deadBits) {
		return x.deadBits[i]
	}
	return 0
}

func (x *Index) isDead(slot uint32) bool { return x.deadBits[slot/64]>>(slot%64)&1 != 0 }

// Clear notes that the slot holds nothing any more in the tiers named, or in any
// if none is named. All tiers at once is one step for readers: the slot is
// invisible from the first moment until it is empty, and then counts again.
// The call takes a pass over the runs of the index, in small steps beside lookups
// and other slots' stores.
func (x *Index) Clear(s Slot, tiers ...Tier) {
	k := x.slot(s)
	if k == nil {
		return
	}
	var in [Tiers]bool
	all := len(tiers) == 0
	for t := range in {
		in[t] = all
	}
	for _, t := range tiers {
		if t < Tiers {
			in[t] = true
		}
	}
	all = in == [Tiers]bool{true, true, true, true}
	k.mu.Lock()
	defer k.mu.Unlock()
	if all {
		x.mu.Lock()
		if !k.gone.Load() {
			x.setLive(k.num, false)
		}
		x.mu.Unlock()
	}
	for id, more := uint32(0), true; more; {
		x.mu.Lock()
		id, more = x.clearSome(k, in, id)
		x.mu.Unlock()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.gone.Load() {
		return
	}
	k.side.loose++
	x.purge(k)
	if all {
		x.dropSide(k)
		x.setLive(k.num, true)
	}
}

// clearSome takes a slot's blocks of some tiers out of some runs from id on. It
// returns where to go on, and whether anything is left to do.
func (x *Index) clearSome(k *slotState, in [Tiers]bool, id uint32) (uint32, bool) {
	left := func() bool {
		for t, ok := range in {
			if ok && k.held[t] != 0 {
				return true
			}
		}
		return false
	}
	for n := runChunk / 2; n > 0; n-- {
		if k.gone.Load() || !left() {
			return 0, false
		}
		c := id >> runBits
		if int(c) >= len(x.metas) {
			id = 0
			continue
		}
		if x.metas[c] == nil || x.metas[c].used == 0 {
			id = (c + 1) << runBits
			continue
		}
		if r := x.hrun(id); r.win != 0 && x.holdsSome(r, k.num) {
			r.open()
			for t, ok := range in {
				if ok {
					x.hold(k, Tier(t), -int64(x.uncover(r, Tier(t), k.num, 0, r.length())))
				}
			}
			x.settle(r, nil)
			r.close()
		}
		id++
	}
	return id, true
}

// holdsSome says whether the slot holds a block of the run in any tier.
func (x *Index) holdsSome(r hrun, slot uint32) bool {
	for t := TierGPU; t < Tiers; t++ {
		_, _, l, _ := x.plane(r, t)
		if l == nil {
			return false
		}
		if x.hasWhole(r, t, slot) {
			return true
		}
		if t > TierCPU {
			continue
		}
		for _, e := range x.entries(l) {
			if entrySlot(e) == slot {
				return true
			}
		}
	}
	return false
}

// trim gives back what is free as a whole and shrinks what is nearly empty
// (locked).
func (x *Index) trim() {
	x.freed = 0
	x.trimSlabs()
	if t := x.head; len(t.slots) > minHeads && t.live*8 < len(t.slots) {
		x.resizeHeads(0)
	}
	if n := filterSize(x.head.live); n*2 <= len(x.filter) {
		x.mem.add(kindHeads, int64(n-len(x.filter))*8)
		x.refilter(n)
	}
	for _, k := range x.owners {
		if !k.mu.TryLock() {
			continue // at work
		}
		k.m.trim(&x.mem)
		if len(k.side.slots) > 0 {
			if k.side.loose > k.side.used { // paid by what was removed since the last one
				x.purge(k)
			}
			if k.side.trim(&x.mem); len(k.side.slots) == 0 {
				x.sided--
			}
		}
		k.mu.Unlock()
	}
	for _, m := range x.maps {
		if m != nil && m.orphan {
			m.mu.Lock()
			m.trim(&x.mem)
			m.mu.Unlock()
		}
	}
	n := len(x.taken)
	for n > 0 && x.taken[n-1] == 0 {
		n--
	}
	if n*2 <= len(x.taken) && n < len(x.taken) {
		x.resizeSlots(n)
	}
	n = len(x.maps)
	for n > 1 && x.maps[n-1] == nil {
		n--
	}
	if n < len(x.maps) {
		x.maps = append([]*nameMap(nil), x.maps[:n]...)
		x.freeMaps = nil
		for i := n - 1; i > 0; i-- {
			if x.maps[i] == nil {
				x.freeMaps = append(x.freeMaps, uint32(i))
			}
		}
	}
}

// trimSlabs lets go of chunks without anything in them. Readers that are in one
// keep it alive and find nothing there.
func (x *Index) trimSlabs() {
	d := dirs{
		runs:   append([]*runBlock(nil), x.d.runs...),
		lowers: append([]*lowerBlock(nil), x.d.lowers...),
		hashes: append([]*wordChunk(nil), x.d.hashes...),
		words:  append([]*wordChunk(nil), x.d.words...),
	}
	x.hashes.drop(func(i uint32) {
		d.hashes[i], x.named[i] = nil, nil
		x.mem.add(kindHashes, -hashChunkBytes)
	})
	x.words.drop(func(i uint32) {
		d.words[i] = nil
		x.mem.add(kindCover, -wordChunkBytes)
	})
	for i, mb := range x.metas {
		if mb == nil {
			continue
		}
		if lm := x.lowMetas[i]; lm != nil && lm.used == 0 {
			x.lowMetas[i], d.lowers[i] = nil, nil
			x.mem.add(kindRuns, -lowerBlockBytes)
		}
		if mb.used == 0 {
			x.metas[i], d.runs[i] = nil, nil
			x.mem.add(kindRuns, -runBlockBytes)
		}
	}
	// The ends of the directories go too, as far as all parallel ones agree.
	d.hashes = d.hashes[:len(x.hashes.mark)]
	x.named = x.named[:len(x.hashes.mark)]
	d.words = d.words[:len(x.words.mark)]
	n := len(x.metas)
	for n > 0 && x.metas[n-1] == nil {
		n--
	}
	x.metas, x.lowMetas = x.metas[:n], x.lowMetas[:n]
	d.runs, d.lowers = d.runs[:n], d.lowers[:n]
	x.setDirs(&d)
}
