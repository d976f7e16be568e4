package kvindex

import (
	"slices"
	"sync/atomic"
)

// stepDeep takes the live slots through a run when other tiers than the GPU are
// in play; false if the run changed meanwhile, then nothing has happened.
//
// A slot at level t goes on at that level if tiers 0 to t together have all
// blocks of the run; else it ends there, with as many blocks as they have from
// the start, and goes on at the first level below that has all. A slot that holds
// the whole run in one tier is settled by bits; only those with parts need their
// entries, which are brought in order by slot and offset.
func (w *walk) stepDeep() bool {
	w.window()
	s := &w.o.scratch
	lo, hi := w.lo, w.hi
	if !w.deep {
		for t := 1; t < Tiers; t++ {
			clear(s.cur[t][lo:hi])
		}
	}
	// Read both lines. The directories were loaded after the version, so they know
	// every word that the lines refer to at that version; a line that changed since
	// may lead nowhere, and voids the step.
	var whole [Tiers][]uint64
	var low *lower
	var lowWhole [Tiers - 1]uint64
	var lowEnts uint64
	if w.win&lowerFlag != 0 {
		if low = w.d.lower(w.id); low == nil {
			return false
		}
		for t := range lowWhole {
			lowWhole[t] = atomic.LoadUint64(&low.whole[t])
		}
		lowEnts = atomic.LoadUint64(&low.ents)
		w.window()
	}
	if w.whole != 0 {
		whole[0] = w.d.wordsAt(w.whole)
	}
	for t, v := range lowWhole {
		if v != 0 {
			whole[t+1] = w.d.wordsAt(v)
		}
	}
	left := uint64(0)
	for j := lo; j < hi; j++ {
		var has [Tiers]uint64
		for t, ws := range whole {
			if j < len(ws) {
				has[t] = atomic.LoadUint64(&ws[j])
			}
		}
		var next [Tiers]uint64
		upTo := uint64(0)
		for t := range Tiers {
			upTo |= has[t]
			c := s.cur[t][j]
			next[t] |= c & upTo
			c &^= upTo
			left |= c
			for u := t + 1; u < Tiers && c != 0; u++ {
				next[u] |= c & has[u]
				c &^= has[u]
			}
		}
		for t := range Tiers {
			s.nxt[t][j] = next[t]
		}
	}
	s.ents = s.ents[:0]
	if left != 0 {
		w.gather(w.entries(&w.r.list, w.ents))
		if low != nil {
			w.gather(w.entries(&low.list, lowEnts))
		}
	}
	if !w.valid() {
		return false
	}
	slices.Sort(s.ents)
	for es := s.ents; len(es) > 0; {
		n := 1
		for n < len(es) && entrySlot(es[n]) == entrySlot(es[0]) {
			n++
		}
		w.settle(es[:n])
		es = es[n:]
	}
	below := uint64(0)
	for t := range Tiers {
		cur, nxt := s.cur[t], s.nxt[t]
		rest := uint64(0)
		for j := lo; j < hi; j++ {
			cur[j] &^= nxt[j]
			rest |= cur[j]
			if t > 0 {
				below |= nxt[j]
			}
		}
		if rest != 0 && w.pos > 0 {
			w.o.emit(Tier(t), w.pos, cur[lo:hi], lo)
		}
		s.cur[t], s.nxt[t] = nxt, cur
	}
	w.deep = below != 0
	w.pos += w.n
	w.trim()
	return true
}

// gather copies the entries of slots that do not go on at their level by bits.
func (w *walk) gather(es []uint64) {
	s := &w.o.scratch
	for j := range es {
		e := atomic.LoadUint64(&es[j])
		slot := entrySlot(e)
		i := int(slot / 64)
		if i < w.lo || i >= w.hi || entryTier(e) >= Tiers {
			continue
		}
		for t := range Tiers {
			if s.cur[t][i]&^s.nxt[t][i]>>(slot%64)&1 != 0 {
				s.ents = append(s.ents, e)
				break
			}
		}
	}
}

// settle finds out how far a slot gets that has entries, all of them in es by
// offset: where it ends at its level, and at which it goes on.
func (w *walk) settle(es []uint64) {
	s := &w.o.scratch
	slot := entrySlot(es[0])
	i, bit := slot/64, uint64(1)<<(slot%64)
	level, by := Tiers, Tiers // its level, and the one at which it holds all as a whole
	for t := range Tiers {
		if s.cur[t][i]&bit != 0 {
			level = t
		}
		if s.nxt[t][i]&bit != 0 {
			by = t
			s.nxt[t][i] &^= bit
		}
	}
	if level == Tiers {
		return
	}
	s.cur[level][i] &^= bit
	reach := uint32(0)
	for t := level; t < Tiers; t++ {
		before := reach
		reach = 0
		for _, e := range es {
			if int(entryTier(e)) <= t && entryFrom(e) <= reach {
				reach = max(reach, entryTo(e))
			}
		}
		if t == by || int(reach) >= w.n {
			s.nxt[t][i] |= bit
			return
		}
		if depth := uint32(w.pos) + reach; t == level && depth > 0 || reach > before {
			w.o.AddPair(Tier(t), slot, depth)
		}
	}
}
