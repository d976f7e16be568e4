package indextest

import (
	"sync"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// An Index is what the suite drives. [kvindex.Index] is one. All methods must be
// safe for concurrent use.
type Index interface {
	// Attach gives a worker's rank a slot, with a generation that it never had.
	// A slot that the same worker and rank had before is detached.
	Attach(worker string, rank int) kvindex.Slot
	// Detach ends a slot: lookups that begin later must not list it, and stores
	// for it must be refused with an error that is [kvindex.ErrSlot].
	Detach(s kvindex.Slot)
	// Store notes that the slot holds the blocks of chain in tier t, below parent
	// (0 = from the root). A parent that the slot holds in no tier may be refused
	// with [kvindex.ErrParent]; then nothing may be stored.
	Store(s kvindex.Slot, t kvindex.Tier, parent block.Hash, chain []block.Hash) error
	// Remove notes that the slot no longer holds these blocks in tier t. Blocks
	// that it does not hold there must be ignored one by one.
	Remove(s kvindex.Slot, t kvindex.Tier, hashes []block.Hash)
	// Clear empties the tiers named, or all if none is.
	Clear(s kvindex.Slot, tiers ...kvindex.Tier)
	// Lookup writes the depths of all slots; what dst held before must be gone.
	Lookup(dst *kvindex.Overlap, chain []block.Hash)
}

// Reference is the naive index: for each slot and tier the set of its blocks. It
// takes time in proportion to everything and a lock for every call.
type Reference struct {
	mu    sync.Mutex
	gen   uint32
	slots []*refSlot // by number
}

type refSlot struct {
	slot   kvindex.Slot
	worker string
	rank   int
	held   [kvindex.Tiers]map[block.Hash]bool
}

// NewReference returns an empty index.
func NewReference() *Reference { return &Reference{slots: make([]*refSlot, 1)} }

// Attach implements [Index].
func (x *Reference) Attach(worker string, rank int) kvindex.Slot {
	x.mu.Lock()
	defer x.mu.Unlock()
	num := 0
	for i, k := range x.slots {
		if k != nil && k.worker == worker && k.rank == rank {
			x.slots[i], k = nil, nil
		}
		if k == nil && num == 0 && i > 0 {
			num = i
		}
	}
	if num == 0 {
		num = len(x.slots)
		x.slots = append(x.slots, nil)
	}
	x.gen++
	k := &refSlot{slot: kvindex.MakeSlot(uint32(num), x.gen), worker: worker, rank: rank}
	k.clear()
	x.slots[num] = k
	return k.slot
}

func (k *refSlot) clear(tiers ...kvindex.Tier) {
	for t := range k.held {
		if len(tiers) == 0 {
			k.held[t] = map[block.Hash]bool{}
		}
	}
	for _, t := range tiers {
		if t < kvindex.Tiers {
			k.held[t] = map[block.Hash]bool{}
		}
	}
}

// holds says whether a block lies in tier t or a faster one.
func (k *refSlot) holds(h block.Hash, t kvindex.Tier) bool {
	for u := range t + 1 {
		if k.held[u][h] {
			return true
		}
	}
	return false
}

// find returns the state of a slot, or nil.
func (x *Reference) find(s kvindex.Slot) *refSlot {
	if int(s.Num()) >= len(x.slots) {
		return nil
	}
	if k := x.slots[s.Num()]; k != nil && k.slot == s {
		return k
	}
	return nil
}

// Detach implements [Index].
func (x *Reference) Detach(s kvindex.Slot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.find(s) != nil {
		x.slots[s.Num()] = nil
	}
}

// Store implements [Index].
func (x *Reference) Store(s kvindex.Slot, t kvindex.Tier, parent block.Hash, chain []block.Hash) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.find(s)
	switch {
	case t >= kvindex.Tiers:
		return kvindex.ErrTier
	case k == nil:
		return kvindex.ErrSlot
	case parent != 0 && !k.holds(parent, kvindex.TierObject):
		return kvindex.ErrParent
	}
	for _, h := range chain {
		k.held[t][h] = true
	}
	return nil
}

// Remove implements [Index].
func (x *Reference) Remove(s kvindex.Slot, t kvindex.Tier, hashes []block.Hash) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := x.find(s); k != nil && t < kvindex.Tiers {
		for _, h := range hashes {
			delete(k.held[t], h)
		}
	}
}

// Clear implements [Index].
func (x *Reference) Clear(s kvindex.Slot, tiers ...kvindex.Tier) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := x.find(s); k != nil {
		k.clear(tiers...)
	}
}

// Lookup implements [Index].
func (x *Reference) Lookup(dst *kvindex.Overlap, chain []block.Hash) {
	x.mu.Lock()
	defer x.mu.Unlock()
	dst.Reset()
	for num, k := range x.slots {
		if k == nil {
			continue
		}
		faster := 0
		for t := kvindex.TierGPU; t < kvindex.Tiers; t++ {
			d := 0
			for d < len(chain) && k.holds(chain[d], t) {
				d++
			}
			if d > faster {
				dst.AddPair(t, uint32(num), uint32(d))
			}
			faster = d
		}
	}
}
