package kvindex

import (
	"sort"

	"github.com/stator-go/stator/kvindex/block"
)

// testIndex is what the stream tests need of an index: the real one, and the
// naive one below that they are compared with.
type testIndex interface {
	ledger
	Attach(worker string, rank int) Slot
	Detach(s Slot)
	Lookup(dst *Overlap, chain []block.Hash)
	Worker(s Slot) (name string, rank int, ok bool)
}

// naiveIndex keeps sets of block hashes by slot and tier.
type naiveIndex struct {
	tokens int
	scheme block.Scheme
	slots  map[Slot]*naiveSlot
	scopes []scopeName
	pins   []int
	budget int // blocks in all; 0 is unlimited
	blocks int
}

type naiveSlot struct {
	worker string
	rank   int
	names  map[uint64]naiveBlock
	held   [Tiers]map[block.Hash]bool
}

type naiveBlock struct {
	hash  block.Hash
	scope uint32
}

func newNaive(tokens int) *naiveIndex {
	return &naiveIndex{tokens: tokens, scheme: block.SchemeBLAKE3, slots: map[Slot]*naiveSlot{}, scopes: []scopeName{{}}, pins: []int{0}}
}

func (x *naiveIndex) Attach(worker string, rank int) Slot {
	s := MakeSlot(uint32(len(x.slots)+1), 1)
	x.slots[s] = &naiveSlot{worker: worker, rank: rank, names: map[uint64]naiveBlock{}}
	x.Clear(s)
	return s
}

func (x *naiveIndex) Detach(s Slot) {
	if k := x.slots[s]; k != nil {
		x.Clear(s)
		k.names = nil
	}
}

func (x *naiveIndex) alive(s Slot) bool { k := x.slots[s]; return k != nil && k.names != nil }

func (x *naiveIndex) Worker(s Slot) (string, int, bool) {
	if !x.alive(s) {
		return "", 0, false
	}
	return x.slots[s].worker, x.slots[s].rank, true
}

func (x *naiveIndex) BlockTokens() int     { return x.tokens }
func (x *naiveIndex) Scheme() block.Scheme { return x.scheme }

func (x *naiveIndex) resolve(s Slot, name uint64) (block.Hash, uint32, place, bool) {
	if !x.alive(s) {
		return 0, 0, 0, false
	}
	b, ok := x.slots[s].names[name]
	return b.hash, b.scope, 0, ok
}

func (x *naiveIndex) storeNamed(s Slot, t Tier, parent parentRef, scope uint32, names []uint64, chain []block.Hash, dup []uint64) ([]uint64, error) {
	if !x.alive(s) {
		return dup, ErrSlot
	}
	k := x.slots[s]
	if parent.has {
		if _, ok := k.names[parent.name]; !ok {
			return dup, ErrParent
		}
	}
	if x.budget > 0 && x.blocks+len(names) > x.budget {
		return dup, ErrBudget
	}
	for i, name := range names {
		k.names[name] = naiveBlock{chain[i], scope}
		dup = x.hold(k, t, name, chain[i], dup)
	}
	return dup, nil
}

func (x *naiveIndex) hold(k *naiveSlot, t Tier, name uint64, h block.Hash, dup []uint64) []uint64 {
	if k.held[t][h] {
		return append(dup, name)
	}
	k.held[t][h] = true
	x.blocks++
	return dup
}

func (x *naiveIndex) storeKnown(s Slot, t Tier, names []uint64, dup []uint64) (_ []uint64, unknown int, err error) {
	if !x.alive(s) {
		return dup, 0, ErrSlot
	}
	k := x.slots[s]
	for _, name := range names {
		if b, ok := k.names[name]; ok {
			dup = x.hold(k, t, name, b.hash, dup)
		} else {
			unknown++
		}
	}
	return dup, unknown, nil
}

func (x *naiveIndex) removeNamed(s Slot, t Tier, names []uint64) (unknown int) {
	if !x.alive(s) {
		return len(names)
	}
	k := x.slots[s]
	for _, name := range names {
		b, ok := k.names[name]
		if !ok || !k.held[t][b.hash] {
			unknown++
			continue
		}
		delete(k.held[t], b.hash)
		x.blocks--
		k.forget(b.hash)
	}
	return unknown
}

// forget drops the names of a block that lies in no tier.
func (k *naiveSlot) forget(h block.Hash) {
	for t := range k.held {
		if k.held[t][h] {
			return
		}
	}
	for name, b := range k.names {
		if b.hash == h {
			delete(k.names, name)
		}
	}
}

func (x *naiveIndex) holdsNamed(s Slot, t Tier, name uint64) bool {
	if !x.alive(s) {
		return false
	}
	k := x.slots[s]
	b, ok := k.names[name]
	return ok && k.held[t][b.hash]
}

func (x *naiveIndex) Clear(s Slot, tiers ...Tier) {
	if !x.alive(s) {
		return
	}
	if len(tiers) == 0 {
		tiers = []Tier{TierGPU, TierCPU, TierDisk, TierObject}
	}
	k := x.slots[s]
	for _, t := range tiers {
		old := k.held[t]
		x.blocks -= len(old)
		k.held[t] = map[block.Hash]bool{}
		for h := range old {
			k.forget(h)
		}
	}
}

func (x *naiveIndex) internScope(adapter, tenant string) uint32 {
	for i, s := range x.scopes {
		if s == (scopeName{adapter, tenant}) {
			x.pinScope(uint32(i))
			return uint32(i)
		}
	}
	x.scopes, x.pins = append(x.scopes, scopeName{adapter, tenant}), append(x.pins, 1)
	return uint32(len(x.scopes) - 1)
}

func (x *naiveIndex) pinScope(id uint32) {
	if id != 0 {
		x.pins[id]++
	}
}

func (x *naiveIndex) unpinScope(id uint32) {
	if id != 0 {
		x.pins[id]--
	}
}

func (x *naiveIndex) pinned() (n int) {
	for _, p := range x.pins {
		n += p
	}
	return n
}

func (x *naiveIndex) scopeOf(id uint32) (adapter, tenant string) {
	return x.scopes[id].adapter, x.scopes[id].tenant
}

func (x *naiveIndex) Lookup(dst *Overlap, chain []block.Hash) {
	dst.Reset()
	for s, k := range x.slots {
		if k.names == nil {
			continue
		}
		faster := 0
		for t := range Tier(Tiers) {
			n := 0
			for n < len(chain) && k.heldUpTo(t, chain[n]) {
				n++
			}
			if n > faster {
				dst.AddPair(t, s.Num(), uint32(n))
			}
			faster = n
		}
	}
}

func (k *naiveSlot) heldUpTo(t Tier, h block.Hash) bool {
	for i := range t + 1 {
		if k.held[i][h] {
			return true
		}
	}
	return false
}

// slotsOf lists the live slots by worker and rank.
func slotsOf(x testIndex, slots []Slot) []Slot {
	var list []Slot
	for _, s := range slots {
		if x.alive(s) {
			list = append(list, s)
		}
	}
	sort.Slice(list, func(i, j int) bool {
		wi, ri, _ := x.Worker(list[i])
		wj, rj, _ := x.Worker(list[j])
		return wi < wj || wi == wj && ri < rj
	})
	return list
}
