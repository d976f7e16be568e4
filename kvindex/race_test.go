package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stator-go/stator/kvindex/block"
)

// TestReadersBesideWriters: while two writers store, remove, offload and clear,
// workers come and go and the sweep runs, no lookup sees less than what nobody
// touches, nor a depth that its slot never had; afterwards answers are exact.
func TestReadersBesideWriters(t *testing.T) {
	const (
		fixed = 40
		long  = 300
	)
	r := rand.New(rand.NewPCG(3, 3))
	x, _ := New(nil)
	idle := x.Bytes()
	m := &treeModel{x: x}
	m.attach(fixed, "nnd")
	base := makeChain(r, nil, 0, long)
	for w := range fixed {
		if err := m.store(w, TierGPU, base, 0, long-w); err != nil {
			t.Fatal(err)
		}
	}
	var tails [][]block.Hash // chains that come and go, and what they share with base
	var keep []int
	for range 48 {
		k := 1 + r.IntN(250)
		tails, keep = append(tails, makeChain(r, base, k, 1+r.IntN(60))), append(keep, k)
	}

	var stop atomic.Bool
	var writers, readers sync.WaitGroup
	for lane := range 2 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(lane), 9))
			for range writerRounds {
				w := r.IntN(fixed/2)*2 + lane
				i := r.IntN(len(tails))
				c, k := tails[i], keep[i]
				if k > long-w {
					continue // the parent is not held
				}
				t1 := Tier(r.IntN(3))
				s, me := m.slots[w].s, m.slots[w]
				p := parentRef{has: true, name: me.name(c[k-1])}
				x.storeNamed(s, t1, p, 0, me.names(c[k:]), c[k:], nil)
				if r.IntN(2) == 0 {
					x.storeKnown(s, TierCPU, me.names(c[k:]), nil)
				}
				gone := me.names(c[k:])
				slices.Reverse(gone)
				x.removeNamed(s, t1, gone)
				x.removeNamed(s, TierCPU, gone)
				switch n := r.IntN(60); {
				case n < 2: // a worker that comes, holds a part, and goes
					f := x.Attach(fmt.Sprint("flap", lane), 0)
					x.Store(f, TierGPU, 0, base[:1+r.IntN(200)])
					if n == 0 {
						x.Clear(f)
					}
				case n == 2:
					x.Clear(s, TierDisk)
				case n == 3:
					x.Sweep()
				}
			}
		})
	}
	var bad, seen atomic.Int64
	for g := range 2 {
		readers.Go(func() {
			var o Overlap
			for n := g; !stop.Load(); n++ {
				q, share := base, long
				if n%2 == 1 {
					i := n / 2 % len(tails)
					q, share = tails[i], keep[i]
				}
				x.Lookup(&o, q)
				if o.LowerBound {
					continue
				}
				seen.Add(1)
				for w := range fixed {
					low := min(share, long-w)
					high := low
					if low == share {
						high = len(q)
					}
					for _, t := range []Tier{TierGPU, TierObject} {
						if d := o.Depth(m.slots[w].s, t); d < low || d > high {
							bad.Add(1)
						}
					}
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	if bad.Load() > 0 {
		t.Fatalf("%d wrong depths in %d lookups", bad.Load(), seen.Load())
	}
	for lane := range 2 {
		if k := x.owners[owner{fmt.Sprint("flap", lane), 0}]; k != nil {
			x.Detach(MakeSlot(k.num, k.gen))
		}
	}
	var o Overlap
	for _, q := range append(tails, base) {
		if err := m.compare(&o, q); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
	if err := m.finish(idle); err != nil {
		t.Fatal(err)
	}
}

// TestSlotReuseDoesNotMix: a slot number that is used again stands for another
// worker; a lookup that began before must not put the blocks of both together.
func TestSlotReuseDoesNotMix(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	x, _ := New(nil)
	c := makeChain(r, nil, 0, 64)
	keeper := x.Attach("keeper", 0) // keeps both runs where they are
	x.Store(keeper, TierDisk, 0, c[32:])
	x.Store(keeper, TierDisk, 0, c[:32])
	var stop atomic.Bool
	var bad atomic.Int64
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var o Overlap
			for !stop.Load() {
				x.Lookup(&o, c)
				for _, g := range o.Groups(TierGPU) {
					if g.Depth > 32 {
						bad.Add(1)
					}
				}
				for _, p := range o.Pairs(TierGPU) {
					if p.Depth > 32 {
						bad.Add(1)
					}
				}
			}
		})
	}
	for range writerRounds / 16 {
		a := x.Attach("a", 0)
		x.Store(a, TierGPU, 0, c[:32])
		x.Detach(a)
		x.Sweep()
		b := x.Attach("b", 0)
		if a.Num() != b.Num() {
			t.Fatalf("slot %v after %v: the number was to be used again", b, a)
		}
		x.Store(b, TierGPU, 0, c[32:])
		x.Clear(b)
		x.Store(b, TierGPU, 0, c[:32])
		x.Detach(b)
		x.Sweep()
	}
	stop.Store(true)
	readers.Wait()
	if bad.Load() > 0 {
		t.Fatalf("%d answers mix two generations", bad.Load())
	}
}

// TestResolveWaitsForNames: blocks are in the tree a moment before their names are
// in their writer's map; who looks for one there waits.
func TestResolveWaitsForNames(t *testing.T) {
	x, _ := New(nil)
	a, b := x.Attach("a", 0), x.Attach("b", 0)
	c := makeChain(rand.New(rand.NewPCG(1, 1)), nil, 0, 4)
	for _, s := range []Slot{a, b} {
		if _, err := x.storeNamed(s, TierGPU, parentRef{}, 0, asWords(c), c, nil); err != nil {
			t.Fatal(err)
		}
	}
	name := uint64(c[3])
	_, _, p, _ := x.resolve(a, name)
	m := x.slot(a).m
	m.remove(name, p)
	m.pending.Add(1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			runtime.Gosched()
		}
		m.mu.Lock()
		m.insert(name, p)
		m.mu.Unlock()
		m.pending.Add(-1)
	})
	if h, _, _, ok := x.resolve(b, name); !ok || h != c[3] {
		t.Errorf("resolve: %x, %v", h, ok)
	}
	wg.Wait()
}

// TestWritersInParallel: several goroutines write for the same and for different
// slots, some of which are detached under them; the index stays consistent and
// ends empty.
func TestWritersInParallel(t *testing.T) {
	x, _ := New(&Options{MaxBytes: 64 << 20})
	idle := x.Bytes()
	r := rand.New(rand.NewPCG(5, 5))
	cs := makeChains(r, 20, 120)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 6))
			for range writerRounds {
				name := fmt.Sprint(r.IntN(6))
				s := x.Attach(name, r.IntN(2))
				for range 8 {
					c := cs[r.IntN(len(cs))]
					n := 1 + r.IntN(len(c))
					tier := Tier(r.IntN(Tiers))
					if r.IntN(3) > 0 {
						x.Store(s, tier, 0, c[:n])
					} else {
						x.Remove(s, tier, c[r.IntN(n):n])
					}
				}
				if r.IntN(3) == 0 {
					x.Detach(s)
				}
			}
		})
	}
	wg.Wait()
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
	for _, k := range x.owners {
		x.Detach(MakeSlot(k.num, k.gen))
	}
	x.Sweep()
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
	if got := x.Bytes(); got != idle {
		t.Fatalf("%d bytes left, %d when idle", got, idle)
	}
}
