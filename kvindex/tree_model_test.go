package kvindex

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stator-go/stator/kvindex/block"
)

// The model is the naive index: for each slot and tier the set of hashes.
type treeModel struct {
	x     *Index
	slots []*treeSlot
	full  bool // the budget may refuse
}

type treeSlot struct {
	s    Slot
	salt uint64 // of its names; 0 = hashes are the names
	held [Tiers]map[block.Hash]bool
}

// name is what the slot calls a block.
func (k *treeSlot) name(h block.Hash) uint64 {
	if k.salt == 1 {
		return uint64(h) * 0x9E3779B97F4A7C15 // all slots with salt 1 agree
	}
	return uint64(h) ^ k.salt
}

func (k *treeSlot) names(hs []block.Hash) []uint64 {
	var out []uint64
	for _, h := range hs {
		out = append(out, k.name(h))
	}
	return out
}

func (k *treeSlot) reset() {
	for t := range k.held {
		k.held[t] = map[block.Hash]bool{}
	}
}

func (k *treeSlot) any(h block.Hash) bool {
	for t := range k.held {
		if k.held[t][h] {
			return true
		}
	}
	return false
}

// depth is the number of leading blocks in tier t or a faster one.
func (k *treeSlot) depth(q []block.Hash, t Tier) int {
	for i, h := range q {
		ok := false
		for u := TierGPU; u <= t; u++ {
			ok = ok || k.held[u][h]
		}
		if !ok {
			return i
		}
	}
	return len(q)
}

// attach gives the model n slots of a kind: 'h' named by hash, 'n' by names that
// all agree on, 'd' by names of its own.
func (m *treeModel) attach(n int, kind string) {
	for range n {
		i := len(m.slots)
		k := &treeSlot{}
		switch kind[i%len(kind)] {
		case 'n':
			k.salt = 1
		case 'd':
			k.salt = uint64(i+2) * 0x1234567
		}
		m.slots = append(m.slots, k)
		m.again(i)
	}
}

// again attaches worker i anew.
func (m *treeModel) again(i int) {
	k := m.slots[i]
	k.s = m.x.Attach(fmt.Sprint("w", i), i%3)
	k.reset()
}

// store stores c[from:to] below c[from-1] in tier t, both here and there.
func (m *treeModel) store(i int, t Tier, c []block.Hash, from, to int) error {
	k := m.slots[i]
	var err error
	if k.salt == 0 {
		var parent block.Hash
		if from > 0 {
			parent = c[from-1]
		}
		err = m.x.Store(k.s, t, parent, c[from:to])
	} else {
		p := parentRef{has: from > 0}
		if from > 0 {
			p.name = k.name(c[from-1])
		}
		var dup, want []uint64
		for _, h := range c[from:to] {
			if k.held[t][h] {
				want = append(want, k.name(h))
			}
		}
		dup, err = m.x.storeNamed(k.s, t, p, 0, k.names(c[from:to]), c[from:to], nil)
		slices.Sort(dup)
		slices.Sort(want)
		if err == nil && !slices.Equal(dup, want) {
			return fmt.Errorf("dup %x, want %x", dup, want)
		}
	}
	switch {
	case errors.Is(err, ErrSlot) && m.full && k.s == 0:
		return nil // the budget had no room for the slot
	case errors.Is(err, ErrParent):
		if from == 0 || k.any(c[from-1]) {
			return fmt.Errorf("parent is held and not known: %w", err)
		}
		return nil
	case errors.Is(err, ErrBudget) && m.full:
		// A leading part may be there: take what the index says.
		for _, h := range c[from:to] {
			if !m.x.holdsNamed(k.s, t, k.name(h)) {
				break
			}
			k.held[t][h] = true
		}
		return nil
	case err != nil:
		return err
	}
	for _, h := range c[from:to] {
		k.held[t][h] = true
	}
	return nil
}

func (m *treeModel) remove(i int, t Tier, hs []block.Hash) error {
	k := m.slots[i]
	unknown := 0
	for _, h := range hs {
		if !k.held[t][h] {
			unknown++
		}
		delete(k.held[t], h)
	}
	if k.salt == 0 {
		before := m.x.Stats().UnknownRemovals
		m.x.Remove(k.s, t, hs)
		if got := int(m.x.Stats().UnknownRemovals - before); got != unknown {
			return fmt.Errorf("%d unknown, want %d", got, unknown)
		}
	} else if got := m.x.removeNamed(k.s, t, k.names(hs)); got != unknown {
		return fmt.Errorf("%d unknown, want %d", got, unknown)
	}
	return nil
}

// known stores blocks that the slot holds in some tier in another.
func (m *treeModel) known(i int, t Tier, hs []block.Hash) error {
	k := m.slots[i]
	if k.salt == 0 {
		return nil
	}
	if k.s == 0 && m.full {
		return nil
	}
	var have []block.Hash
	var want []uint64
	for _, h := range hs {
		if k.any(h) {
			have = append(have, h)
			if k.held[t][h] {
				want = append(want, k.name(h))
			}
		}
	}
	dup, unknown, err := m.x.storeKnown(k.s, t, k.names(have), nil)
	if err != nil {
		if m.full && errors.Is(err, ErrBudget) {
			for _, h := range have {
				k.held[t][h] = m.x.holdsNamed(k.s, t, k.name(h))
			}
			return nil
		}
		return err
	}
	slices.Sort(dup)
	slices.Sort(want)
	if unknown != 0 || !slices.Equal(dup, want) {
		return fmt.Errorf("%d unknown, dup %x, want %x", unknown, dup, want)
	}
	for _, h := range have {
		k.held[t][h] = true
	}
	return nil
}

// compare looks a chain up and compares all depths, and that no slot is listed
// for a tier in vain.
func (m *treeModel) compare(o *Overlap, q []block.Hash) error {
	m.x.Lookup(o, q)
	if o.LowerBound {
		return errors.New("lower bound without a race")
	}
	listed := 0
	for i, k := range m.slots {
		if k.s == 0 && m.full {
			continue
		}
		faster := 0
		for t := TierGPU; t < Tiers; t++ {
			want := k.depth(q, t)
			if got := o.Depth(k.s, t); got != want {
				return fmt.Errorf("slot %d, tier %v: depth %d, want %d of %d", i, t, got, want, len(q))
			}
			if want > faster {
				listed++
			}
			faster = want
		}
	}
	if n := o.listed(); n != listed {
		return fmt.Errorf("%d places listed, want %d", n, listed)
	}
	return nil
}

// listed counts the slots of all groups and pairs.
func (o *Overlap) listed() (n int) {
	for t := TierGPU; t < Tiers; t++ {
		for _, g := range o.Groups(t) {
			n += popcount(o.Words(t, g))
		}
		n += len(o.Pairs(t))
	}
	return n
}

// makeChain continues the first keep blocks of a chain with n new ones.
func makeChain(r *rand.Rand, from []block.Hash, keep, n int) []block.Hash {
	c := slices.Clone(from[:keep])
	for range n {
		c = append(c, block.Hash(r.Uint64()))
	}
	return c
}

func makeChains(r *rand.Rand, n, long int) [][]block.Hash {
	var cs [][]block.Hash
	for i := range n {
		var from []block.Hash
		keep := 0
		if i > 0 && r.IntN(4) > 0 {
			from = cs[r.IntN(i)]
			keep = 1 + r.IntN(len(from))
		}
		cs = append(cs, makeChain(r, from, keep, 1+r.IntN(long)))
	}
	return cs
}

// step does something at random.
func (m *treeModel) step(r *rand.Rand, cs [][]block.Hash, tiers int) error {
	i, c := r.IntN(len(m.slots)), cs[r.IntN(len(cs))]
	t := Tier(0)
	if tiers > 1 && r.IntN(2) == 0 {
		t = Tier(r.IntN(tiers))
	}
	k := m.slots[i]
	lead := k.depth(c, TierObject)
	switch n := r.IntN(24); {
	case n < 9: // go on where the slot is
		if lead == len(c) {
			lead = r.IntN(len(c))
		}
		return m.store(i, t, c, lead, lead+1+r.IntN(len(c)-lead))
	case n < 11: // again from the root
		return m.store(i, t, c, 0, 1+r.IntN(len(c)))
	case n < 13: // below anything
		from := r.IntN(len(c))
		return m.store(i, t, c, from, from+1+r.IntN(len(c)-from))
	case n < 18: // any interval, either direction
		from := r.IntN(len(c))
		hs := slices.Clone(c[from : from+1+r.IntN(len(c)-from)])
		if n < 16 {
			slices.Reverse(hs)
		}
		return m.remove(i, t, hs)
	case n < 20:
		from := r.IntN(len(c))
		return m.known(i, Tier(r.IntN(tiers)), c[from:from+1+r.IntN(len(c)-from)])
	case n == 20 && r.IntN(8) == 0:
		m.x.Clear(k.s)
		k.reset()
	case n == 21 && r.IntN(8) == 0:
		m.x.Clear(k.s, t)
		clear(k.held[t])
	case n == 22 && r.IntN(8) == 0:
		m.again(i) // which detaches the old one
	case n == 23 && r.IntN(20) == 0:
		m.x.Sweep()
	}
	return nil
}

// TestTreeModel compares answers with the model under stores, holes, removals in
// either order, late parents, clears, leaves and sweeps, and checks the
// consistency of the index on the way. In the end nothing may be left.
func TestTreeModel(t *testing.T) {
	for _, c := range []struct {
		name         string
		slots, tiers int
		chains, long int
		kind         string
	}{
		{"gpu", 70, 1, 12, 40, "h"},
		{"named", 70, 1, 12, 40, "n"},
		{"named differently", 70, 1, 12, 40, "nd"},
		{"all tiers", 70, 4, 12, 40, "hn"},
		{"all tiers, named differently", 40, 4, 10, 30, "nnd"},
		{"few, short", 3, 4, 6, 6, "hnd"},
		{"splits", 200, 2, 3, 60, "nnnnnd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(modelSeeds) {
				if err := runTreeModel(seed, c.slots, c.tiers, c.chains, c.long, c.kind, 3000); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

func runTreeModel(seed uint64, slots, tiers, chains, long int, kind string, steps int) error {
	r := rand.New(rand.NewPCG(seed, 1))
	x, err := New(nil)
	if err != nil {
		return err
	}
	idle := x.Bytes()
	m := &treeModel{x: x}
	m.attach(slots, kind)
	cs := makeChains(r, chains, long)
	var o Overlap
	for step := range steps {
		if err := m.step(r, cs, tiers); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if step%7 == 0 {
			if err := m.compare(&o, cs[r.IntN(len(cs))]); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		if step%100 == 0 {
			if err := x.check(); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
	}
	return m.finish(idle)
}

// finish makes all leave and checks that nothing is left.
func (m *treeModel) finish(idle int64) error {
	for _, k := range m.slots {
		m.x.Detach(k.s)
	}
	m.x.Sweep()
	if err := m.x.check(); err != nil {
		return fmt.Errorf("after all left: %w", err)
	}
	if s := m.x.Stats(); s.Runs != 0 || s.Blocks != 0 || s.Slots != 0 || s.Dying != 0 || s.Holders != [Tiers]int{} {
		return fmt.Errorf("left behind: %+v", s)
	}
	if got := m.x.Bytes(); got != idle {
		return fmt.Errorf("%d bytes after all left, %d before they came", got, idle)
	}
	return nil
}
