package kvindex

import (
	lru "container/list"
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stator-go/stator/kvindex/block"
)

var benchWorkers = []int{1, 8, 64, 256}

// BenchmarkLookup: 512 blocks, all held by all workers in GPU memory.
func BenchmarkLookup(b *testing.B) {
	for _, n := range benchWorkers {
		b.Run(fmt.Sprintf("blocks=512/workers=%d", n), func(b *testing.B) {
			x, _ := New(nil)
			c := makeChain(rand.New(rand.NewPCG(1, 2)), nil, 0, 512)
			for w := range n {
				if err := x.Store(x.Attach(fmt.Sprint(w), 0), TierGPU, 0, c); err != nil {
					b.Fatal(err)
				}
			}
			var o Overlap
			b.ReportAllocs()
			for b.Loop() {
				x.Lookup(&o, c)
			}
			if o.listed() != n || o.Groups(TierGPU)[0].Depth != 512 {
				b.Fatalf("%d holders listed", o.listed())
			}
		})
	}
}

// BenchmarkLookupTiers is the same with every other worker holding the second
// half of the prompt in host memory only.
func BenchmarkLookupTiers(b *testing.B) {
	for _, n := range benchWorkers {
		b.Run(fmt.Sprintf("blocks=512/workers=%d", n), func(b *testing.B) {
			x, _ := New(nil)
			c := makeChain(rand.New(rand.NewPCG(1, 2)), nil, 0, 512)
			for w := range n {
				s := x.Attach(fmt.Sprint(w), 0)
				if w%2 == 0 {
					x.Store(s, TierGPU, 0, c)
				} else {
					x.Store(s, TierGPU, 0, c[:256])
					x.Store(s, TierCPU, c[255], c[256:])
				}
			}
			var o Overlap
			b.ReportAllocs()
			for b.Loop() {
				x.Lookup(&o, c)
			}
		})
	}
}

// BenchmarkLookupDepths: no two workers hold the same number of blocks.
func BenchmarkLookupDepths(b *testing.B) {
	for _, n := range benchWorkers {
		b.Run(fmt.Sprintf("blocks=512/workers=%d", n), func(b *testing.B) {
			x, _ := New(nil)
			c := makeChain(rand.New(rand.NewPCG(1, 2)), nil, 0, 512)
			for w := range n {
				x.Store(x.Attach(fmt.Sprint(w), 0), TierGPU, 0, c[:512-w])
			}
			var o Overlap
			b.ReportAllocs()
			for b.Loop() {
				x.Lookup(&o, c)
			}
		})
	}
}

// BenchmarkStore applies events of 16 blocks shaped like the Mooncake
// conversation trace: sessions that share their first 512 tokens, come back with
// more, go to their own worker three times in four and to any the fourth time;
// each worker evicts the least recently used blocks, deepest first. It is what a
// Stream does with an event behind the hashes: find the parent by the engine's
// name, store under the engine's names, remove by them. Hashes are precomputed,
// slots sized by the workers' capacity, removals timed and not counted. One
// operation is the whole load into an empty index; ns/block is that of the fastest,
// since other work on the machine only ever adds.
func BenchmarkStore(b *testing.B) {
	for _, n := range benchWorkers {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			l := makeLoad(n, 1<<20/n+4096)
			var x *Index
			best := time.Duration(math.MaxInt64)
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				x, _ = New(nil)
				l.play(b, x)
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(best.Nanoseconds())/float64(l.stored), "ns/block")
			s := x.Stats()
			held := 0
			for _, h := range s.Holders {
				held += h
			}
			b.ReportMetric(float64(s.Bytes)/float64(held), "B/held")
		})
	}
}

// BenchmarkLookupParallel is BenchmarkLookup on all processors at once.
func BenchmarkLookupParallel(b *testing.B) {
	x, _ := New(nil)
	c := makeChain(rand.New(rand.NewPCG(1, 2)), nil, 0, 512)
	for w := range 64 {
		x.Store(x.Attach(fmt.Sprint(w), 0), TierGPU, 0, c)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var o Overlap
		for pb.Next() {
			x.Lookup(&o, c)
		}
	})
}

// BenchmarkSHA256Ref is a measure of the machine: figures of others are compared
// as ratios to it.
func BenchmarkSHA256Ref(b *testing.B) {
	var buf [1024]byte
	for b.Loop() {
		sha256.Sum256(buf[:])
	}
}

// load is a recorded stream of events.
type load struct {
	workers  int
	capacity int // blocks of a worker
	ops      []loadOp
	names    []uint64
	hashes   []block.Hash
	stored   int
}

// loadOp stores (or removes) names[lo:hi]; parent is an index into names, -1 = none.
type loadOp struct {
	worker, parent, lo, hi int
	remove                 bool
}

func (l *load) play(tb testing.TB, x *Index) {
	slots := make([]Slot, l.workers)
	for i := range slots {
		slots[i] = x.AttachSized(fmt.Sprint(i), 0, l.capacity)
	}
	var dup []uint64
	var err error
	for i := range l.ops {
		op := &l.ops[i]
		if op.remove {
			x.removeNamed(slots[op.worker], TierGPU, l.names[op.lo:op.hi])
			continue
		}
		var p parentRef
		if op.parent >= 0 {
			h, _, at, ok := x.resolve(slots[op.worker], l.names[op.parent])
			if !ok {
				tb.Fatal("a parent is not known")
			}
			p = parentRef{has: true, name: l.names[op.parent], at: at, hash: h}
		}
		if dup, err = x.storeNamed(slots[op.worker], TierGPU, p, 0, l.names[op.lo:op.hi], l.hashes[op.lo:op.hi], dup[:0]); err != nil {
			tb.Fatal(err)
		}
	}
}

func benchName(h block.Hash) uint64 { return uint64(h) * 0x9E3779B97F4A7C15 }

func makeLoad(workers, capacity int) *load {
	const (
		requests = 2500
		group    = 32 // blocks of 512 tokens
	)
	l := &load{workers: workers, capacity: capacity}
	r := rand.New(rand.NewPCG(4, 2))
	type cache struct {
		lru *lru.List
		at  map[block.Hash]*lru.Element
	}
	caches := make([]cache, workers)
	for i := range caches {
		caches[i] = cache{lru.New(), map[block.Hash]*lru.Element{}}
	}
	head := makeChain(r, nil, 0, group)
	var sessions [][]block.Hash
	add := func(h block.Hash) int {
		l.names = append(l.names, benchName(h))
		l.hashes = append(l.hashes, h)
		return len(l.names) - 1
	}
	for range requests {
		var c []block.Hash
		var id int
		if len(sessions) > 0 && r.IntN(100) < 39 {
			id = len(sessions) - 1 - r.IntN(min(len(sessions), 300))
			c = makeChain(r, sessions[id], len(sessions[id]), group*(1+r.IntN(8)))
			sessions[id] = c
		} else {
			id = len(sessions)
			n := int(14 * (0.1 + r.ExpFloat64()*1.2))
			c = makeChain(r, head, group, group*min(n, 120))
			sessions = append(sessions, c)
		}
		w := id * 7919 % workers
		if r.IntN(4) == 0 {
			w = r.IntN(workers)
		}
		k := &caches[w]
		have := 0
		for have < len(c) && k.at[c[have]] != nil {
			have++
		}
		for from := have; from < len(c); from += 16 {
			to := min(from+16, len(c))
			op := loadOp{worker: w, parent: -1}
			if from > 0 {
				op.parent = add(c[from-1])
			}
			op.lo = len(l.names)
			for _, h := range c[from:to] {
				add(h)
			}
			op.hi = len(l.names)
			l.stored += op.hi - op.lo
			l.ops = append(l.ops, op)
		}
		for j := len(c) - 1; j >= 0; j-- { // the deepest is the oldest
			if e := k.at[c[j]]; e != nil {
				k.lru.MoveToBack(e)
			} else {
				k.at[c[j]] = k.lru.PushBack(c[j])
			}
		}
		for k.lru.Len() > capacity {
			op := loadOp{worker: w, remove: true, lo: len(l.names)}
			for n := 0; n < 16 && k.lru.Len() > capacity; n++ {
				h := k.lru.Remove(k.lru.Front()).(block.Hash)
				delete(k.at, h)
				add(h)
			}
			op.hi = len(l.names)
			l.ops = append(l.ops, op)
		}
	}
	return l
}
