package kvindex

import (
	"sync/atomic"

	"github.com/stator-go/stator/kvindex/block"
)

// growMax: a longer run does not move to grow; a further run goes on instead.
const growMax = 1024

// hashAt is the hash at a position of the slab.
func (x *Index) hashAt(base uint32) uint64 { return x.d.hashes[base>>chunkBits][base&chunkMask] }

// namesAt are the names of n blocks from a position of the slab on.
func (x *Index) namesAt(base, n uint32) []uint64 {
	a := base & chunkMask
	return x.named[base>>chunkBits][a : a+n : a+n]
}

// blockAt is the hash of the block at a place, if there is one.
func (x *Index) blockAt(p place) (block.Hash, bool) {
	if c := p.run() >> runBits; int(c) >= len(x.metas) || x.metas[c] == nil {
		return 0, false
	}
	r := x.hrun(p.run())
	if p.off() >= r.length() {
		return 0, false
	}
	return block.Hash(x.hashAt(winBase(r.win) + p.off())), true
}

// nameIs says whether the run calls the block at p by the name.
func (x *Index) nameIs(name uint64, p place) bool {
	if c := p.run() >> runBits; int(c) >= len(x.metas) || x.metas[c] == nil {
		return false
	}
	r := x.hrun(p.run())
	return p.off() < r.length() && x.namesAt(winBase(r.win)+p.off(), 1)[0] == name
}

// soleWhole says whether the slot holds the whole run in the tier and nobody else
// holds all of it anywhere: only then may the run become longer under it.
func (x *Index) soleWhole(r hrun, t Tier, slot uint32) bool {
	mine := false
	for u := TierGPU; u < Tiers; u++ {
		_, nwhole, _, _ := x.plane(r, u)
		if nwhole == nil {
			break
		}
		if n := *nwhole; n > 0 {
			if n > 1 || !x.hasWhole(r, u, slot) {
				return false
			}
			mine = mine || u == t
		}
	}
	for _, e := range x.entries(&r.list) {
		if entryTo(e) == openEnd {
			if entrySlot(e) != slot {
				return false
			}
			mine = mine || t == TierGPU
		}
	}
	if r.low() {
		lo, _ := x.lowerOf(r.id)
		for _, e := range x.entries(&lo.list) {
			if entryTo(e) == openEnd {
				if entrySlot(e) != slot {
					return false
				}
				mine = mine || t == entryTier(e)
			}
		}
	}
	return mine
}

// bound ends what the slot holds of the whole run in other tiers at its present
// end, before the run grows in tier t (the run is open, coverReady was true for
// those tiers).
func (x *Index) bound(r hrun, t Tier, slot uint32) {
	n := r.length()
	for u := TierGPU; u < Tiers; u++ {
		if u == t {
			continue
		}
		if x.hasWhole(r, u, slot) {
			x.clearWhole(r, u, slot)
			x.addEntry(r, u, entry(slot, 0, n, u))
			continue
		}
		_, _, l, _ := x.plane(r, u)
		if l == nil {
			continue
		}
		es := x.entries(l)
		for i, e := range es {
			if entryTo(e) == openEnd && entrySlot(e) == slot && entryTier(e) == u {
				atomic.StoreUint64(&es[i], entry(slot, 0, n, u))
			}
		}
	}
}

// grow makes room for up to n more blocks at the end of a run and says for how many.
// A run that has to move gets a quarter to spare: sequences that grow at the same
// time take each other's neighbouring words.
func (x *Index) grow(r hrun, n uint32) uint32 {
	have := r.length()
	if have+n > r.m.size && r.m.size < chunkLen {
		want := min(have+n, chunkLen)
		if size, ok := x.hashes.extend(winBase(r.win), r.m.size, want); ok {
			r.m.size = size
		} else if want = min(want+have/4, chunkLen); have <= growMax && x.hashes.ready(want, storeReserve) {
			r.open()
			x.move(r, want)
			r.close()
		}
	}
	return min(n, r.m.size-have)
}

// move gives the run a window for n blocks (the run is open, n are ready).
func (x *Index) move(r hrun, n uint32) {
	base, have := winBase(r.win), r.length()
	to, size := x.hashes.alloc(n)
	x.copyBlocks(to, base, have)
	atomic.StoreUint64(&r.win, uint64(to)<<32|uint64(uint32(r.win)))
	x.hashes.release(base, r.m.size)
	r.m.size = size
}

// copyBlocks copies n hashes and names of the slab.
func (x *Index) copyBlocks(to, from, n uint32) {
	src, dst := x.d.hashesAt(from, n), x.d.hashesAt(to, n)
	for i, h := range src {
		atomic.StoreUint64(&dst[i], h)
	}
	copy(x.namesAt(to, n), x.namesAt(from, n))
}

// fill appends blocks to the run's window (the run is open and has room). It
// stops at a block that already heads another run: a tail that lost its parent
// earlier is met again, and no block may live twice.
func (x *Index) fill(r hrun, w *slotState, names, hashes []uint64, first int) uint32 {
	base, have := winBase(r.win), r.length()
	n := len(hashes)
	for i := 1; i < n; i++ {
		if x.mayHead(hashes[i]) && x.findHead(hashes[i]) != 0 {
			n = i
		}
	}
	dst := x.d.hashesAt(base+have, uint32(n))
	for i := range dst {
		atomic.StoreUint64(&dst[i], hashes[i])
	}
	copy(x.namesAt(base+have, uint32(n)), names[:n])
	atomic.StoreUint64(&r.win, r.win+uint64(n))
	w.lane.ins = append(w.lane.ins, pend{at(r.id, have), first, n})
	x.nblocks += int64(n)
	return uint32(n)
}

// prefix is the length of the common prefix of two chains: equal hashes at a
// position mean equal chains up to it.
func prefix(a, b []uint64) int {
	n := min(len(a), len(b))
	if n == 0 || a[n-1] == b[n-1] {
		return n
	}
	lo, hi := 0, n-1 // equal below lo, different at hi
	for lo < hi {
		if m := int(uint(lo+hi) / 2); a[m] == b[m] {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}
