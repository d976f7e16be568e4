package kvindex

import "sync/atomic"

// headTable finds a run by the hash of its first block: open addressing, slots
// tag<<32 | run. There are no tables of children and no links to parents: a
// chained hash names its whole prefix, so a tail whose parent left is found again
// when the parent returns, and a miss costs one probe.
type headTable struct {
	slots []uint64 // 0 empty, tomb deleted
	mask  uint64
	used  int // with tombs
	live  int
}

const (
	tomb     = 1 << 32 // run 0
	minHeads = 64
)

func newHeads(n int) *headTable {
	return &headTable{slots: make([]uint64, n), mask: uint64(n - 1)}
}

func (x *Index) setHeads(h *headTable) {
	x.head = h
	x.heads.Store(h)
}

// firstHash is the hash of the first block of a live run.
func (x *Index) firstHash(id uint32) uint64 {
	return x.hashAt(winBase(x.d.runs[id>>runBits][id&runMask].win))
}

// findHead returns the run that the block heads, or 0.
func (x *Index) findHead(h uint64) uint32 {
	t := x.head
	for i := h & t.mask; t.slots[i] != 0; i = (i + 1) & t.mask {
		v := t.slots[i]
		if id := uint32(v); id != 0 && v>>32 == h>>32 && x.firstHash(id) == h {
			return id
		}
	}
	return 0
}

// mayHead is a cheap test before findHead: a filter of sixteen bits a run.
func (x *Index) mayHead(h uint64) bool {
	return x.filter[h>>6&uint64(len(x.filter)-1)]>>(h&63)&1 != 0
}

// headReady makes sure that link has room.
func (x *Index) headReady() bool {
	if t := x.head; t.used*4 >= len(t.slots)*3 && !x.resizeHeads(storeReserve) {
		return false
	}
	if (x.filtered+1)*4 > len(x.filter)*16 {
		n := filterSize(x.head.live)
		if !x.mem.take(kindHeads, int64(n-len(x.filter))*8, storeReserve) {
			return false
		}
		x.refilter(n)
	}
	return true
}

func filterSize(live int) int {
	n := 64
	for n*2 < live {
		n *= 2
	}
	return 2 * n
}

// refilter makes the filter anew: bits of heads that went are still in the old one.
func (x *Index) refilter(n int) {
	x.filter, x.filtered = make([]uint64, n), x.head.live
	for _, v := range x.head.slots {
		if id := uint32(v); id != 0 {
			h := x.firstHash(id)
			x.filter[h>>6&uint64(n-1)] |= 1 << (h & 63)
		}
	}
}

// resizeHeads makes a table for the live heads; the old one is left to readers
// that are in it. False if the budget has no room.
func (x *Index) resizeHeads(keep int64) bool {
	t, n := x.head, minHeads
	for n < t.live*3 {
		n *= 2
	}
	if !x.mem.take(kindHeads, int64(n-len(t.slots))*8, keep) {
		return false
	}
	u := newHeads(n)
	u.used, u.live = t.live, t.live
	for _, v := range t.slots {
		if uint32(v) == 0 {
			continue
		}
		i := x.firstHash(uint32(v)) & u.mask
		for u.slots[i] != 0 {
			i = (i + 1) & u.mask
		}
		u.slots[i] = v
	}
	x.setHeads(u)
	return true
}

// link enters a run by its first hash; headReady was true.
func (x *Index) link(h uint64, id uint32) {
	x.filtered++
	x.filter[h>>6&uint64(len(x.filter)-1)] |= 1 << (h & 63)
	t := x.head
	i := h & t.mask
	for uint32(t.slots[i]) != 0 {
		i = (i + 1) & t.mask
	}
	if t.slots[i] == 0 {
		t.used++
	}
	t.live++
	atomic.StoreUint64(&t.slots[i], h>>32<<32|uint64(id))
}

func (x *Index) unlink(h uint64, id uint32) {
	t := x.head
	i := h & t.mask
	for t.slots[i] != h>>32<<32|uint64(id) {
		i = (i + 1) & t.mask
	}
	t.live--
	if t.slots[(i+1)&t.mask] != 0 {
		atomic.StoreUint64(&t.slots[i], tomb)
		return
	}
	// Nothing lies behind: this slot and the tombs before it are empty again.
	for {
		atomic.StoreUint64(&t.slots[i], 0)
		t.used--
		if i = (i - 1) & t.mask; t.slots[i] != tomb {
			return
		}
	}
}
