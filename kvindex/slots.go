package kvindex

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// owner names a slot from outside.
type owner struct {
	worker string
	rank   int
}

// slotState is one attachment of a worker's rank. A later one has its own, so
// news for a slot that is gone finds nothing.
type slotState struct {
	mu   sync.Mutex // one writer of a slot at a time; over Index.mu
	gone atomic.Bool

	num, gen uint32
	owner

	// Under Index.mu as well.
	naming  naming
	retired bool // its names are given up
	names   uint32
	m       *nameMap
	others  []uint32 // maps of others with blocks that this slot holds, latest first
	side    sideMap
	last    lastBlock
	held    [Tiers]int64 // blocks
	lane    lane
}

// naming is how a slot calls its blocks.
type naming uint8

const (
	namingUnset naming = iota
	namingHash         // by their hash
	namingOwn          // by an engine's names
)

// lastBlock is the newest stored block of a slot: most chains go on there.
type lastBlock struct {
	at   place
	name uint64
	hash uint64
}

// lane is what a writer takes along from the tree to its own name map.
type lane struct {
	ins  []pend
	del  []pend
	gone []uint64 // names of del
	sink uint64   // keeps the touches of map lines from being optimised away
}

// pend: n names, from the event's or from gone[at] on, belong to the places from p on.
type pend struct {
	p     place
	at, n int
}

const (
	// maxOthers bounds how many other slots' name maps a slot's names are looked
	// up in; beyond that it keeps its own copy, in its side map.
	maxOthers = 64

	// slotBytes is the cost of a slot: its state, its entries in tables and an
	// estimate for the map of owners.
	slotBytes = int64(unsafe.Sizeof(slotState{})) + maxOthers*4 + 128
)

// Attach gives a worker's rank a slot, with a new generation each time. A slot
// that the same worker and rank had before is detached. The zero Slot is returned
// when all 2^20-1 numbers are taken or the budget has no
// room for one more.
func (x *Index) Attach(worker string, rank int) Slot { return x.AttachSized(worker, rank, 0) }

// AttachSized is Attach for a worker that can hold about so many blocks, as
// engines report it: its name map gets that size at once instead of growing into
// it, if the budget has room.
func (x *Index) AttachSized(worker string, rank, blocks int) Slot {
	k := &slotState{owner: owner{worker, rank}, m: &nameMap{}}
	if blocks > 0 {
		k.m.presize(min(blocks, 1<<30), &x.mem)
	}
	for {
		x.mu.Lock()
		old := x.owners[k.owner]
		if old == nil {
			break
		}
		x.mu.Unlock()
		x.detach(old)
	}
	defer x.mu.Unlock()
	cost := slotBytes + int64(len(worker))
	fits := x.mem.take(kindSlots, cost, removalReserve+nameMapBytes)
	if !fits || !x.number(k) {
		if fits {
			x.mem.add(kindSlots, -cost)
		}
		x.mem.add(kindNames, -k.m.bytes())
		x.count.Refused++
		return 0
	}
	if n := len(x.freeMaps); n > 0 {
		k.names = x.freeMaps[n-1]
		x.freeMaps = x.freeMaps[:n-1]
	} else {
		k.names = uint32(len(x.maps))
		x.maps = append(x.maps, nil)
	}
	x.maps[k.names] = k.m
	x.gen++
	k.gen = max(x.gen, 1)
	x.gen = k.gen
	x.owners[k.owner] = k
	x.mem.add(kindNames, nameMapBytes)
	(*x.table.Load())[k.num].Store(k)
	x.setLive(k.num, true)
	return MakeSlot(k.num, k.gen)
}

// number gives the slot the smallest free number (locked).
func (x *Index) number(k *slotState) bool {
	if x.freeNumber(k) {
		return true
	}
	for range 2 * (len(x.metas) + 1) { // all are taken, some by slots that are gone
		x.sweep(runChunk)
		if x.freeNumber(k) {
			return true
		}
	}
	return false
}

func (x *Index) freeNumber(k *slotState) bool {
	for ; x.lowest < len(x.taken); x.lowest++ {
		v := x.taken[x.lowest]
		if x.lowest == 0 {
			v |= 1 // number 0 is none
		}
		if v != ^uint64(0) {
			return x.takeNumber(k, uint32(x.lowest*64+bits.TrailingZeros64(^v)))
		}
	}
	return x.takeNumber(k, uint32(max(1, len(x.taken)*64)))
}

func (x *Index) takeNumber(k *slotState, num uint32) bool {
	if num > maxSlot {
		return false
	}
	if n := int(slotsUpTo(num)); n > len(x.taken) && !x.resizeSlots(n+n/8) {
		return false
	}
	x.taken[num/64] |= 1 << (num % 64)
	k.num = num
	return true
}

// resizeSlots gives the tables of slots n words of 64 slots each; false if the
// budget has no room.
func (x *Index) resizeSlots(n int) bool {
	n = min(n, (maxSlot+1)/64)
	if !x.mem.take(kindSlots, int64(n-len(x.taken))*(3*8+64*8), removalReserve+nameMapBytes) {
		return false
	}
	live := make([]uint64, n)
	copy(live, *x.live.Load())
	x.live.Store(&live)
	old := *x.table.Load()
	table := make([]atomic.Pointer[slotState], n*64)
	for i := range min(len(old), len(table)) {
		table[i].Store(old[i].Load())
	}
	x.table.Store(&table)
	x.taken = append(make([]uint64, 0, n), x.taken[:min(n, len(x.taken))]...)[:n]
	x.deadBits = append(make([]uint64, 0, n), x.deadBits[:min(n, len(x.deadBits))]...)[:n]
	x.slotWords = uint32(n)
	return true
}

// setLive makes readers count a slot, or not (locked).
func (x *Index) setLive(num uint32, on bool) {
	w := &(*x.live.Load())[num/64]
	if on {
		// A lookup that began when the number counted for something else must not
		// mix the two.
		x.reuse.Add(1)
		atomic.StoreUint64(w, *w|1<<(num%64))
		return
	}
	atomic.StoreUint64(w, *w&^(1<<(num%64)))
}

// slot returns the state of an attached slot, or nil.
func (x *Index) slot(s Slot) *slotState {
	t := *x.table.Load()
	if int(s.Num()) >= len(t) {
		return nil
	}
	k := t[s.Num()].Load()
	if k == nil || k.gen != s.Gen() || k.gone.Load() {
		return nil
	}
	return k
}

// alive says whether the slot is attached.
func (x *Index) alive(s Slot) bool { return x.slot(s) != nil }

// Worker says whose a slot is; ok is false for one that is not attached.
func (x *Index) Worker(s Slot) (name string, rank int, ok bool) {
	k := x.slot(s)
	if k == nil {
		return "", 0, false
	}
	return k.worker, k.rank, true
}

// Detach ends a slot: one bit makes it invisible to lookups that begin from now
// on, and what still arrives for it is refused. Its memory is given back bit by
// bit by later stores, or at once by Sweep; until then its number is not used
// again. Detaching a slot twice is harmless.
func (x *Index) Detach(s Slot) {
	if k := x.slot(s); k != nil {
		x.detach(k)
	}
}

func (x *Index) detach(k *slotState) {
	x.mu.Lock()
	if k.gone.Load() {
		x.mu.Unlock()
		return
	}
	k.gone.Store(true)
	delete(x.owners, k.owner)
	x.setLive(k.num, false)
	x.dead = append(x.dead, k)
	x.deadBits[k.num/64] |= 1 << (k.num % 64)
	x.mu.Unlock()

	k.mu.Lock() // a store in flight ends at its next piece
	x.mu.Lock()
	x.retire(k)
	if k.held == [Tiers]int64{} {
		x.bury()
	}
	x.mu.Unlock()
	k.mu.Unlock()
}

// retire gives up the names of a dead slot. Its map stays while others hold
// blocks that are named there.
func (x *Index) retire(k *slotState) {
	k.retired = true
	k.m.orphan = true
	x.dropMap(k.names)
	x.dropSide(k)
	k.others, k.lane = nil, lane{}
}

func (x *Index) dropMap(i uint32) {
	if m := x.maps[i]; m.len() == 0 {
		x.mem.add(kindNames, -m.bytes()-nameMapBytes)
		x.maps[i] = nil
		x.freeMaps = append(x.freeMaps, i)
	}
}

// mapAt is a name map by its number, nil if it ended.
func (x *Index) mapAt(i uint32) *nameMap {
	if int(i) < len(x.maps) {
		return x.maps[i]
	}
	return nil
}

func (x *Index) dropSide(k *slotState) {
	if len(k.side.slots) > 0 {
		x.mem.add(kindNames, -k.side.bytes())
		k.side = sideMap{}
		x.sided--
	}
}

// bury frees the numbers of dead slots that hold nothing any more (locked).
func (x *Index) bury() {
	x.dead = slices.DeleteFunc(x.dead, func(k *slotState) bool {
		if !k.retired || k.held != [Tiers]int64{} {
			return false
		}
		bit := uint64(1) << (k.num % 64)
		x.taken[k.num/64] &^= bit
		x.lowest = min(x.lowest, int(k.num/64))
		x.deadBits[k.num/64] &^= bit
		(*x.table.Load())[k.num].Store(nil)
		x.mem.add(kindSlots, -slotBytes-int64(len(k.worker)))
		return true
	})
}

// hold counts blocks that a slot holds in a tier (locked).
func (x *Index) hold(k *slotState, t Tier, n int64) {
	k.held[t] += n
	x.holders[t] += n
}

// share notes that the slot holds blocks that are named in another slot's map;
// false if it knows too many maps already.
func (x *Index) share(k *slotState, names uint32) bool {
	if names == k.names || len(k.others) > 0 && k.others[0] == names {
		return true
	}
	if i := slices.Index(k.others, names); i >= 0 {
		k.others[i], k.others[0] = k.others[0], names
		return true
	}
	if len(k.others) >= maxOthers {
		k.others = slices.DeleteFunc(k.others, func(i uint32) bool { return x.mapAt(i) == nil })
	}
	if len(k.others) >= maxOthers {
		return false
	}
	k.others = append(k.others, names)
	return true
}
