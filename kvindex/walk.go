package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/stator-go/stator/kvindex/block"
)

// Lookup writes into dst how many leading blocks of chain each slot holds, for
// all tiers in one walk. It takes no lock and, once dst has grown to what the
// index needs, allocates nothing. A chain of which nothing is known costs one
// probe.
//
// Beside writers each block that counts was held by the slot at some moment of
// the call; the answer may be too low, and dst.LowerBound says so where the walk
// was cut short.
func (x *Index) Lookup(dst *Overlap, chain []block.Hash) {
	w := walk{x: x, o: dst, q: asWords(chain)}
	w.lookup()
}

const (
	lookupTries = 8
	// runTries bounds how often a walk looks at runs that change under it.
	runTries = 1000
)

// overlapScratch is the walk's working memory; the index owns its use. The
// padding keeps the buffers of two readers on separate cache lines.
type overlapScratch struct {
	cur, nxt [Tiers][]uint64 // sets of live slots, before and after a run
	ents     []uint64
	probes   int // of the head table, in the last walk
	_        [64]byte
}

// A walk goes from run to run. Every live slot is at one level: the fastest tier
// with which, taking in the faster ones, it holds all blocks so far. cur[t] is
// the set of slots at level t. While all are at the GPU level and a run has no
// other tier, only the first cache line of the run is read.
type walk struct {
	x    *Index
	o    *Overlap
	q    []uint64
	d    *dirs
	t    *headTable
	pos  int
	lo   int // words of the sets that may be set
	hi   int
	deep bool // some slot is at a level below the GPU

	// The run at hand, as read at version ver.
	r     *run
	id    uint32
	ver   uint64
	win   uint64
	whole uint64
	ents  uint64
	n     int // blocks that the run and the chain have in common from pos on
	tries int

	// between is nil but in tests, which do there what writers could.
	between func()
}

func (w *walk) lookup() {
	for range lookupTries {
		w.o.Reset()
		reuse := w.x.reuse.Load()
		w.run()
		if w.x.reuse.Load() == reuse {
			return
		}
		// A slot number began to count for something new: what was read before
		// and after may belong to two different workers.
	}
	w.o.Reset()
	w.o.LowerBound = true
}

// window is a place between two reads where a writer may come in.
func (w *walk) window() {
	if w.between != nil {
		w.between()
	}
}

func (w *walk) run() {
	o, s := w.o, &w.o.scratch
	live := *w.x.live.Load()
	nw := len(live)
	for t := range s.cur {
		if cap(s.cur[t]) < nw {
			n := (nw + 15) &^ 15 // whole cache lines
			s.cur[t], s.nxt[t] = make([]uint64, n), make([]uint64, n)
		}
		s.cur[t], s.nxt[t] = s.cur[t][:cap(s.cur[t])], s.nxt[t][:cap(s.nxt[t])]
	}
	cur := s.cur[0]
	for i := range live {
		cur[i] = atomic.LoadUint64(&live[i])
	}
	s.probes = 0
	w.pos, w.lo, w.hi, w.deep, w.tries = 0, 0, nw, false, 0
	w.d, w.t = w.x.dirs.Load(), w.x.heads.Load()
	w.window()
	w.trim()
	for w.pos < len(w.q) && w.lo < w.hi && w.find() {
		for {
			ok := false
			if !w.deep && w.win&lowerFlag == 0 {
				ok = w.step()
			} else {
				ok = w.stepDeep()
			}
			if ok {
				break
			}
			if !w.again() {
				goto out
			}
		}
	}
out:
	if w.pos > 0 && w.lo < w.hi {
		o.emit(TierGPU, w.pos, s.cur[0][w.lo:w.hi], w.lo)
		if w.deep {
			for t := TierGPU + 1; t < Tiers; t++ {
				o.emit(t, w.pos, s.cur[t][w.lo:w.hi], w.lo)
			}
		}
	}
}

// find looks for the run that the next block of the chain heads, and reads its
// header; false if there is none, or it cannot be read.
func (w *walk) find() bool {
	h := w.q[w.pos]
	for i := h & w.t.mask; ; i = (i + 1) & w.t.mask {
		v := atomic.LoadUint64(&w.t.slots[i])
		w.o.scratch.probes++
		if v == 0 {
			return false
		}
		if v>>32 != h>>32 || uint32(v) == 0 {
			continue
		}
		w.id = uint32(v)
		if w.r = w.d.run(w.id); w.r == nil {
			w.d = w.x.dirs.Load()
			if w.r = w.d.run(w.id); w.r == nil {
				continue
			}
		}
		ok, found := w.read()
		if !ok {
			return false
		}
		if found {
			return true
		}
	}
}

// again reads the run at hand once more after it changed; false if it is not the
// run any more that was looked for, or changes all the time.
func (w *walk) again() bool {
	if w.tries++; w.tries > runTries {
		w.o.LowerBound = true
		return false
	}
	ok, found := w.read()
	if ok && !found { // it was cut off or moved: the walk goes on from the table
		w.o.LowerBound = true
	}
	return ok && found
}

// read reads the header and compares the chain with the run's hashes. ok is false
// when the run changed all the time, found when its first block is not the one
// looked for. What it read holds only if the version is checked after.
func (w *walk) read() (ok, found bool) {
	for {
		w.ver = atomic.LoadUint64(&w.r.ver)
		if w.ver&1 != 0 {
			if w.tries++; w.tries > runTries {
				w.o.LowerBound = true
				return false, false
			}
			continue
		}
		w.win = atomic.LoadUint64(&w.r.win)
		w.window()
		w.whole = atomic.LoadUint64(&w.r.whole)
		w.ents = atomic.LoadUint64(&w.r.ents)
		w.d = w.x.dirs.Load()
		if w.win == 0 {
			return true, false
		}
		w.window()
		c := w.d.hashesAt(winBase(w.win), winLen(w.win))
		if len(c) > 0 {
			if w.n = match(w.q[w.pos:], c); w.n > 0 {
				return true, true
			}
		}
		if atomic.LoadUint64(&w.r.ver) == w.ver {
			return true, false
		}
		if w.tries++; w.tries > runTries {
			w.o.LowerBound = true
			return false, false
		}
	}
}

// valid says whether the run is still as it was read.
func (w *walk) valid() bool {
	w.window()
	return atomic.LoadUint64(&w.r.ver) == w.ver
}

// step takes the live slots through a run, all in the GPU tier; false if the run
// changed meanwhile, then nothing has happened.
func (w *walk) step() bool {
	w.window()
	s := &w.o.scratch
	p := &w.o.tiers[TierGPU]
	cur, nxt := s.cur[0], s.nxt[0]
	lo, hi, np := w.lo, w.hi, len(p.pairs)
	left := uint64(0)
	if w.whole != 0 {
		ws := w.d.wordsAt(w.whole)
		for j := lo; j < hi; j++ {
			var b uint64
			if j < len(ws) {
				b = cur[j] & atomic.LoadUint64(&ws[j])
			}
			nxt[j] = b
			left |= cur[j] ^ b
		}
	} else {
		clear(nxt[lo:hi])
		left = 1
	}
	if left != 0 && w.ents != 0 {
		es := w.entries(&w.r.list, w.ents)
		p.pairs = slices.Grow(p.pairs, len(es))
		pairs := p.pairs[np : np+len(es)]
		k := 0
		for j := range es {
			e := atomic.LoadUint64(&es[j])
			slot := entrySlot(e)
			i := int(slot / 64)
			if i < lo || i >= hi || entryFrom(e) != 0 {
				continue
			}
			alive := cur[i] >> (slot % 64) & 1
			if to := entryTo(e); int(to) >= w.n {
				nxt[i] |= alive << (slot % 64)
			} else if k < len(pairs) {
				pairs[k] = Pair{slot, uint32(w.pos) + to}
				k += int(alive)
			}
		}
		p.pairs = p.pairs[:np+k]
	}
	if !w.valid() {
		p.pairs = p.pairs[:np]
		return false
	}
	if left != 0 && w.pos > 0 {
		// Those that end before this run: what is left of cur.
		for _, q := range p.pairs[np:] {
			cur[q.Num/64] &^= 1 << (q.Num % 64)
		}
		rest := uint64(0)
		for j := lo; j < hi; j++ {
			cur[j] &^= nxt[j]
			rest |= cur[j]
		}
		if rest != 0 {
			w.o.emit(TierGPU, w.pos, cur[lo:hi], lo)
		}
	}
	s.cur[0], s.nxt[0] = nxt, cur
	w.pos += w.n
	w.trim()
	return true
}

// entries returns the entries of a list of the run at hand.
func (w *walk) entries(l *list, ents uint64) []uint64 {
	if ents>>32 != 0 {
		return w.d.wordsAt(ents)
	}
	return l.inl[:min(uint32(ents), inlineEntries)]
}

// trim narrows the range of words with live slots.
func (w *walk) trim() {
	s := &w.o.scratch
	empty := func(j int) bool {
		v := s.cur[0][j]
		if w.deep {
			v |= s.cur[1][j] | s.cur[2][j] | s.cur[3][j]
		}
		return v == 0
	}
	for w.lo < w.hi && empty(w.lo) {
		w.lo++
	}
	for w.hi > w.lo && empty(w.hi-1) {
		w.hi--
	}
}

// match is the length of the common prefix of a chain and the hashes of a run.
// Equal hashes at a position mean equal chains up to it, so the last position is
// compared first, and then halves.
func match(q, c []uint64) int {
	n := min(len(q), len(c))
	if q[n-1] == atomic.LoadUint64(&c[n-1]) {
		return n
	}
	lo, hi := 0, n-1 // equal below lo, different at hi
	for lo < hi {
		if m := int(uint(lo+hi) / 2); q[m] == atomic.LoadUint64(&c[m]) {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// emit adds a set of slots that end at a depth, without the empty words around it.
func (o *Overlap) emit(t Tier, depth int, words []uint64, base int) {
	for len(words) > 0 && words[0] == 0 {
		words, base = words[1:], base+1
	}
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	if len(words) > 0 {
		o.AddGroup(t, uint32(depth), uint32(base), words)
	}
}
