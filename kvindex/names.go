package kvindex

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// nameMap maps names to places, for writers only. It holds the names of the
// blocks that one slot was the first to store, so that a worker's events touch a
// table of that worker's size and not of the index's.
//
// Eight segments by the top bits of the mixed name; a segment is an array of
// 64-byte buckets of seven entries (tag 22 bits, run 26, offset 16) and a word of
// seven fingerprints and one count of names that went on to a later bucket. The
// name itself is not kept: a candidate is checked against the names in the run.
// An entry's home follows from its tag, so growth reads no other memory, and
// doubling sends bucket i to 2i and 2i+1.
type nameMap struct {
	mu      spinLock
	pending atomic.Int32 // batches that are in the tree and not yet here
	orphan  bool         // its slot is gone; it ends with its last name
	room    int          // names that surely fit without growth
	floor   int          // buckets of a segment that trim leaves, while the slot lives
	seg     [1 << segBits]segment
}

type segment struct {
	b     []bucket // a power of two, or none
	used  int
	max   int
	shift uint8 // of a tag, to its home
}

type bucket struct {
	meta  uint64
	entry [bucketLen]uint64
}

const (
	segBits     = 3
	tagBits     = 22
	tagMask     = 1<<tagBits - 1
	bucketLen   = 7
	bucketBytes = 64
	fillPercent = 75

	placeBits  = 42
	placeMask  = 1<<placeBits - 1
	printLanes = 0x0080808080808080
	everyByte  = 0x0101010101010101
	passedOne  = 1 << 56
	passedMax  = 255
)

func at(run, off uint32) place  { return place(run)<<16 | place(off) }
func (p place) run() uint32     { return uint32(p>>16) & maxRun }
func (p place) off() uint32     { return uint32(p & 0xffff) }
func mixName(n uint64) uint64   { return n * 0x9E3779B97F4A7C15 }
func tagOf(m uint64) uint64     { return m >> (64 - segBits - tagBits) & tagMask }
func segmentOf(m uint64) uint64 { return m >> (64 - segBits) }

func (m *nameMap) len() (n int) {
	for i := range m.seg {
		n += m.seg[i].used
	}
	return n
}

// wait returns when all batches that are in the tree are in the map.
func (m *nameMap) wait() {
	for m.pending.Load() > 0 {
		runtime.Gosched()
	}
}

// prints marks the lanes of meta that hold the tag's fingerprint; a false mark is
// possible.
func prints(meta, tag uint64) uint64 {
	v := meta ^ (tag&0x7f|0x80)*everyByte
	return (v - everyByte) &^ v & printLanes
}

func laneOf(mark uint64) uint { return uint(bits.TrailingZeros64(mark)) / 8 % bucketLen }

// touch loads the home line of a name, so that the misses of a batch overlap.
func (m *nameMap) touch(name uint64) uint64 {
	h := mixName(name)
	g := &m.seg[segmentOf(h)]
	if i := tagOf(h) >> (g.shift & 31); i < uint64(len(g.b)) {
		return g.b[i].meta
	}
	return 0
}

// ensure makes room for names, charging the budget; false if there is none. The
// names are then taken to be in the map, whether they are inserted or not.
func (m *nameMap) ensure(names []uint64, mem *budget) bool {
	if m.room -= len(names); m.room >= 0 {
		return true
	}
	m.mu.Lock() // others may take names out
	defer m.mu.Unlock()
	m.count()
	if m.room -= len(names); m.room >= 0 {
		return true
	}
	var n [1 << segBits]int
	for _, k := range names {
		n[segmentOf(mixName(k))]++
	}
	for i := range m.seg {
		if !m.fit(&m.seg[i], m.seg[i].used+n[i], mem) {
			return false
		}
	}
	// Exactly these names fit now; what more does is not known.
	m.room = 0
	return true
}

// presize gives an empty map the size for n names, if the budget has room.
func (m *nameMap) presize(n int, mem *budget) {
	per := n >> segBits
	per += per / 32 // segments do not fill evenly
	size := 1
	for size < 1<<tagBits && size*bucketLen*fillPercent/100 < per {
		size *= 2
	}
	if !mem.take(kindNames, int64(len(m.seg)*size)*bucketBytes, storeReserve) {
		return
	}
	for i := range m.seg {
		m.seg[i].resize(size)
	}
	m.floor = size
	m.count()
}

func (m *nameMap) count() {
	m.room = 1 << 30
	for i := range m.seg {
		m.room = min(m.room, m.seg[i].max-m.seg[i].used)
	}
}

// fit grows a segment until want names fit (the map is locked).
func (m *nameMap) fit(g *segment, want int, mem *budget) bool {
	for g.max < want {
		n := max(1, len(g.b))
		if len(g.b) >= 1<<tagBits || !mem.take(kindNames, int64(n)*bucketBytes, storeReserve) {
			return false
		}
		g.grow()
	}
	return true
}

// insert adds a name; room must have been made. A worker that gives two blocks
// one name has two entries.
func (m *nameMap) insert(name uint64, p place) {
	h := mixName(name)
	g := &m.seg[segmentOf(h)]
	tag := tagOf(h)
	g.used++
	g.put(tag>>(g.shift&31), tag<<placeBits|uint64(p))
}

func (g *segment) put(i uint64, v uint64) {
	for {
		b := &g.b[i]
		if e := ^b.meta & printLanes; e != 0 {
			j := laneOf(e)
			b.entry[j] = v
			b.meta |= (v>>placeBits&0x7f | 0x80) << (8 * j)
			return
		}
		if b.meta>>56 != passedMax {
			b.meta += passedOne
		}
		if i++; i == uint64(len(g.b)) {
			i = 0
		}
	}
}

// find returns the place of a name that ok accepts.
func (m *nameMap) find(name uint64, ok func(place) bool) (place, bool) {
	h := mixName(name)
	g := &m.seg[segmentOf(h)]
	if len(g.b) == 0 {
		return 0, false
	}
	tag := tagOf(h)
	for i, n := tag>>(g.shift&31), 0; n < len(g.b); n++ {
		b := &g.b[i]
		for c := prints(b.meta, tag); c != 0; c &= c - 1 {
			if v := b.entry[laneOf(c)]; v>>placeBits == tag {
				if p := place(v & placeMask); ok(p) {
					return p, true
				}
			}
		}
		if b.meta>>56 == 0 {
			break
		}
		if i++; i == uint64(len(g.b)) {
			i = 0
		}
	}
	return 0, false
}

// entryOf finds the entry (name, p): its bucket and lane.
func (g *segment) entryOf(tag uint64, p place) (i uint64, j uint, ok bool) {
	want := tag<<placeBits | uint64(p)
	i = tag >> (g.shift & 31)
	for range g.b {
		b := &g.b[i]
		for c := prints(b.meta, tag); c != 0; c &= c - 1 {
			if j = laneOf(c); b.entry[j] == want {
				return i, j, true
			}
		}
		if b.meta>>56 == 0 {
			break
		}
		if i++; i == uint64(len(g.b)) {
			i = 0
		}
	}
	return 0, 0, false
}

// remove deletes (name, p) if it is there.
func (m *nameMap) remove(name uint64, p place) {
	h := mixName(name)
	g := &m.seg[segmentOf(h)]
	if len(g.b) == 0 {
		return
	}
	tag := tagOf(h)
	i, j, ok := g.entryOf(tag, p)
	if !ok {
		return
	}
	g.b[i].meta &^= 0xff << (8 * j)
	g.used--
	for home := tag >> (g.shift & 31); home != i; { // one fewer went past these
		if o := &g.b[home]; o.meta>>56 != passedMax {
			o.meta -= passedOne
		}
		if home++; home == uint64(len(g.b)) {
			home = 0
		}
	}
}

// move gives the entry (name, from) another place.
func (m *nameMap) move(name uint64, from, to place) {
	h := mixName(name)
	g := &m.seg[segmentOf(h)]
	if len(g.b) == 0 {
		return
	}
	tag := tagOf(h)
	if i, j, ok := g.entryOf(tag, from); ok {
		g.b[i].entry[j] = tag<<placeBits | uint64(to)
	}
}

// grow doubles the segment, without a branch on occupancy.
func (g *segment) grow() {
	old := g.b
	if len(old) == 0 {
		g.resize(1)
		return
	}
	g.b = make([]bucket, 2*len(old))
	g.shift--
	g.max = len(g.b) * bucketLen * fillPercent / 100
	var late []uint64 // entries that lay outside their home
	for i := range old {
		o := &old[i]
		var to [2][bucketLen + 1]uint64
		var n, meta [2]uint64
		for j, v := range o.entry {
			tag := v >> placeBits
			h := tag >> (g.shift & 31)
			full := o.meta >> (8*uint(j) + 7) & 1
			if h>>1 != uint64(i) {
				if full != 0 {
					late = append(late, v)
				}
				continue
			}
			s := h & 1
			k := n[s] & 7
			to[s][k] = v
			meta[s] |= (tag&0x7f | 0x80) * full << (8 * k)
			n[s] += full
		}
		for s := range 2 {
			b := &g.b[2*i+s]
			b.meta = meta[s]
			copy(b.entry[:], to[s][:bucketLen])
		}
	}
	for _, v := range late {
		g.put(v>>placeBits>>(g.shift&31), v)
	}
}

// resize makes the segment n buckets, a power of two or none, and moves all entries.
func (g *segment) resize(n int) {
	old := g.b
	g.b, g.max, g.shift = nil, 0, 0
	if n > 0 {
		g.b = make([]bucket, n)
		g.max = n * bucketLen * fillPercent / 100
		g.shift = uint8(tagBits - bits.Len(uint(n-1)))
	}
	for i := range old {
		for j, v := range old[i].entry {
			if old[i].meta>>(8*uint(j)+7)&1 != 0 {
				g.put(v>>placeBits>>(g.shift&31), v)
			}
		}
	}
}

// trim shrinks segments that are nearly empty. No store of its slot may be under
// way: room that was made would be gone.
func (m *nameMap) trim(mem *budget) {
	for i := range m.seg {
		g := &m.seg[i]
		n := m.floor
		if m.orphan {
			n = 0
		}
		if g.used > 0 {
			for n = max(n, 1); n*bucketLen*fillPercent/100 < 2*g.used; {
				n *= 2
			}
		}
		if n < len(g.b) {
			mem.add(kindNames, int64(n-len(g.b))*bucketBytes)
			g.resize(n)
		}
	}
	m.room = 0
}

func (m *nameMap) bytes() (n int64) {
	for i := range m.seg {
		n += int64(len(m.seg[i].b)) * bucketBytes
	}
	return n
}

const nameMapBytes = int64(unsafe.Sizeof(nameMap{}))
