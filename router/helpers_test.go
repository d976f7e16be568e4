package router

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// fakeIndex is a map from slot number and tier to a set of blocks. It fills an
// Overlap by pairs.
type fakeIndex map[uint32]*[kvindex.Tiers]map[block.Hash]bool

func (x fakeIndex) hold(num uint32, t kvindex.Tier, blocks ...block.Hash) {
	if x[num] == nil {
		x[num] = new([kvindex.Tiers]map[block.Hash]bool)
	}
	if x[num][t] == nil {
		x[num][t] = map[block.Hash]bool{}
	}
	for _, b := range blocks {
		x[num][t][b] = true
	}
}

// depth is the definition: leading blocks in tier t or a faster one.
func (x fakeIndex) depth(num uint32, t kvindex.Tier, chain []block.Hash) int {
	tiers := x[num]
	if tiers == nil {
		return 0
	}
next:
	for i, b := range chain {
		for u := range int(t) + 1 {
			if tiers[u][b] {
				continue next
			}
		}
		return i
	}
	return len(chain)
}

func (x fakeIndex) Lookup(dst *kvindex.Overlap, chain []block.Hash) {
	dst.Reset()
	for num := range x {
		last := 0
		for t := range kvindex.Tiers {
			if d := x.depth(num, kvindex.Tier(t), chain); d > last {
				dst.AddPair(kvindex.Tier(t), num, uint32(d))
				last = d
			}
		}
	}
}

// clock is a time source that tests set.
type clock struct{ at time.Time }

func newClock() *clock                   { return &clock{time.Unix(1_700_000_000, 0)} }
func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }

// seeded is a random source for Options.Rand.
func seeded(seed uint64) func() uint64 { return rand.New(rand.NewPCG(seed, seed)).Uint64 }

// slotOf is slot n of generation 1.
func slotOf(n int) kvindex.Slot { return kvindex.MakeSlot(uint32(n), 1) }

// workerList is n workers with slots 1 to n.
func workerList(n, kvBlocks int) []Worker {
	ws := make([]Worker, n)
	for i := range ws {
		ws[i] = Worker{Slot: slotOf(i + 1), Name: fmt.Sprintf("w%d", i+1), KVBlocks: kvBlocks}
	}
	return ws
}

// newTestRouter makes a router with n workers, a test clock and a seed.
func newTestRouter(tb testing.TB, n int, index Index, opts Options) (*Router, *clock) {
	tb.Helper()
	c := newClock()
	if opts.Now == nil {
		opts.Now = c.now
	}
	if opts.Rand == nil {
		opts.Rand = seeded(1)
	}
	r, err := New(index, &opts)
	require.NoError(tb, err)
	require.NoError(tb, r.SetWorkers(workerList(n, 0)))
	return r, c
}

// chainOf is n blocks of family f: families differ from the first block on.
func chainOf(f, n int) []block.Hash { return branch(nil, f, n) }

// branch is prefix and n blocks of family f behind it.
func branch(prefix []block.Hash, f, n int) []block.Hash {
	out := append([]block.Hash(nil), prefix...)
	for range n {
		last := block.Hash(uint64(f)*0x9e3779b97f4a7c15 + 1)
		if len(out) > 0 {
			last = out[len(out)-1]
		}
		h := (uint64(last) ^ uint64(f)<<32) * 0xbf58476d1ce4e5b9
		out = append(out, block.Hash(h^h>>29))
	}
	return out
}

func mustPick(tb testing.TB, r *Router, req *Request) *Lease {
	tb.Helper()
	l, err := r.Pick(req)
	require.NoError(tb, err)
	return l
}
