package kvindex

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

const (
	splitMin    = 12      // entries of a list before a split is considered
	splitSpread = 8       // one in so many entries must end at the place
	splitSides  = 1 << 14 // side map entries that a split may have to look at
)

// splitAt picks an offset at which many partial holders of the run end in a tier,
// or 0. A bitset of whole holders of a prefix is much cheaper for readers than an
// entry each; but holders that all end elsewhere stay in the list: one pass over
// it costs less than a hop for each. The list is looked at again only when it has
// grown by half.
func (x *Index) splitAt(r hrun, t Tier) uint32 {
	_, _, l, _ := x.plane(r, t)
	n := uint32(l.ents)
	if n < splitMin || n < r.m.looked+r.m.looked/2 {
		return 0
	}
	r.m.looked = n
	ends := x.ends[:0]
	for _, e := range x.entries(l) {
		if to := entryTo(e); entryFrom(e) == 0 && entryTier(e) == t && to < r.length() {
			ends = append(ends, to)
		}
	}
	x.ends = ends
	slices.Sort(ends)
	best, most := uint32(0), 0
	for i, from := 0, 0; i < len(ends); i++ {
		if ends[i] != ends[from] {
			from = i
		}
		if i-from >= most {
			most, best = i-from+1, ends[i]
		}
	}
	if cap(x.ends) > 1<<12 {
		x.ends = nil
	}
	if most < int(n/splitSpread) || most < splitMin/3 {
		return 0
	}
	return best
}

// split cuts the run in two at an offset and returns the second part, or 0 if
// there is no room for it (the run is not open).
func (x *Index) split(r hrun, cut uint32) uint32 {
	base, n := winBase(r.win), r.length()-cut
	entries, planes := uint32(r.ents), uint32(1)
	if r.low() {
		lo, _ := x.lowerOf(r.id)
		entries += uint32(lo.ents)
		planes = Tiers
	}
	need := 2 * (planes*(x.slotWords+unit) + 4*entries + 4*unit)
	if !x.runReady() || !x.hashes.ready(n, storeReserve) || !x.headReady() ||
		!x.words.ready(need+need/4, storeReserve) || r.low() && !x.lowerReady(x.avail) {
		return 0
	}
	if x.sided > 0 && !x.sidesFew(r, cut) {
		return 0
	}
	q, _ := x.newRun()
	to, size := x.hashes.alloc(n)
	x.copyBlocks(to, base+cut, n)
	*q.m = runMeta{size: size, names: r.m.names, scope: r.m.scope}
	x.holdScope(q.m.scope)
	x.nruns++

	r.open()
	q.open()
	atomic.StoreUint64(&q.win, uint64(to)<<32|uint64(n))
	for t := TierGPU; t < Tiers; t++ {
		x.splitPlane(r, q, t, cut)
	}
	atomic.StoreUint64(&r.win, r.win-uint64(n))
	q.close()
	x.link(x.hashAt(to), q.id)
	r.close()
	r.m.size = x.hashes.shrink(base, r.m.size, cut)

	m := x.maps[r.m.names]
	m.wait()
	m.mu.Lock()
	for i, name := range x.namesAt(to, n) {
		m.move(name, at(r.id, cut)+place(i), at(q.id, 0)+place(i))
	}
	m.mu.Unlock()
	if x.sided > 0 {
		x.moveSides(r.id, q, cut)
	}
	x.count.Splits++
	return q.id
}

// splitPlane gives the second part its share of one tier's coverage (both runs
// are open; r has its old length still).
func (x *Index) splitPlane(r, q hrun, t Tier, cut uint32) {
	whole, _, l, capacity := x.plane(r, t)
	if whole == nil {
		return
	}
	have := r.length()
	if *whole != 0 {
		if t != TierGPU {
			x.addLower(q)
		}
		for i, v := range x.bits(*whole) {
			for ; v != 0; v &= v - 1 {
				x.setWhole(q, t, uint32(i*64+bits.TrailingZeros64(v)), x.slotWords*64-1)
			}
		}
	}
	// Entries go out from the end of the list and come back shortened: what is
	// added is at the end, so the part before it is still to do.
	for i := int(uint32(l.ents)) - 1; i >= 0; i-- {
		e := x.entries(l)[i]
		if entryTier(e) != t {
			continue
		}
		slot, f, u := entrySlot(e), entryFrom(e), min(entryTo(e), have)
		if u <= cut {
			if f == 0 && u == cut {
				x.dropEntry(l, capacity, i)
				x.setWhole(r, t, slot, x.slotWords*64-1)
			}
			continue
		}
		if t != TierGPU {
			x.addLower(q)
		}
		if g := max(f, cut) - cut; g == 0 && u == have {
			x.setWhole(q, t, slot, x.slotWords*64-1)
		} else {
			x.addEntry(q, t, entry(slot, g, u-cut, t))
		}
		switch {
		case f >= cut:
			x.dropEntry(l, capacity, i)
		case f == 0:
			x.dropEntry(l, capacity, i)
			x.setWhole(r, t, slot, x.slotWords*64-1)
		default:
			atomic.StoreUint64(&x.entries(l)[i], entry(slot, f, cut, t))
		}
	}
}

// eachHolder calls f for the slots that hold a block of the run from cut on,
// perhaps several times each.
func (x *Index) eachHolder(r hrun, cut uint32, f func(*slotState)) {
	table := *x.table.Load()
	for t := TierGPU; t < Tiers; t++ {
		whole, _, l, _ := x.plane(r, t)
		if whole == nil {
			return
		}
		for i, v := range x.bits(*whole) {
			for ; v != 0; v &= v - 1 {
				f(table[i*64+bits.TrailingZeros64(v)].Load())
			}
		}
		for _, e := range x.entries(l) {
			if entryTier(e) == t && entryTo(e) > cut {
				f(table[entrySlot(e)].Load())
			}
		}
	}
}

// sidesFew says whether the side maps of the holders of a run's tail are small
// enough to be searched for its blocks.
func (x *Index) sidesFew(r hrun, cut uint32) bool {
	n := 0
	x.eachHolder(r, cut, func(k *slotState) { n += len(k.side.slots) })
	return n <= splitSides
}

// moveSides gives the blocks of a split-off part their new places in the side
// maps of its holders.
func (x *Index) moveSides(old uint32, q hrun, cut uint32) {
	x.eachHolder(q, 0, func(k *slotState) {
		k.side.filter(func(e *sideEntry) bool {
			if e.at.run() == old && e.at.off() >= cut {
				e.at = at(q.id, e.at.off()-cut)
			}
			return true
		})
	})
}
