package kvindex

import "sync/atomic"

// A run is a piece of a chain: up to 2^16 consecutive blocks whose hashes lie in
// one window. It is found by the hash of its first block.
//
// run is the part that readers see of it for the GPU tier, one cache line.
// Everything below ver, the words that it refers to and the second line change
// only while ver is odd, by atomic stores. A reader believes nothing that it read
// unless ver was even before and is the same after.
type run struct {
	ver   uint64
	win   uint64 // window<<32 | lowerFlag | length; 0 = the run is free
	whole uint64 // bitset of slots that hold the whole run: ref<<32 | words
	list
}

// lower is the second cache line: the other tiers. It exists, and lowerFlag is
// set in win, while some slot holds a block of the run there.
type lower struct {
	whole [Tiers - 1]uint64
	list
}

// list is coverage of slots that hold a part of a run: ref<<32 | n entries, which
// are in inl if ref is 0. The order means nothing.
type list struct {
	ents uint64
	inl  [inlineEntries]uint64
}

const (
	inlineEntries = 4
	lenMask       = 1<<17 - 1
	lowerFlag     = 1 << 31
	maxRun        = 1<<26 - 1
	maxSlot       = 1<<20 - 1
)

func winBase(w uint64) uint32 { return uint32(w >> 32) }
func winLen(w uint64) uint32  { return uint32(w) & lenMask }

// An entry is slot<<44 | from<<24 | to<<4 | tier: the slot holds the blocks
// [from, to) in the tier. A slot's entries of one tier neither meet nor touch.
// to is openEnd, and from 0, for a holder of the whole run, whatever its length.
const openEnd = 1<<20 - 1

func entry(slot, from, to uint32, t Tier) uint64 {
	return uint64(slot)<<44 | uint64(from)<<24 | uint64(to)<<4 | uint64(t)
}
func entrySlot(e uint64) uint32 { return uint32(e >> 44) }
func entryFrom(e uint64) uint32 { return uint32(e>>24) & openEnd }
func entryTo(e uint64) uint32   { return uint32(e>>4) & openEnd }
func entryTier(e uint64) Tier   { return Tier(e & 15) }

// runMeta is what writers keep beside a run.
type runMeta struct {
	size   uint32 // words of the window; of a free run the next free one of its chunk, plus one
	nwhole uint32 // bits set in whole
	cap    uint32 // capacity of the list, 0 if inline
	names  uint32 // the name map of its blocks
	looked uint32 // entries when a split was last considered
	scope  uint32
}

// lowerMeta is the same for the other tiers.
type lowerMeta struct {
	nwhole [Tiers - 1]uint32
	cap    uint32
}

const (
	runBits  = 9 // runs of a chunk
	runChunk = 1 << runBits
	runMask  = runChunk - 1
)

type (
	runBlock  [runChunk]run
	metaBlock struct {
		meta [runChunk]runMeta
		free uint32 // first free run of the chunk plus one, by its number in the chunk
		used uint32
	}
	lowerBlock [runChunk]lower
	lowerMetas struct {
		meta [runChunk]lowerMeta
		used uint32
	}
)

const (
	runBlockBytes   = runChunk*(64+24) + 8
	lowerBlockBytes = runChunk*(64+16) + 4
)

// dirs is what a reader needs to turn numbers into memory. It is replaced as a
// whole. A reader loads it after the number that it wants to follow, so it is
// never older; when it is newer the number may lead nowhere, or elsewhere, and
// then the version of the run has changed.
type dirs struct {
	runs   []*runBlock
	lowers []*lowerBlock
	hashes []*wordChunk
	words  []*wordChunk
}

// run returns the header, or nil.
func (d *dirs) run(id uint32) *run {
	if c := id >> runBits; int(c) < len(d.runs) && d.runs[c] != nil {
		return &d.runs[c][id&runMask]
	}
	return nil
}

func (d *dirs) lower(id uint32) *lower {
	if c := id >> runBits; int(c) < len(d.lowers) && d.lowers[c] != nil {
		return &d.lowers[c][id&runMask]
	}
	return nil
}

func window(chunks []*wordChunk, base, n uint32) []uint64 {
	c, a := base>>chunkBits, base&chunkMask
	if int(c) >= len(chunks) || chunks[c] == nil || a+n > chunkLen {
		return nil
	}
	return chunks[c][a : a+n : a+n]
}

// hashesAt returns n hashes from base on, or nil.
func (d *dirs) hashesAt(base, n uint32) []uint64 { return window(d.hashes, base, n) }

// wordsAt returns the words of a ref<<32 | n, or nil. A ref is the number of a
// window in units, plus one.
func (d *dirs) wordsAt(v uint64) []uint64 {
	return window(d.words, (uint32(v>>32)-1)*unit, uint32(v))
}

func refOf(base uint32) uint64                { return uint64(base/unit+1) << 32 }
func (x *Index) freeWords(v uint64, n uint32) { x.words.release((uint32(v>>32)-1)*unit, n) }

// hrun is a writer's handle of a run.
type hrun struct {
	*run
	m  *runMeta
	id uint32
}

func (x *Index) hrun(id uint32) hrun {
	return hrun{&x.d.runs[id>>runBits][id&runMask], &x.metas[id>>runBits].meta[id&runMask], id}
}

func (r hrun) length() uint32 { return winLen(r.win) }
func (r hrun) low() bool      { return r.win&lowerFlag != 0 }

// open and close bracket every change of what readers see.
func (r hrun) open()  { atomic.StoreUint64(&r.ver, r.ver+1) }
func (r hrun) close() { atomic.StoreUint64(&r.ver, r.ver+1) }

func (x *Index) lowerOf(id uint32) (*lower, *lowerMeta) {
	return &x.d.lowers[id>>runBits][id&runMask], &x.lowMetas[id>>runBits].meta[id&runMask]
}

// plane gives the words of a run for one tier, nil where it has none.
func (x *Index) plane(r hrun, t Tier) (whole *uint64, nwhole *uint32, l *list, capacity *uint32) {
	if t == TierGPU {
		return &r.whole, &r.m.nwhole, &r.list, &r.m.cap
	}
	if !r.low() {
		return nil, nil, nil, nil
	}
	lo, lm := x.lowerOf(r.id)
	return &lo.whole[t-1], &lm.nwhole[t-1], &lo.list, &lm.cap
}

// entries returns a list's entries.
func (x *Index) entries(l *list) []uint64 {
	if l.ents>>32 != 0 {
		return x.d.wordsAt(l.ents)
	}
	return l.inl[:uint32(l.ents)]
}

// dropEntry removes entry i; the last one takes its place (the run is open).
func (x *Index) dropEntry(l *list, capacity *uint32, i int) {
	es := x.entries(l)
	n := len(es) - 1
	atomic.StoreUint64(&es[i], es[n])
	if n > inlineEntries/2 || l.ents>>32 == 0 {
		atomic.StoreUint64(&l.ents, l.ents-1)
		return
	}
	old := l.ents
	for j := range n {
		atomic.StoreUint64(&l.inl[j], es[j])
	}
	atomic.StoreUint64(&l.ents, uint64(n))
	x.freeWords(old, *capacity)
	*capacity = 0
}

// addEntry appends an entry (the run is open and room was made by coverReady).
func (x *Index) addEntry(r hrun, t Tier, e uint64) {
	_, _, l, capacity := x.plane(r, t)
	n := uint32(l.ents)
	switch inline := l.ents>>32 == 0; {
	case inline && n < inlineEntries:
		atomic.StoreUint64(&l.inl[n], e)
	case inline && x.spill(r, l, capacity):
		x.addEntry(r, t, e)
		return
	case inline || n == *capacity:
		base, size := x.words.alloc(2 * n)
		to := window(x.d.words, base, size)
		for i, v := range x.entries(l) {
			atomic.StoreUint64(&to[i], v)
		}
		atomic.StoreUint64(&to[n], e)
		old := l.ents
		atomic.StoreUint64(&l.ents, refOf(base)|uint64(n+1))
		if !inline {
			x.freeWords(old, *capacity)
		}
		*capacity = size
		return
	default:
		atomic.StoreUint64(&x.d.wordsAt(l.ents + 1)[n], e)
	}
	atomic.StoreUint64(&l.ents, l.ents+1)
}

// spill moves whole holders out of a full inline list into bitsets; false if
// there are none.
func (x *Index) spill(r hrun, l *list, capacity *uint32) bool {
	top := [Tiers]uint32{}
	for _, e := range l.inl {
		if entryTo(e) == openEnd {
			top[entryTier(e)] = max(top[entryTier(e)], entrySlot(e))
		}
	}
	if top == [Tiers]uint32{} {
		return false
	}
	for i := 0; i < int(uint32(l.ents)); {
		e := l.inl[i]
		if entryTo(e) != openEnd {
			i++
			continue
		}
		t := entryTier(e)
		x.setWhole(r, t, entrySlot(e), top[t])
		x.dropEntry(l, capacity, i)
	}
	return true
}

// setWhole makes the slot a holder of the whole run, in a bitset that reaches at
// least to slot number top (the run is open).
func (x *Index) setWhole(r hrun, t Tier, slot, top uint32) {
	whole, nwhole, _, _ := x.plane(r, t)
	ws := x.bits(*whole)
	if top = max(top, slot); int(slot/64) >= len(ws) {
		base, size := x.words.alloc(top/64 + 1)
		to := window(x.d.words, base, size)
		for i := range to {
			v := uint64(0)
			if i < len(ws) {
				v = ws[i]
			}
			atomic.StoreUint64(&to[i], v)
		}
		old := *whole
		atomic.StoreUint64(whole, refOf(base)|uint64(size))
		if old != 0 {
			x.freeWords(old, uint32(old))
		}
		ws = to
	}
	if ws[slot/64]>>(slot%64)&1 == 0 {
		*nwhole++
		atomic.StoreUint64(&ws[slot/64], ws[slot/64]|1<<(slot%64))
	}
}

// clearWhole takes a slot out of the bitset (the run is open).
func (x *Index) clearWhole(r hrun, t Tier, slot uint32) {
	whole, nwhole, _, _ := x.plane(r, t)
	ws := x.bits(*whole)
	atomic.StoreUint64(&ws[slot/64], ws[slot/64]&^(1<<(slot%64)))
	if *nwhole--; *nwhole == 0 {
		old := *whole
		atomic.StoreUint64(whole, 0)
		x.freeWords(old, uint32(old))
	}
}

// bits returns the words of a bitset.
func (x *Index) bits(whole uint64) []uint64 {
	if whole == 0 {
		return nil
	}
	return x.d.wordsAt(whole)
}

// hasWhole says whether the slot is in the bitset of the tier.
func (x *Index) hasWhole(r hrun, t Tier, slot uint32) bool {
	whole, _, _, _ := x.plane(r, t)
	if whole == nil || *whole == 0 {
		return false
	}
	ws := x.bits(*whole)
	return int(slot/64) < len(ws) && ws[slot/64]>>(slot%64)&1 != 0
}

// holds says whether the slot holds block off of the run in the tier.
func (x *Index) holds(r hrun, t Tier, slot, off uint32) bool {
	if off >= r.length() {
		return false
	}
	if x.hasWhole(r, t, slot) {
		return true
	}
	_, _, l, _ := x.plane(r, t)
	if l == nil {
		return false
	}
	for _, e := range x.entries(l) {
		if entrySlot(e) == slot && entryTier(e) == t && entryFrom(e) <= off && off < entryTo(e) {
			return true
		}
	}
	return false
}

// holdsAny says the same of any tier.
func (x *Index) holdsAny(r hrun, slot, off uint32) bool {
	if x.holds(r, TierGPU, slot, off) {
		return true
	}
	if r.low() {
		for t := TierGPU + 1; t < Tiers; t++ {
			if x.holds(r, t, slot, off) {
				return true
			}
		}
	}
	return false
}

// newRun takes a free header; ok is false when the budget has no room for one.
// keep is what must stay free of it.
func (x *Index) newRun() (hrun, bool) {
	if !x.runReady() {
		return hrun{}, false
	}
	c := x.avail
	mb := x.metas[c]
	i := mb.free - 1
	r := x.hrun(c<<runBits | i)
	mb.free = r.m.size
	mb.used++
	*r.m = runMeta{}
	return r, true
}

// runReady makes sure that newRun has a header to take.
func (x *Index) runReady() bool {
	if int(x.avail) < len(x.metas) && x.metas[x.avail] != nil && x.metas[x.avail].free != 0 {
		return true
	}
	hole := -1
	for i := len(x.metas) - 1; i >= 0; i-- { // rare: once a chunk
		if x.metas[i] == nil {
			hole = i
		} else if x.metas[i].free != 0 {
			x.avail = uint32(i)
			return true
		}
	}
	if hole < 0 {
		hole = len(x.metas)
	}
	if hole > maxRun>>runBits || !x.mem.take(kindRuns, runBlockBytes, storeReserve) {
		return false
	}
	mb := &metaBlock{}
	for i := runChunk; i > 0; i-- {
		mb.meta[i-1].size = mb.free
		mb.free = uint32(i)
	}
	if hole == 0 {
		mb.free = mb.meta[0].size // run 0 is none
	}
	d := *x.d
	if hole == len(x.metas) {
		x.metas = append(x.metas, mb)
		x.lowMetas = append(x.lowMetas, nil)
		d.runs = append(d.runs, new(runBlock))
		d.lowers = append(d.lowers, nil)
	} else {
		x.metas[hole] = mb
		d.runs = replaced(d.runs, hole, new(runBlock))
	}
	x.setDirs(&d)
	x.avail = uint32(hole)
	return true
}

// replaced is a copy of s with another element i: readers may still look at s.
func replaced[T any](s []*T, i int, v *T) []*T {
	s = append([]*T(nil), s...)
	s[i] = v
	return s
}

// freeRun gives back the header, the window and the words of a run that nobody
// holds (the run is open).
func (x *Index) freeRun(r hrun) {
	x.dropLower(r)
	if r.whole != 0 {
		x.freeWords(r.whole, uint32(r.whole))
	}
	if r.ents>>32 != 0 {
		x.freeWords(r.ents, r.m.cap)
	}
	base := winBase(r.win)
	atomic.StoreUint64(&r.win, 0)
	atomic.StoreUint64(&r.whole, 0)
	atomic.StoreUint64(&r.ents, 0)
	x.hashes.release(base, r.m.size)
	x.releaseScope(r.m.scope)
	mb := x.metas[r.id>>runBits]
	*r.m = runMeta{size: mb.free}
	mb.free = r.id&runMask + 1
	mb.used--
	x.nruns--
}

// lowerReady makes sure that the second lines of a chunk of runs have memory.
func (x *Index) lowerReady(c uint32) bool {
	if x.lowMetas[c] != nil {
		return true
	}
	if !x.mem.take(kindRuns, lowerBlockBytes, storeReserve) {
		return false
	}
	x.lowMetas[c] = &lowerMetas{}
	d := *x.d
	d.lowers = replaced(d.lowers, int(c), new(lowerBlock))
	x.setDirs(&d)
	return true
}

// addLower gives the run its second line (the run is open; lowerReady was true).
func (x *Index) addLower(r hrun) {
	if !r.low() {
		x.lowMetas[r.id>>runBits].used++
		atomic.StoreUint64(&r.win, r.win|lowerFlag)
	}
}

// dropLower takes the second line away and frees its words (the run is open).
func (x *Index) dropLower(r hrun) {
	if !r.low() {
		return
	}
	lo, lm := x.lowerOf(r.id)
	for t := range lo.whole {
		if v := lo.whole[t]; v != 0 {
			atomic.StoreUint64(&lo.whole[t], 0)
			x.freeWords(v, uint32(v))
		}
	}
	if v := lo.ents; v>>32 != 0 {
		x.freeWords(v, lm.cap)
	}
	atomic.StoreUint64(&lo.ents, 0)
	*lm = lowerMeta{}
	x.lowMetas[r.id>>runBits].used--
	atomic.StoreUint64(&r.win, r.win&^lowerFlag)
}

// slotsUpTo is the number of words of a bitset that holds the slot.
func slotsUpTo(slot uint32) uint32 { return slot/64 + 1 }
