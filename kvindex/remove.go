package kvindex

import "github.com/stator-go/stator/kvindex/block"

// Remove notes that the slot no longer holds these blocks in tier t. Blocks that
// it does not hold there are counted (Stats.UnknownRemovals) and disturb nothing.
// A block in the middle of a chain ends the prefix there and leaves the rest in
// place: when it is stored again the rest counts again. Engines remove the
// deepest block first; that order is the cheapest. A slot that is not attached
// or is fed by a Stream, and a tier that is none, are ignored.
func (x *Index) Remove(s Slot, t Tier, hashes []block.Hash) {
	x.remove(s, t, namingHash, asWords(hashes))
}

// removeNamed notes that the slot no longer holds these blocks in tier t;
// unknown counts names that it did not hold there.
func (x *Index) removeNamed(s Slot, t Tier, names []uint64) (unknown int) {
	return x.remove(s, t, namingOwn, names)
}

func (x *Index) remove(s Slot, t Tier, how naming, names []uint64) (unknown int) {
	k := x.slot(s)
	if k == nil || t >= Tiers {
		return len(names)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.naming != how && k.naming != namingUnset {
		return len(names)
	}
	for len(names) > 0 {
		n := min(len(names), pieceLen)
		x.mu.Lock()
		if k.gone.Load() {
			x.mu.Unlock()
			return unknown + len(names)
		}
		if len(x.dead) > 0 {
			x.sweep(sweepPerEvent)
		}
		u := x.removePiece(k, t, names[:n])
		x.count.UnknownRemovals += uint64(u)
		unknown += u
		x.commit(k, nil)
		names = names[n:]
	}
	return unknown
}

// removePiece finds the first name, then goes on by comparing names in the run:
// one look into the map for a whole piece of chain (locked).
func (x *Index) removePiece(k *slotState, t Tier, names []uint64) (unknown int) {
	held := func(p place) bool { return x.holds(x.hrun(p.run()), t, k.num, p.off()) }
	for i := 0; i < len(names); {
		name := names[i]
		p, ok := x.lookup(k, name, held)
		i++
		if !ok {
			unknown++
			continue
		}
		lo, r := p.off(), x.hrun(p.run())
		hi := lo + 1
		if k.side.used == 0 {
			run := x.namesAt(winBase(r.win), r.length())
			for i < len(names) && lo > 0 && run[lo-1] == names[i] { // deepest first
				lo--
				i++
			}
			if hi == lo+1 {
				for i < len(names) && int(hi) < len(run) && run[hi] == names[i] {
					hi++
					i++
				}
			}
		}
		gone := x.takeAway(r, t, k, lo, hi)
		unknown += int(hi-lo) - min(int(gone), int(hi-lo))
		if k.side.used > 0 {
			k.side.loose++
			if !x.holdsAny(r, k.num, lo) {
				k.side.remove(name, p)
			}
		}
	}
	return unknown
}

// takeAway takes [lo, hi) of a run from a slot and says how many blocks went.
func (x *Index) takeAway(r hrun, t Tier, k *slotState, lo, hi uint32) (gone uint32) {
	r.open()
	if t == TierGPU && !r.low() && r.whole == 0 && r.ents == 1 && hi == r.length() && lo > 0 && entryTo(r.inl[0]) == openEnd {
		gone = hi - lo // the end of a run that nobody else holds: the usual case
		x.cut(r, lo, k)
	} else {
		gone = x.uncover(r, t, k.num, lo, hi)
		x.settle(r, k)
	}
	r.close()
	x.hold(k, t, -int64(gone))
	return gone
}
