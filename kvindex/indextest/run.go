package indextest

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// Options say what the index under test can do. Nil and the zero value mean all.
type Options struct {
	// GPUOnly: the index knows no tier but the GPU.
	GPUOnly bool
	// Steps is the length of the random history that is compared with the
	// reference; 0 means 2,000.
	Steps int
}

// Run runs the suite; mk makes an empty index for each part.
func Run(t *testing.T, mk func(testing.TB) Index, opts *Options) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Steps == 0 {
		o.Steps = 2000
	}
	for _, part := range []struct {
		name string
		f    func(*testing.T, Index)
	}{
		{"Empty", empty},
		{"Prefix", prefix},
		{"Holes", holes},
		{"RemovalsOfOthers", others},
		{"UnknownRemovals", unknown},
		{"DuplicateStore", duplicate},
		{"ParentNotHeld", parentNotHeld},
		{"LateParent", lateParent},
		{"Detach", detach},
		{"AttachAgain", attachAgain},
		{"Clear", clearAll},
		{"ManyHolders", manyHolders},
		{"Generations", generations},
		{"Readers", readers},
	} {
		t.Run(part.name, func(t *testing.T) { part.f(t, mk(t)) })
	}
	if !o.GPUOnly {
		t.Run("Tiers", func(t *testing.T) { tiers(t, mk(t)) })
	}
	t.Run("Random", func(t *testing.T) {
		for seed := range uint64(3) {
			random(t, mk(t), seed, o)
		}
	})
}

// Chain makes n hashes that have nothing to do with those of another seed.
func Chain(seed uint64, n int) []block.Hash {
	r := rand.New(rand.NewPCG(seed, 1))
	c := make([]block.Hash, n)
	for i := range c {
		c[i] = block.Hash(r.Uint64() | 1)
	}
	return c
}

// store fails the test when the index refuses.
func store(t testing.TB, x Index, s kvindex.Slot, tier kvindex.Tier, parent block.Hash, chain []block.Hash) {
	t.Helper()
	if err := x.Store(s, tier, parent, chain); err != nil {
		t.Fatalf("Store(%v, %v): %v", s, tier, err)
	}
}

// want checks the depths of a slot, in the tiers from the GPU on.
func want(t testing.TB, x Index, q []block.Hash, s kvindex.Slot, depths ...int) {
	t.Helper()
	var o kvindex.Overlap
	x.Lookup(&o, q)
	for i, d := range depths {
		if got := o.Depth(s, kvindex.Tier(i)); got != d {
			t.Fatalf("slot %v, tier %v: depth %d, want %d", s, kvindex.Tier(i), got, d)
		}
	}
}

func empty(t *testing.T, x Index) {
	var o kvindex.Overlap
	x.Lookup(&o, nil)
	x.Lookup(&o, Chain(1, 100))
	if !o.Empty() {
		t.Fatal("an empty index holds something")
	}
	s := x.Attach("w", 0)
	x.Remove(s, kvindex.TierGPU, Chain(1, 3))
	x.Clear(s)
	store(t, x, s, kvindex.TierGPU, 0, nil)
	store(t, x, s, kvindex.TierGPU, 0, Chain(1, 3))
	x.Lookup(&o, Chain(2, 100))
	if !o.Empty() {
		t.Fatal("a miss is a hit")
	}
	x.Lookup(&o, nil)
	if !o.Empty() {
		t.Fatal("an empty chain is a hit")
	}
}

func prefix(t *testing.T, x Index) {
	s := x.Attach("w", 0)
	c := Chain(1, 40)
	store(t, x, s, kvindex.TierGPU, 0, c[:10])
	store(t, x, s, kvindex.TierGPU, c[9], c[10:20])
	for n := range c {
		want(t, x, c[:n], s, min(n, 20))
	}
	fork := append(slices.Clone(c[:15]), Chain(2, 5)...)
	want(t, x, fork, s, 15)
	store(t, x, s, kvindex.TierGPU, c[14], fork[15:])
	want(t, x, fork, s, 20)
	want(t, x, c, s, 20)
}

func holes(t *testing.T, x Index) {
	s := x.Attach("w", 0)
	c := Chain(1, 9)
	store(t, x, s, kvindex.TierGPU, 0, c)
	x.Remove(s, kvindex.TierGPU, c[4:5])
	want(t, x, c, s, 4)
	x.Remove(s, kvindex.TierGPU, c[6:8])
	store(t, x, s, kvindex.TierGPU, c[3], c[4:5])
	want(t, x, c, s, 6)
	store(t, x, s, kvindex.TierGPU, c[5], c[6:8])
	want(t, x, c, s, 9)
	x.Remove(s, kvindex.TierGPU, c[:1])
	want(t, x, c, s, 0)
	store(t, x, s, kvindex.TierGPU, 0, c[:1])
	want(t, x, c, s, 9)
	for i := len(c) - 1; i >= 0; i-- {
		x.Remove(s, kvindex.TierGPU, c[i:i+1])
		want(t, x, c, s, i)
	}
}

func others(t *testing.T, x Index) {
	a, b := x.Attach("w", 0), x.Attach("w", 1)
	c := Chain(1, 4)
	store(t, x, a, kvindex.TierGPU, 0, c)
	store(t, x, b, kvindex.TierGPU, 0, c)
	x.Remove(a, kvindex.TierGPU, c[2:3])
	want(t, x, c, a, 2)
	want(t, x, c, b, 4)
	x.Remove(b, kvindex.TierGPU, c[:1])
	want(t, x, c, a, 2)
	want(t, x, c, b, 0)
}

func unknown(t *testing.T, x Index) {
	s := x.Attach("w", 0)
	c := Chain(1, 4)
	store(t, x, s, kvindex.TierGPU, 0, c)
	x.Remove(s, kvindex.TierGPU, append(Chain(2, 1), c[2], c[3]))
	want(t, x, c, s, 2)
	x.Remove(s, kvindex.TierGPU, c[2:])
	x.Remove(s, kvindex.TierCPU, c)
	want(t, x, c, s, 2)
}

func duplicate(t *testing.T, x Index) {
	s := x.Attach("w", 0)
	c := Chain(1, 6)
	store(t, x, s, kvindex.TierGPU, 0, c)
	store(t, x, s, kvindex.TierGPU, 0, c[:3])
	store(t, x, s, kvindex.TierGPU, c[1], c[2:])
	want(t, x, c, s, 6)
	x.Remove(s, kvindex.TierGPU, c[3:4]) // a set: one removal undoes two stores
	want(t, x, c, s, 3)
}

func parentNotHeld(t *testing.T, x Index) {
	s := x.Attach("w", 0)
	c := Chain(1, 6)
	err := x.Store(s, kvindex.TierGPU, c[2], c[3:])
	if err != nil && !errors.Is(err, kvindex.ErrParent) {
		t.Fatalf("Store below an unknown parent: %v", err)
	}
	want(t, x, c, s, 0)
	store(t, x, s, kvindex.TierGPU, 0, c[:3])
	if err != nil {
		want(t, x, c, s, 3)
		store(t, x, s, kvindex.TierGPU, c[2], c[3:])
	}
	want(t, x, c, s, 6)
}

func lateParent(t *testing.T, x Index) {
	a, b := x.Attach("a", 0), x.Attach("b", 0)
	c := Chain(1, 8)
	store(t, x, a, kvindex.TierGPU, 0, c[:4])
	store(t, x, a, kvindex.TierGPU, c[3], c[4:])
	store(t, x, b, kvindex.TierGPU, 0, c[:4])
	x.Remove(a, kvindex.TierGPU, c[:4])
	x.Remove(b, kvindex.TierGPU, c[:4])
	want(t, x, c, a, 0)
	store(t, x, a, kvindex.TierGPU, 0, c[:4])
	want(t, x, c, a, 8)
	store(t, x, b, kvindex.TierGPU, 0, c)
	want(t, x, c, b, 8)
}

func detach(t *testing.T, x Index) {
	a, b := x.Attach("a", 0), x.Attach("b", 0)
	c := Chain(1, 8)
	store(t, x, a, kvindex.TierGPU, 0, c)
	store(t, x, b, kvindex.TierGPU, 0, c[:5])
	x.Detach(a)
	want(t, x, c, a, 0)
	want(t, x, c, b, 5)
	if err := x.Store(a, kvindex.TierGPU, 0, c); !errors.Is(err, kvindex.ErrSlot) {
		t.Fatalf("Store after Detach: %v", err)
	}
	x.Remove(a, kvindex.TierGPU, c)
	x.Clear(a)
	x.Detach(a)
	want(t, x, c, b, 5)
}

func attachAgain(t *testing.T, x Index) {
	c := Chain(1, 8)
	a := x.Attach("a", 0)
	store(t, x, a, kvindex.TierGPU, 0, c)
	b := x.Attach("a", 0)
	if a == b {
		t.Fatal("the same slot twice")
	}
	want(t, x, c, b, 0)
	if err := x.Store(a, kvindex.TierGPU, 0, c); !errors.Is(err, kvindex.ErrSlot) {
		t.Fatalf("Store for the slot before: %v", err)
	}
	x.Remove(a, kvindex.TierGPU, c)
	store(t, x, b, kvindex.TierGPU, 0, c[:2])
	want(t, x, c, b, 2)
}

func clearAll(t *testing.T, x Index) {
	a, b := x.Attach("a", 0), x.Attach("b", 0)
	c := Chain(1, 8)
	store(t, x, a, kvindex.TierGPU, 0, c)
	store(t, x, b, kvindex.TierGPU, 0, c)
	x.Clear(a)
	want(t, x, c, a, 0)
	want(t, x, c, b, 8)
	store(t, x, a, kvindex.TierGPU, 0, c[:3])
	want(t, x, c, a, 3)
}

func manyHolders(t *testing.T, x Index) {
	c := Chain(1, 64)
	var slots []kvindex.Slot
	for w := range 200 {
		s := x.Attach(fmt.Sprint(w), 0)
		store(t, x, s, kvindex.TierGPU, 0, c[:1+w%64])
		slots = append(slots, s)
	}
	var o kvindex.Overlap
	x.Lookup(&o, c)
	for w, s := range slots {
		if got := o.Depth(s, kvindex.TierGPU); got != 1+w%64 {
			t.Fatalf("worker %d: depth %d, want %d", w, got, 1+w%64)
		}
	}
}

// generations: workers come and go for long; none inherits from another.
func generations(t *testing.T, x Index) {
	seen := map[kvindex.Slot]bool{}
	c := Chain(1, 16)
	for i := range 300 {
		s := x.Attach(fmt.Sprint(i%5), 0)
		if s == 0 || seen[s] {
			t.Fatalf("slot %v again", s)
		}
		seen[s] = true
		want(t, x, c, s, 0)
		store(t, x, s, kvindex.TierGPU, 0, c[:1+i%16])
		want(t, x, c, s, 1+i%16)
		if i%3 == 0 {
			x.Detach(s)
		}
	}
}

func tiers(t *testing.T, x Index) {
	s := x.Attach("w", 0)
	c := Chain(1, 12)
	store(t, x, s, kvindex.TierGPU, 0, c[:4])
	store(t, x, s, kvindex.TierCPU, c[3], c[4:8])
	store(t, x, s, kvindex.TierObject, c[7], c[8:])
	want(t, x, c, s, 4, 8, 8, 12)
	store(t, x, s, kvindex.TierGPU, c[7], c[8:]) // behind a gap, in fast memory
	want(t, x, c, s, 4, 12, 12, 12)
	x.Remove(s, kvindex.TierGPU, c[2:3])
	want(t, x, c, s, 2, 2, 2, 2)
	store(t, x, s, kvindex.TierDisk, c[1], c[2:3])
	want(t, x, c, s, 2, 2, 12, 12)
	store(t, x, s, kvindex.TierCPU, 0, c[:3]) // also where it is already
	want(t, x, c, s, 2, 12, 12, 12)
	x.Clear(s, kvindex.TierDisk, kvindex.TierObject)
	want(t, x, c, s, 2, 12, 12, 12)
	x.Clear(s, kvindex.TierCPU)
	want(t, x, c, s, 2, 2, 2, 2)
	if err := x.Store(s, kvindex.TierUnknown, 0, c); !errors.Is(err, kvindex.ErrTier) {
		t.Fatalf("Store in an unknown tier: %v", err)
	}
	x.Clear(s)
	want(t, x, c, s, 0, 0, 0, 0)
}

// readers: beside a writer that stores and removes the tail of a chain, no lookup
// sees less than the part that stays nor more than there ever was.
func readers(t *testing.T, x Index) {
	c := Chain(1, 60)
	fixed, flap := x.Attach("fixed", 0), x.Attach("flap", 0)
	store(t, x, fixed, kvindex.TierGPU, 0, c[:50])
	store(t, x, flap, kvindex.TierGPU, 0, c[:20])
	var stop atomic.Bool
	var wg sync.WaitGroup
	var bad atomic.Int64
	for range 2 {
		wg.Go(func() {
			var o kvindex.Overlap
			for !stop.Load() {
				x.Lookup(&o, c)
				a, b := o.Depth(fixed, kvindex.TierGPU), o.Depth(flap, kvindex.TierGPU)
				if a > 50 || b > 40 || !o.LowerBound && (a < 50 || b < 20) {
					bad.Add(1)
				}
			}
		})
	}
	for range 500 {
		store(t, x, flap, kvindex.TierGPU, c[19], c[20:40])
		for i := 39; i >= 20; i-- {
			x.Remove(flap, kvindex.TierGPU, c[i:i+1])
		}
	}
	stop.Store(true)
	wg.Wait()
	if n := bad.Load(); n > 0 {
		t.Fatalf("%d wrong answers", n)
	}
	want(t, x, c, fixed, 50)
	want(t, x, c, flap, 20)
}

// random compares a random history with the reference.
func random(t *testing.T, x Index, seed uint64, o Options) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	ref := NewReference()
	const workers = 12
	var mine, theirs [workers]kvindex.Slot
	for w := range workers {
		mine[w], theirs[w] = x.Attach(fmt.Sprint(w), 0), ref.Attach(fmt.Sprint(w), 0)
	}
	var cs [][]block.Hash
	for i := range 8 {
		c := Chain(seed*100+uint64(i), 1+r.IntN(30))
		if i > 2 {
			from := cs[r.IntN(len(cs))]
			c = append(slices.Clone(from[:1+r.IntN(len(from))]), c...)
		}
		cs = append(cs, c)
	}
	var got, exp kvindex.Overlap
	for step := range o.Steps {
		w, c := r.IntN(workers), cs[r.IntN(len(cs))]
		tier := kvindex.TierGPU
		if !o.GPUOnly {
			tier = kvindex.Tier(r.IntN(kvindex.Tiers))
		}
		from := r.IntN(len(c))
		to := from + 1 + r.IntN(len(c)-from)
		switch n := r.IntN(20); {
		case n < 11:
			parent := block.Hash(0)
			if n < 4 {
				from = 0
			} else if from > 0 {
				parent = c[from-1]
			}
			err := ref.Store(theirs[w], tier, parent, c[from:to])
			if mineErr := x.Store(mine[w], tier, parent, c[from:to]); mineErr == nil && errors.Is(err, kvindex.ErrParent) {
				ref.Store(theirs[w], tier, 0, c[from:to]) // it knows the parent longer than the slot holds it
			} else if !errors.Is(mineErr, err) {
				t.Fatalf("seed %d, step %d: Store: %v, want %v", seed, step, mineErr, err)
			}
		case n < 18:
			hs := slices.Clone(c[from:to])
			if n < 15 {
				slices.Reverse(hs)
			}
			x.Remove(mine[w], tier, hs)
			ref.Remove(theirs[w], tier, hs)
		case n == 18 && r.IntN(5) == 0:
			x.Clear(mine[w], tier)
			ref.Clear(theirs[w], tier)
		case n == 19 && r.IntN(5) == 0:
			mine[w], theirs[w] = x.Attach(fmt.Sprint(w), 0), ref.Attach(fmt.Sprint(w), 0)
		}
		q := cs[r.IntN(len(cs))]
		x.Lookup(&got, q)
		ref.Lookup(&exp, q)
		for w := range workers {
			for tier := range kvindex.Tier(kvindex.Tiers) {
				if a, b := got.Depth(mine[w], tier), exp.Depth(theirs[w], tier); a != b {
					t.Fatalf("seed %d, step %d: worker %d, tier %v: depth %d, want %d", seed, step, w, tier, a, b)
				}
			}
		}
		if a, b := listed(&got), listed(&exp); a != b {
			t.Fatalf("seed %d, step %d: %d places listed, want %d", seed, step, a, b)
		}
	}
}

// listed counts the slots that an answer lists, by tier.
func listed(o *kvindex.Overlap) (n [kvindex.Tiers]int) {
	for t := range kvindex.Tier(kvindex.Tiers) {
		for _, g := range o.Groups(t) {
			for _, v := range o.Words(t, g) {
				n[t] += bits.OnesCount64(v)
			}
		}
		n[t] += len(o.Pairs(t))
	}
	return n
}
