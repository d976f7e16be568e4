package kvindex

import "math/bits"

// An Overlap is the answer to a lookup: for each slot and tier how many leading
// blocks of the prompt the slot holds. It belongs to the caller and is reused;
// the zero value is ready. It is not safe for concurrent use.
//
// Depths are cumulative: the depth in a tier counts leading blocks that lie in
// that tier or a faster one. A slot is listed for a tier only when its depth
// there is greater than in the next faster tier, so a slot whose prefix is all
// in GPU memory is listed once.
type Overlap struct {
	tiers [Tiers]plane
	// LowerBound is set when a race with writers cut the walk short: true
	// depths may be greater, never smaller.
	LowerBound bool

	scratch overlapScratch
}

// plane is one tier's part of an answer.
type plane struct {
	groups []Group
	words  []uint64
	pairs  []Pair
}

// A Group is a set of slots that hold the same number of leading blocks.
// Bit i of Words[j] stands for slot number (Base+j)*64+i.
type Group struct {
	Depth uint32
	Base  uint32
	lo, n uint32
}

// A Pair is the depth of one slot.
type Pair struct {
	Num   uint32 // slot number
	Depth uint32
}

// Reset empties the answer and keeps its memory.
func (o *Overlap) Reset() {
	for t := range o.tiers {
		p := &o.tiers[t]
		p.groups, p.words, p.pairs = p.groups[:0], p.words[:0], p.pairs[:0]
	}
	o.LowerBound = false
}

// AddGroup adds a set of slots that hold depth leading blocks in tier t; the
// words are copied. A slot must be added at most once per tier.
func (o *Overlap) AddGroup(t Tier, depth, base uint32, words []uint64) {
	p := &o.tiers[t]
	p.groups = append(p.groups, Group{Depth: depth, Base: base, lo: uint32(len(p.words)), n: uint32(len(words))})
	p.words = append(p.words, words...)
}

// AddPair adds one slot that holds depth leading blocks in tier t.
func (o *Overlap) AddPair(t Tier, num, depth uint32) {
	p := &o.tiers[t]
	p.pairs = append(p.pairs, Pair{num, depth})
}

// Groups returns the groups of a tier, valid until the next Reset.
func (o *Overlap) Groups(t Tier) []Group { return o.tiers[t].groups }

// Words returns the bits of a group of tier t.
func (o *Overlap) Words(t Tier, g Group) []uint64 { return o.tiers[t].words[g.lo : g.lo+g.n] }

// Pairs returns the single slots of a tier, valid until the next Reset.
func (o *Overlap) Pairs(t Tier) []Pair { return o.tiers[t].pairs }

// Depth is the number of leading blocks that the slot holds in tier t or a
// faster one. It takes a pass over the answer; to read many slots use Dense.
func (o *Overlap) Depth(s Slot, t Tier) int {
	num, d := s.Num(), uint32(0)
	for i := 0; i <= int(t) && i < Tiers; i++ {
		p := &o.tiers[i]
		for _, g := range p.groups {
			if j := num/64 - g.Base; num/64 >= g.Base && j < g.n && p.words[g.lo+j]>>(num%64)&1 != 0 {
				d = max(d, g.Depth)
			}
		}
		for _, q := range p.pairs {
			if q.Num == num {
				d = max(d, q.Depth)
			}
		}
	}
	return int(d)
}

// Dense writes the depth in tier t of every listed slot into dst by slot
// number, raising what is there, and leaves the rest. Clear dst and call it for
// the tiers from the fastest down to get cumulative depths. Slots beyond dst
// are left out.
func (o *Overlap) Dense(dst []uint32, t Tier) {
	p := &o.tiers[t]
	for _, g := range p.groups {
		for j, v := range p.words[g.lo : g.lo+g.n] {
			at := (int(g.Base) + j) * 64
			if at >= len(dst) {
				break
			}
			part := dst[at:]
			for ; v != 0; v &= v - 1 {
				if i := bits.TrailingZeros64(v); i < len(part) {
					part[i] = max(part[i], g.Depth)
				}
			}
		}
	}
	for _, q := range p.pairs {
		if int(q.Num) < len(dst) {
			dst[q.Num] = max(dst[q.Num], q.Depth)
		}
	}
}

// Empty says that no slot holds the first block in any tier.
func (o *Overlap) Empty() bool {
	for t := range o.tiers {
		if len(o.tiers[t].groups) > 0 || len(o.tiers[t].pairs) > 0 {
			return false
		}
	}
	return true
}
