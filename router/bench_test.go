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

// loaded is a router with n workers that have 16 requests of 512 blocks each
// outstanding, sharing the first 256, and the request to pick for.
func loaded(tb testing.TB, n int, index Index, policy Policy) (*Router, *Request) {
	r, err := New(index, &Options{Policy: policy})
	require.NoError(tb, err)
	require.NoError(tb, r.SetWorkers(workerList(n, 30000)))
	prefix := chainOf(1, 256)
	for i := range 16 * n {
		l := mustPick(tb, r, &Request{
			Chain: branch(prefix, 2+i, 256), Tokens: 512*16 + 5,
			Only: []kvindex.Slot{slotOf(i%n + 1)},
		})
		if i/n%2 == 0 {
			l.Tokens(1)
		}
	}
	return r, &Request{Chain: branch(prefix, 1<<20, 256), Tokens: 512*16 + 5}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("blocks=512/workers=%d", n), func(b *testing.B) {
			r, req := loaded(b, n, allHold(n), nil)
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
			r, req := loaded(b, 64, allHold(64), policy)
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
