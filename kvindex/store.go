package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/stator-go/stator/kvindex/block"
)

// pieceLen is the number of blocks that a writer handles under one hold of the
// lock.
const pieceLen = 1024

// Store notes that the slot holds the blocks of chain in tier t: each is the
// child of its predecessor and the first the child of parent. Parent 0 is the
// root: the chain begins a sequence. (No block has the hash 0 but by a chance of
// 2^-64, and then only its children are refused or missed.)
//
// The parent must be a block that the slot holds in some tier; it may be one that
// it held before and other slots hold still. Otherwise ErrParent is returned and
// nothing is stored: store the chain from the root, or the parent first. Blocks
// that the slot holds already stay as they are; the index keeps a set and no
// counts. Nothing of the arguments is kept.
//
// Other errors are ErrSlot for a slot that is not attached (a late store after
// Detach stores nothing), ErrTier, ErrBudget, and ErrNaming for a slot that a
// Stream feeds.
func (x *Index) Store(s Slot, t Tier, parent block.Hash, chain []block.Hash) error {
	p := parentRef{has: parent != 0, name: uint64(parent), hash: parent}
	words := asWords(chain)
	_, err := x.store(s, t, namingHash, p, 0, words, words, nil, false)
	return err
}

// storeNamed notes that the slot holds, in tier t, the blocks chain[i] under
// the names names[i], each the child of its predecessor and the first the child
// of parent. Names of blocks that the slot held in t already are appended to
// dup. A parent that cannot be resolved, or not in this scope, is ErrParent and
// changes nothing. The caller holds a pin of the scope.
func (x *Index) storeNamed(s Slot, t Tier, parent parentRef, scope uint32, names []uint64, chain []block.Hash, dup []uint64) ([]uint64, error) {
	if len(names) != len(chain) {
		return dup, ErrShape
	}
	return x.store(s, t, namingOwn, parent, scope, names, asWords(chain), dup, true)
}

func (x *Index) store(s Slot, t Tier, how naming, parent parentRef, scope uint32, names, hashes, dup []uint64, wantDup bool) ([]uint64, error) {
	if t >= Tiers {
		return dup, ErrTier
	}
	k := x.slot(s)
	if k == nil {
		return dup, ErrSlot
	}
	if len(hashes) == 0 {
		return dup, nil
	}
	return x.storeIn(k, t, how, parent, scope, names, hashes, dup, wantDup)
}

func (x *Index) storeIn(k *slotState, t Tier, how naming, parent parentRef, scope uint32, names, hashes, dup []uint64, wantDup bool) ([]uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone.Load() { // its name map may be given up already, and must not grow
		return dup, ErrSlot
	}
	if k.naming != how {
		if k.naming != namingUnset {
			return dup, ErrNaming
		}
		k.naming = how
	}
	in := insertion{k: k, t: t, scope: scope, dup: dup, wantDup: wantDup}
	trimmed := false
	for first := true; len(hashes) > 0; {
		n := min(len(hashes), pieceLen)
		in.names, in.hashes = names[:n], hashes[:n]
		fits := k.m.ensure(in.names, &x.mem)
		x.mu.Lock()
		if k.gone.Load() {
			x.mu.Unlock()
			return in.dup, ErrSlot
		}
		if len(x.dead) > 0 {
			x.sweep(sweepPerEvent)
		}
		in.cur, in.off = 0, 0
		if !first {
			parent = parentRef{has: true, name: k.last.name, at: k.last.at, hash: block.Hash(k.last.hash)}
		}
		if parent.has {
			p, ok := x.parent(k, parent, scope)
			if !ok {
				x.mu.Unlock()
				return in.dup, ErrParent
			}
			in.cur, in.off = p.run(), p.off()+1
		}
		done := 0
		if fits {
			done = x.insert(&in)
		}
		refused := false
		if done < n {
			if !trimmed && x.freed >= trimAfter {
				trimmed = true
				x.trim()
			} else {
				refused = true
				x.count.Refused++
			}
		}
		x.commit(k, in.names)
		if refused {
			return in.dup, ErrBudget
		}
		if done > 0 {
			first = false
			names, hashes = names[done:], hashes[done:]
		}
	}
	return in.dup, nil
}

// trimAfter is the number of runs that must have been cut since the last trim
// before a store that finds no room tries another.
const trimAfter = 64

// parent finds the place of a parent (locked).
func (x *Index) parent(k *slotState, ref parentRef, scope uint32) (place, bool) {
	for _, p := range [2]place{k.last.at, ref.at} {
		if p == 0 {
			continue
		}
		h, ok := x.blockAt(p)
		if !ok || ref.hash != 0 && h != ref.hash || x.hrun(p.run()).m.scope != scope {
			continue
		}
		if p == k.last.at && ref.name == k.last.name && uint64(h) == k.last.hash || x.nameIs(ref.name, p) {
			return p, true
		}
	}
	p, ok := x.lookupKnown(k, ref.name, ref.hash)
	return p, ok && x.hrun(p.run()).m.scope == scope
}

// insertion is a store on its way into the tree: below cur (a run, 0 = the root)
// at off.
type insertion struct {
	k       *slotState
	t       Tier
	scope   uint32
	cur     uint32
	off     uint32
	names   []uint64
	hashes  []uint64
	dup     []uint64
	wantDup bool
}

// insert walks the chain into the tree and returns how many of its blocks it
// stored: fewer than all only if the budget had no room for the next (locked).
//
// At every step the chain is in one of four situations: it agrees with the rest
// of the run that it is in; it meets the first block of another run; it is at the
// end of a run that may grow under it; or it begins a new run.
func (x *Index) insert(in *insertion) int {
	k, n := in.k, len(in.hashes)
	for i := 0; i < n; {
		if in.cur != 0 {
			r := x.hrun(in.cur)
			have := r.length()
			if in.off < have {
				if m := prefix(in.hashes[i:], x.d.hashesAt(winBase(r.win)+in.off, have-in.off)); m > 0 {
					if !x.join(in, r, i, uint32(m)) {
						return i
					}
					i += m
					k.last = lastBlock{at(in.cur, in.off-1), in.names[i-1], in.hashes[i-1]}
					continue
				}
			}
			if id := x.findHead(in.hashes[i]); id != 0 {
				in.cur, in.off = id, 0
				continue
			}
			if in.off == have && r.m.names == k.names && x.soleWhole(r, in.t, k.num) {
				if m := x.extend(in, r, i); m > 0 {
					i += m
					k.last = lastBlock{at(in.cur, in.off-1), in.names[i-1], in.hashes[i-1]}
					continue
				}
			}
		} else if id := x.findHead(in.hashes[i]); id != 0 {
			in.cur, in.off = id, 0
			continue
		}
		m := x.begin(in, i)
		if m == 0 {
			return i
		}
		i += m
		k.last = lastBlock{at(in.cur, in.off-1), in.names[i-1], in.hashes[i-1]}
	}
	return n
}

// join makes the slot a holder of m blocks of the run, from in.off on, which are
// those of the chain from i on.
func (x *Index) join(in *insertion, r hrun, i int, m uint32) bool {
	names := in.names[i : i+int(m)]
	if !x.coverReady(r, in.t, storeReserve) || !x.agree(in.k, r, in.off, names) {
		return false
	}
	var ask []uint64
	if in.wantDup {
		ask = names
	}
	if x.hasWhole(r, in.t, in.k.num) {
		in.dup = append(in.dup, ask...)
		in.off += m
		return true
	}
	r.open()
	fresh, dup := x.cover(r, in.t, in.k.num, in.off, in.off+m, ask, in.dup)
	r.close()
	in.dup = dup
	x.hold(in.k, in.t, int64(fresh))
	in.off += m
	if c := x.splitAt(r, in.t); c != 0 {
		if id := x.split(r, c); id != 0 && in.off > c {
			in.cur, in.off = id, in.off-c
		}
	}
	return true
}

// extend appends the chain from i on to the run, as far as it may.
func (x *Index) extend(in *insertion, r hrun, i int) int {
	if r.low() {
		for t := TierGPU; t < Tiers; t++ {
			if !x.coverReady(r, t, storeReserve) {
				return 0
			}
		}
	}
	m := x.grow(r, uint32(len(in.hashes)-i))
	if m == 0 {
		return 0
	}
	r.open()
	if r.low() {
		x.bound(r, in.t, in.k.num)
	}
	m = x.fill(r, in.k, in.names[i:], in.hashes[i:i+int(m)], i)
	r.close()
	x.hold(in.k, in.t, int64(m))
	in.off += m
	return int(m)
}

// begin makes a new run of the chain from i on.
func (x *Index) begin(in *insertion, i int) int {
	m := uint32(len(in.hashes) - i)
	if !x.runReady() || !x.hashes.ready(m, storeReserve) || !x.headReady() ||
		in.t != TierGPU && !x.lowerReady(x.avail) {
		return 0
	}
	r, _ := x.newRun()
	base, size := x.hashes.alloc(m)
	r.open()
	*r.m = runMeta{size: size, names: in.k.names, scope: in.scope}
	x.holdScope(in.scope)
	x.nruns++
	atomic.StoreUint64(&r.win, uint64(base)<<32)
	if in.t != TierGPU {
		x.addLower(r)
	}
	_, _, l, _ := x.plane(r, in.t)
	atomic.StoreUint64(&l.inl[0], entry(in.k.num, 0, openEnd, in.t))
	atomic.StoreUint64(&l.ents, 1)
	m = x.fill(r, in.k, in.names[i:], in.hashes[i:], i)
	r.close()
	x.link(in.hashes[i], r.id)
	x.hold(in.k, in.t, int64(m))
	in.cur, in.off = r.id, m
	return int(m)
}

// agree sees to it that the slot can find the run's blocks from off on under its
// own names; false if the budget has no room.
func (x *Index) agree(k *slotState, r hrun, off uint32, names []uint64) bool {
	have := x.namesAt(winBase(r.win)+off, uint32(len(names)))
	if slices.Equal(names, have) && x.share(k, r.m.names) {
		return true
	}
	n := 0
	for i := range have {
		if names[i] != have[i] {
			n++
		}
	}
	reach := n < len(names) && x.share(k, r.m.names)
	if !reach {
		n = len(names)
	}
	before := len(k.side.slots)
	if !x.sideReady(k, n) || !k.side.ensure(n, &x.mem) {
		return false
	}
	if before == 0 {
		x.sided++
	}
	hashes := x.d.hashesAt(winBase(r.win)+off, uint32(len(names)))
	for i := range have {
		if !reach || names[i] != have[i] {
			k.side.put(names[i], at(r.id, off+uint32(i)), hashes[i])
		}
	}
	return true
}

// commit leaves the lock and brings the slot's name map up to date.
func (x *Index) commit(k *slotState, names []uint64) {
	if len(k.lane.ins) == 0 && len(k.lane.del) == 0 {
		x.mu.Unlock()
		return
	}
	k.m.pending.Add(1)
	x.mu.Unlock()
	k.lane.rename(k.m, names)
	k.m.pending.Add(-1)
}

// touchBatch: so many lines of a map are loaded before they are used, to overlap
// their misses and still fit the first cache.
const touchBatch = 64

func (l *lane) rename(m *nameMap, names []uint64) {
	m.mu.Lock()
	var s uint64
	for _, d := range l.del {
		gone := l.gone[d.at : d.at+d.n]
		for lo := 0; lo < len(gone); lo += touchBatch {
			part := gone[lo:min(lo+touchBatch, len(gone))]
			for _, name := range part {
				s += m.touch(name)
			}
			for i, name := range part {
				m.remove(name, d.p+place(lo+i))
			}
		}
	}
	for _, d := range l.ins {
		fresh := names[d.at : d.at+d.n]
		for lo := 0; lo < len(fresh); lo += touchBatch {
			part := fresh[lo:min(lo+touchBatch, len(fresh))]
			for _, name := range part {
				s += m.touch(name)
			}
			for i, name := range part {
				m.insert(name, d.p+place(lo+i))
			}
		}
	}
	m.mu.Unlock()
	l.sink += s
	if l.ins, l.del, l.gone = l.ins[:0], l.del[:0], l.gone[:0]; cap(l.gone) > pieceLen/8 || cap(l.ins) > pieceLen/8 {
		*l = lane{}
	}
}

// storeKnown notes that blocks named before are in tier t too. Names of blocks
// that the slot held in t already are appended to dup; unknown counts names that
// cannot be resolved.
func (x *Index) storeKnown(s Slot, t Tier, names []uint64, dup []uint64) (_ []uint64, unknown int, err error) {
	if t >= Tiers {
		return dup, 0, ErrTier
	}
	k := x.slot(s)
	if k == nil {
		return dup, 0, ErrSlot
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.naming == namingHash {
		return dup, 0, ErrNaming
	}
	for len(names) > 0 {
		n := min(len(names), pieceLen)
		x.mu.Lock()
		if k.gone.Load() {
			x.mu.Unlock()
			return dup, unknown, ErrSlot
		}
		for i := 0; i < n; {
			p, ok := x.lookupKnown(k, names[i], 0)
			if !ok {
				unknown++
				i++
				continue
			}
			r := x.hrun(p.run())
			m := 1
			if k.side.used == 0 {
				next := x.namesAt(winBase(r.win)+p.off(), r.length()-p.off())
				for i+m < n && m < len(next) && names[i+m] == next[m] {
					m++
				}
			}
			if !x.coverReady(r, t, storeReserve) {
				x.count.Refused++
				x.mu.Unlock()
				return dup, unknown, ErrBudget
			}
			var fresh uint32
			r.open()
			fresh, dup = x.cover(r, t, k.num, p.off(), p.off()+uint32(m), names[i:i+m], dup)
			r.close()
			x.hold(k, t, int64(fresh))
			i += m
		}
		x.mu.Unlock()
		names = names[n:]
	}
	return dup, unknown, nil
}
