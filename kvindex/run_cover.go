package kvindex

import "sync/atomic"

// coverReady makes sure that a slot's coverage of the run can change in the tier:
// memory for a longer list, for the bitsets that a full inline list spills into,
// and for the second line. keep is what must stay free of the budget.
func (x *Index) coverReady(r hrun, t Tier, keep int64) bool {
	n, sets := uint32(r.ents), uint32(1)
	if t != TierGPU {
		if !r.low() {
			n = 0
			if !x.lowerReady(r.id >> runBits) {
				return false
			}
		} else {
			lo, _ := x.lowerOf(r.id)
			n = uint32(lo.ents)
		}
		sets = Tiers - 1
	}
	return x.words.ready(roundUnit(2*n+inlineEntries)+sets*roundUnit(x.slotWords), keep)
}

// cover gives [lo, hi) of the run to the slot in the tier (the run is open,
// coverReady was true). It returns how many of the blocks are new there, and
// appends the names of the others to dup; names[i] is that of block lo+i, none if
// nobody asks.
func (x *Index) cover(r hrun, t Tier, slot, lo, hi uint32, names, dup []uint64) (uint32, []uint64) {
	if t != TierGPU {
		x.addLower(r)
	}
	if x.hasWhole(r, t, slot) {
		if names != nil {
			dup = append(dup, names...)
		}
		return 0, dup
	}
	n, from, to := r.length(), lo, hi
	fresh := hi - lo
	whole, _, l, capacity := x.plane(r, t)
	es := x.entries(l)
	for i := 0; i < len(es); {
		e := es[i]
		if entrySlot(e) != slot || entryTier(e) != t || entryTo(e) < from || entryFrom(e) > to {
			i++
			continue
		}
		f, u := entryFrom(e), min(entryTo(e), n)
		if a, b := max(f, lo), min(u, hi); a < b {
			fresh -= b - a
			if names != nil {
				dup = append(dup, names[a-lo:b-lo]...)
			}
		}
		from, to = min(from, f), max(to, u)
		x.dropEntry(l, capacity, i)
		es = x.entries(l)
	}
	if from == 0 && to == n {
		if *whole != 0 {
			x.setWhole(r, t, slot, slot)
			return fresh, dup
		}
		to = openEnd
	}
	x.addEntry(r, t, entry(slot, from, to, t))
	return fresh, dup
}

// uncover takes [lo, hi) of the run from the slot in the tier and returns how
// many blocks went (the run is open). Without room for the entries of a hole it
// takes all that the slot holds of the run there, and counts that: the answer may
// be too low then, never too high.
func (x *Index) uncover(r hrun, t Tier, slot, lo, hi uint32) (gone uint32) {
	whole, _, l, capacity := x.plane(r, t)
	if whole == nil {
		return 0
	}
	n := r.length()
	hi = min(hi, n)
	if (lo > 0 || hi < n) && !x.coverReady(r, t, 0) {
		had := x.uncover(r, t, slot, 0, n)
		x.count.Forgotten += uint64(had - min(had, hi-lo))
		return had
	}
	if x.hasWhole(r, t, slot) {
		x.clearWhole(r, t, slot)
		if lo > 0 {
			x.addEntry(r, t, entry(slot, 0, lo, t))
		}
		if hi < n {
			x.addEntry(r, t, entry(slot, hi, n, t))
		}
		return hi - lo
	}
	es := x.entries(l)
	for i := 0; i < len(es); {
		e := es[i]
		f, u := entryFrom(e), min(entryTo(e), n)
		if entrySlot(e) != slot || entryTier(e) != t || u <= lo || f >= hi {
			i++
			continue
		}
		gone += min(u, hi) - max(f, lo)
		switch {
		case f < lo && u > hi:
			atomic.StoreUint64(&es[i], entry(slot, f, lo, t))
			x.addEntry(r, t, entry(slot, hi, u, t))
			return gone
		case f < lo:
			atomic.StoreUint64(&es[i], entry(slot, f, lo, t))
			i++
		case u > hi:
			atomic.StoreUint64(&es[i], entry(slot, hi, u, t))
			i++
		default:
			x.dropEntry(l, capacity, i)
			es = x.entries(l)
		}
	}
	return gone
}

// settle ends a change that took coverage away: it drops an empty second line,
// cuts the tail that nobody holds, and frees a run that nobody holds (the run is
// open). w is the writer at work, nil if none owns names.
func (x *Index) settle(r hrun, w *slotState) {
	var lo *lower
	if r.low() {
		var lm *lowerMeta
		lo, lm = x.lowerOf(r.id)
		if uint32(lo.ents) == 0 && lm.nwhole == [Tiers - 1]uint32{} {
			x.dropLower(r)
			lo = nil
		} else if lm.nwhole != [Tiers - 1]uint32{} {
			return
		}
	}
	if r.m.nwhole > 0 {
		return
	}
	n, top := r.length(), uint32(0)
	es := x.entries(&r.list)
	for _, e := range es {
		top = max(top, min(entryTo(e), n))
	}
	var ls []uint64
	if lo != nil {
		ls = x.entries(&lo.list)
		for _, e := range ls {
			top = max(top, min(entryTo(e), n))
		}
	}
	if top == n {
		return
	}
	x.cut(r, top, w)
	if top == 0 {
		return
	}
	reopen(es, top)
	reopen(ls, top)
}

// reopen turns holders of the whole of a run that was cut into open-ended ones.
func reopen(es []uint64, top uint32) {
	for i, e := range es {
		if entryFrom(e) == 0 && entryTo(e) == top {
			atomic.StoreUint64(&es[i], entry(entrySlot(e), 0, openEnd, entryTier(e)))
		}
	}
}

// cut shortens the run to n blocks; 0 frees it (the run is open). Names in the
// map of the writer itself are taken out after the lock, others at once.
func (x *Index) cut(r hrun, n uint32, w *slotState) {
	base, old := winBase(r.win), r.length()
	names := x.namesAt(base+n, old-n)
	x.nblocks -= int64(old - n)
	x.freed++
	if w != nil && r.m.names == w.names && len(w.lane.gone)+len(names) <= pieceLen {
		w.lane.del = append(w.lane.del, pend{at(r.id, n), len(w.lane.gone), len(names)})
		w.lane.gone = append(w.lane.gone, names...)
	} else {
		m := x.maps[r.m.names]
		m.wait()
		m.mu.Lock()
		for i, name := range names {
			m.remove(name, at(r.id, n)+place(i))
		}
		m.mu.Unlock()
		if m.orphan {
			x.dropMap(r.m.names)
		}
	}
	if n > 0 {
		atomic.StoreUint64(&r.win, r.win-uint64(old-n))
		if r.m.size >= n+16+n/4 {
			r.m.size = x.hashes.shrink(base, r.m.size, n)
		}
		return
	}
	x.unlink(x.hashAt(base), r.id)
	x.freeRun(r)
}
