package router

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// counting is the default policy, which counts the rows and keeps those of the
// last pick. It rules out all slots but only, if that is set.
type counting struct {
	Expected
	rows int
	last []kvindex.Slot
	only kvindex.Slot
}

func (p *counting) Score(dst []float64, v *View, req *Request) {
	p.Expected.Score(dst, v, req)
	p.rows += v.Len()
	p.last = p.last[:0]
	for i := range dst {
		s := v.Worker(i).Slot
		p.last = append(p.last, s)
		if p.only != 0 && s != p.only {
			dst[i] = math.Inf(1)
		}
	}
}

// pairIndex answers that slot number num+1 holds depths[num] blocks.
type pairIndex []int

func (x pairIndex) Lookup(dst *kvindex.Overlap, chain []block.Hash) {
	dst.Reset()
	for i, d := range x {
		if d = min(d, len(chain)); d > 0 {
			dst.AddPair(kvindex.TierGPU, uint32(i+1), uint32(d))
		}
	}
}

// The holder that is not busy is found among 10,000, by whatever filters.
func TestNarrowFindsTheHolder(t *testing.T) {
	const n = 10000
	depths := make(pairIndex, n)
	depths[70], depths[4000], depths[9998] = 400, 400, 400
	for name, opts := range map[string]Options{"plain": {}, "limits": {Limits: Limits{Outstanding: 3}}} {
		t.Run(name, func(t *testing.T) {
			policy := &counting{}
			opts.Policy = policy
			r, _ := newTestRouter(t, n, depths, opts)
			for _, busy := range []int{71, 9999} {
				for range 2 {
					mustPick(t, r, &Request{Tokens: 100000, Only: []kvindex.Slot{slotOf(busy)}})
				}
			}
			for _, not := range [][]kvindex.Slot{nil, {slotOf(5)}} {
				l := mustPick(t, r, &Request{Chain: chainOf(1, 400), Tokens: 6401, Not: not})
				require.Equal(t, slotOf(4001), l.Slot())
				require.Len(t, policy.last, 512+3)
				require.True(t, slices.IsSorted(policy.last))
				l.Done(nil)
			}
			l := mustPick(t, r, &Request{Chain: chainOf(1, 400), Tokens: 6401, Not: []kvindex.Slot{slotOf(4001)}})
			require.NotContains(t, policy.last, slotOf(4001))
			l.Done(nil)
		})
	}
}

// Of more holders than the bound the deepest stay, and where a depth is cut in two
// each has the same chance.
func TestNarrowKeepsTheDeepest(t *testing.T) {
	const n, bound = 1000, 20
	depths := make(pairIndex, n)
	for i := range depths {
		depths[i] = 1
	}
	for i := range 10 {
		depths[100*i] = 50
	}
	group := groupIndex(*allHold(n))
	for name, c := range map[string]struct {
		index Index
		deep  int
	}{"pairs": {depths, 10}, "group": {&group, 0}} {
		t.Run(name, func(t *testing.T) {
			policy := &counting{}
			r, _ := newTestRouter(t, n, c.index, Options{Policy: policy, MaxCandidates: bound})
			seen := make([]int, n+1)
			const picks = 2000
			for range picks {
				mustPick(t, r, &Request{Chain: chainOf(1, 60), Tokens: 1000}).Done(nil)
				require.Len(t, policy.last, 2*bound)
				for _, s := range policy.last {
					seen[s.Num()]++
				}
			}
			share := float64(2*bound-c.deep) / float64(n-c.deep)
			for num, k := range seen[1:] {
				if c.deep > 0 && num%100 == 0 {
					require.Equal(t, picks, k)
				} else {
					require.InDelta(t, picks*share, k, 5*math.Sqrt(picks*share))
				}
			}
		})
	}
}

// What only outstanding requests hold is found too, the longest match first.
func TestNarrowFindsInFlight(t *testing.T) {
	const n = 10000
	policy := &counting{}
	r, c := newTestRouter(t, n, nil, Options{Policy: policy, MaxCandidates: 8})
	prefix := chainOf(1, 100)
	book := func(num, blocks int) {
		mustPick(t, r, &Request{Chain: prefix[:blocks], Tokens: blocks*16 + 1, Quiet: true, Only: []kvindex.Slot{slotOf(num)}})
	}
	for i := range 30 {
		book(100*i+1, 20)
	}
	book(7777, 100)
	book(8888, 90)
	c.advance(time.Hour) // all are past their prefill
	l := mustPick(t, r, &Request{Chain: branch(prefix, 2, 300), Tokens: 401 * 16})
	require.Contains(t, []kvindex.Slot{slotOf(7777), slotOf(8888)}, l.Slot())
	require.Len(t, policy.last, 16)
	require.Contains(t, policy.last, slotOf(7777))
	require.Contains(t, policy.last, slotOf(8888))
	require.Equal(t, slotOf(7777), l.Slot())

	// Workers that left, or drain, are not candidates however much they hold.
	ws := workerList(n, 0)
	ws[8887].Draining = true
	require.NoError(t, r.SetWorkers(slices.Delete(ws, 7776, 7777)))
	mustPick(t, r, &Request{Chain: branch(prefix, 3, 300), Tokens: 401 * 16})
	require.NotContains(t, policy.last, slotOf(7777))
	require.NotContains(t, policy.last, slotOf(8888))
}

// Each worker is drawn as often as the others, no worker twice at once, and the
// same seed draws the same.
func TestNarrowDrawsUniformly(t *testing.T) {
	const n, bound, picks = 1000, 100, 4000
	for name, opts := range map[string]Options{"plain": {}, "limits": {Limits: Limits{Outstanding: 1 << 20}}} {
		t.Run(name, func(t *testing.T) {
			run := func(seed uint64, picks int) (seen [n + 1]int) {
				policy := &counting{}
				opts := opts
				opts.Policy, opts.MaxCandidates, opts.Rand = policy, bound, seeded(seed)
				r, _ := newTestRouter(t, n, nil, opts)
				for range picks {
					mustPick(t, r, &Request{Tokens: 100}).Done(nil)
					require.Len(t, policy.last, bound)
					require.True(t, slices.IsSorted(policy.last))
					require.Len(t, slices.Compact(policy.last), bound, "distinct")
					for _, s := range policy.last {
						seen[s.Num()]++
					}
				}
				return seen
			}
			seen := run(1, picks)
			const p = float64(bound) / n
			mean, sigma := picks*p, math.Sqrt(picks*p*(1-p))
			square, outside := 0.0, 0
			for _, k := range seen[1:] {
				z := (float64(k) - mean) / sigma
				square += z * z
				if math.Abs(z) > 3 {
					outside++
				}
			}
			// The sum of squares has mean n and deviation sqrt(2n).
			require.InDelta(t, n, square, 3*math.Sqrt(2*n))
			require.LessOrEqual(t, outside, 12) // 2.7 are to be expected
			require.Equal(t, run(2, 20), run(2, 20))
			require.NotEqual(t, run(2, 20), run(3, 20))
		})
	}
}

// A policy that rules out all that it is shown is shown the others.
func TestNarrowWidens(t *testing.T) {
	for name, opts := range map[string]Options{"plain": {}, "limits": {Limits: Limits{Outstanding: 5}}} {
		t.Run(name, func(t *testing.T) {
			policy := &counting{only: slotOf(777)}
			opts.Policy, opts.MaxCandidates = policy, 4
			r, _ := newTestRouter(t, 1000, nil, opts)
			for range 3 {
				require.Equal(t, slotOf(777), mustPick(t, r, &Request{Tokens: 100, Quiet: true}).Slot())
				require.Len(t, policy.last, 1000)
			}
			policy.only = slotOf(1001)
			_, err := r.Pick(&Request{Tokens: 100})
			require.ErrorIs(t, err, ErrVetoed)
		})
	}
}

// Policies that must see all workers do: each gets its turn, however many.
func TestWholeListers(t *testing.T) {
	const n = 1500
	r, _ := newTestRouter(t, n, nil, Options{Policy: &RoundRobin{}})
	for i := range 2 * n {
		require.Equal(t, slotOf(i%n+1), mustPick(t, r, &Request{Tokens: 10}).Slot())
	}
	for name, whole := range map[string]bool{
		"expected": false, "conductor": false, "dynamo": false, "lmetric": false, "llmd:exact=1": false,
		"llmd": true, "leastloaded": true, "poweroftwo": true, "random": true, "roundrobin": true,
	} {
		policy, err := PolicyByName(name)
		require.NoError(t, err)
		r, _ := newTestRouter(t, n, nil, Options{Policy: policy})
		want := 512
		if whole {
			want = n
		}
		require.Equal(t, want, mustPick(t, r, &Request{Tokens: 10}).Decision().Candidates, name)
	}
	r, _ = newTestRouter(t, n, nil, Options{MaxCandidates: -1})
	require.Equal(t, n, mustPick(t, r, &Request{Tokens: 10}).Decision().Candidates)
}

// With no more workers than the bound, decisions and draws are those of a router
// without one.
func TestNarrowLeavesFewWorkersAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "workers")
		depths := make(pairIndex, n)
		for i := range depths {
			depths[i] = rapid.IntRange(0, 30).Draw(t, "depth")
		}
		c := newClock()
		var draws [2]int
		var routers [2]*Router
		var leases [2][]*Lease
		for i, bound := range []int{n + rapid.IntRange(0, 3).Draw(t, "above"), -1} {
			random := seeded(9)
			r, err := New(depths, &Options{MaxCandidates: bound, Now: c.now, Rand: func() uint64 { draws[i]++; return random() }})
			require.NoError(t, err)
			require.NoError(t, r.SetWorkers(workerList(n, 0)))
			routers[i] = r
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.advance(time.Duration(rapid.IntRange(0, 200).Draw(t, "ms")) * time.Millisecond)
			if k := len(leases[0]); k > 0 && rapid.Bool().Draw(t, "done") {
				at := rapid.IntRange(0, k-1).Draw(t, "which")
				for i := range routers {
					leases[i][at].Done(nil)
				}
				continue
			}
			blocks := rapid.IntRange(0, 40).Draw(t, "blocks")
			req := &Request{Chain: chainOf(rapid.IntRange(1, 3).Draw(t, "family"), blocks), Tokens: 16*blocks + 3,
				Quiet: rapid.Bool().Draw(t, "quiet")}
			if rapid.Bool().Draw(t, "filter") {
				req.Not = []kvindex.Slot{slotOf(rapid.IntRange(1, n).Draw(t, "not"))}
			}
			var got [2]Decision
			for i, r := range routers {
				l, err := r.Pick(req)
				if err != nil {
					require.ErrorIs(t, err, ErrNotAllowed)
					continue
				}
				leases[i] = append(leases[i], l)
				got[i] = *l.Decision()
				got[i].Alternates = slices.Clone(got[i].Alternates)
			}
			require.Equal(t, got[1], got[0])
			require.Equal(t, draws[1], draws[0])
		}
	})
}

// Quiet requests on the rows that are scored are taken to be past their prefill
// in time, those of the first pick as those of a pick that has to be widened.
func TestNarrowSettlesQuietRequests(t *testing.T) {
	for name, only := range map[string]kvindex.Slot{"narrowed": 0, "widened": slotOf(51)} {
		t.Run(name, func(t *testing.T) {
			depths := make(pairIndex, 100)
			if only == 0 {
				depths[50] = 100
			}
			policy := &counting{}
			r, c := newTestRouter(t, 100, depths, Options{Policy: policy, MaxCandidates: 8})
			for range 5 {
				mustPick(t, r, &Request{Tokens: 8000, Quiet: true, Only: []kvindex.Slot{slotOf(51)}})
			}
			c.advance(time.Hour)
			policy.only = only
			l := mustPick(t, r, &Request{Chain: chainOf(1, 100), Tokens: 1601})
			require.Equal(t, slotOf(51), l.Slot())
			require.Zero(t, l.Decision().Cost.Queue)
		})
	}
}
