package router

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// groupIndex answers that all slots hold all of the chain, in one group.
type groupIndex struct{ words []uint64 }

func allHold(n int) *groupIndex {
	g := &groupIndex{words: make([]uint64, n/64+1)}
	for num := 1; num <= n; num++ {
		g.words[num/64] |= 1 << (num % 64)
	}
	return g
}

func (g *groupIndex) Lookup(dst *kvindex.Overlap, chain []block.Hash) {
	dst.Reset()
	dst.AddGroup(kvindex.TierGPU, uint32(len(chain)), 0, g.words)
}

// loaded is a router whose workers have 16 requests of 512 blocks each
// outstanding, sharing the first 256, and the request to pick for.
func loaded(tb testing.TB, workers []Worker, index Index, policy Policy) (*Router, *Request) {
	r, err := New(index, &Options{Policy: policy})
	require.NoError(tb, err)
	require.NoError(tb, r.SetWorkers(workers))
	n := len(workers)
	prefix := chainOf(1, 256)
	for i := range 16 * n {
		l := mustPick(tb, r, &Request{
			Chain: branch(prefix, 2+i, 256), Tokens: 512*16 + 5,
			Only: []kvindex.Slot{workers[i%n].Slot},
		})
		if i/n%2 == 0 {
			l.Tokens(1)
		}
	}
	return r, &Request{Chain: branch(prefix, 1<<20, 256), Tokens: 512*16 + 5}
}

// filledIndex is a kvindex.Index with n workers that hold all of the chain that
// loaded picks for.
func filledIndex(tb testing.TB, n int) (*kvindex.Index, []Worker) {
	x, err := kvindex.New(nil)
	require.NoError(tb, err)
	workers := workerList(n, 30000)
	for i := range workers {
		s := x.Attach(workers[i].Name, 0)
		require.NoError(tb, x.Store(s, kvindex.TierGPU, 0, branch(chainOf(1, 256), 1<<20, 256)))
		workers[i].Slot = s
	}
	return x, workers
}

// BenchmarkPick is Pick and Done of a prompt of 512 blocks that all workers
// hold, the walk of the index included and hashing not.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("blocks=512/workers=%d", n), func(b *testing.B) {
			index, workers := filledIndex(b, n)
			r, req := loaded(b, workers, index, nil)
			l := mustPick(b, r, req)
			require.Equal(b, 512, l.Decision().Reused[kvindex.TierGPU])
			l.Done(nil)
			b.ReportAllocs()
			for b.Loop() {
				l, err := r.Pick(req)
				if err != nil {
					b.Fatal(err)
				}
				l.Done(nil)
			}
		})
	}
}

func BenchmarkPickPolicy(b *testing.B) {
	for _, name := range PolicyNames() {
		b.Run("workers=64/policy="+name, func(b *testing.B) {
			policy, err := PolicyByName(name)
			require.NoError(b, err)
			r, req := loaded(b, workerList(64, 30000), allHold(64), policy)
			b.ReportAllocs()
			for b.Loop() {
				l, err := r.Pick(req)
				if err != nil {
					b.Fatal(err)
				}
				l.Done(nil)
			}
		})
	}
}

// BenchmarkPickFleet is Pick and Done of a prompt of 512 blocks that three of the
// workers hold.
func BenchmarkPickFleet(b *testing.B) {
	for _, n := range []int{64, 1000, 10000} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			x, err := kvindex.New(nil)
			require.NoError(b, err)
			r, err := New(x, nil)
			require.NoError(b, err)
			chain := chainOf(1, 512)
			workers := workerList(n, 25000)
			for i := range workers {
				workers[i].Slot = x.Attach(workers[i].Name, 0)
				if i < 3 {
					require.NoError(b, x.Store(workers[i].Slot, kvindex.TierGPU, 0, chain))
				}
			}
			require.NoError(b, r.SetWorkers(workers))
			req := &Request{Chain: chain, Tokens: 512*16 + 8}
			b.ReportAllocs()
			for b.Loop() {
				l, err := r.Pick(req)
				if err != nil {
					b.Fatal(err)
				}
				l.Done(nil)
			}
		})
	}
}
