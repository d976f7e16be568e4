package router

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
)

// scoresOf asks a policy about one request without booking anything that lasts.
func scoresOf(t *testing.T, r *Router, policy Policy, req *Request) []float64 {
	t.Helper()
	p := &probe{policies: map[string]Policy{"": policy}}
	keep := r.opts.Policy
	r.opts.Policy = p
	mustPick(t, r, req).Done(nil)
	r.opts.Policy = keep
	return p.got[""]
}

// One state, worked out by hand for every policy. Blocks of 16 tokens; worker 1
// has the first 4 blocks of the prompt cached and decodes one request of 100
// tokens; worker 2 computes a request that shares the first 6 blocks; worker 3 is
// idle.
func TestPoliciesByHand(t *testing.T) {
	tm := Timing{T0: 0.01, W: 0.1, B: 0.001, C: 0, KV: 0.0001, D: 0.002, Chunk: 100}
	chain := chainOf(1, 8)
	index := fakeIndex{}
	index.hold(1, kvindex.TierGPU, chain[:4]...)
	r, _ := newTestRouter(t, 3, index, Options{
		Timing: tm, FixedTiming: true, OutputMean: 10, FixedOutputMean: true, Policy: LeastLoaded{},
	})
	w1 := mustPick(t, r, &Request{Tokens: 100, Only: []kvindex.Slot{slotOf(1)}})
	w1.Tokens(1)
	mustPick(t, r, &Request{Chain: chain[:6], Tokens: 100, Only: []kvindex.Slot{slotOf(2)}})
	req := &Request{Chain: chain, Tokens: 130}

	// New tokens: 130-64 = 66, 130-96 = 34 with in-flight blocks or 130, and 130.
	// Prefill: one step up to 100 tokens, two steps above, each at least W.
	const p66, p34, p130 = 0.01 + 0.1, 0.01 + 0.1, 0.02 + 0.2
	const queue2 = 0.01 + 0.1 // the 100 tokens that are pending there
	// Blocks: worker 1 holds 7 private blocks and one for output; worker 2 6
	// active, 1 private, 1 for output.
	for name, want := range map[string][]float64{
		"leastloaded":       {1, 1, 0},
		"conductor":         {p66, queue2 + p34, p130},
		"conductor:pend=0":  {p66, queue2 + p130, p130},
		"dynamo":            {66.0/16 + 8 + 8 + 1, 230.0/16 + 8 + 2 + 1, 130.0/16 + 8 + 1},
		"dynamo:w=4;pend=1": {4*66.0/16 + 17, 4*134.0/16 + 11, 4*130.0/16 + 9},
		"dynamo:lmetric=1":  {66 * 18, 134 * 12, 130 * 10},
		"lmetric":           {66 * 2, 134 * 2, 130 * 1},
		"lmetric:pend=0":    {66 * 2, 34 * 2, 130},
		"llmd:exact=1":      {-(2*1 + 2*0.5 + 3*4.0/9), -(2*0 + 2*0.5 + 3*6.0/9), -(2*1 + 2*0.5)},
		"expected:price=0;decode=full": {
			p66*(1+(0.001+0.0001*100+0.002)/(0.01+0.1)) + 10*(0.0001*100+0.003),
			queue2 + p34 + 10*(0.0001*100+0.003),
			p130,
		},
		"expected:price=0;decode=off": {p66 * (1 + 0.013/0.11), queue2 + p34, p130},
	} {
		policy, err := PolicyByName(name)
		require.NoError(t, err)
		got := scoresOf(t, r, policy, req)
		for i := range want {
			require.InDelta(t, want[i], got[i], 1e-9, "%s, worker %d", name, i+1)
		}
	}
}

func TestExpectedCountsMemory(t *testing.T) {
	r, _ := newTestRouter(t, 1, nil, Options{FixedTiming: true, OutputMean: 32, FixedOutputMean: true})
	require.NoError(t, r.SetWorkers(workerList(1, 20)))
	fits := mustPick(t, r, &Request{Chain: chainOf(1, 10), Tokens: 160}).Decision()
	require.Zero(t, fits.Cost.Memory)
	// 10 active + 1 for output, 10 new, 2 for the expected output and 1: 4 over.
	over := mustPick(t, r, &Request{Chain: chainOf(2, 10), Tokens: 160}).Decision()
	step := 0.003 + 64e-6*512 + 32e-9*160
	require.InDelta(t, 32*step*4/11, over.Cost.Memory, 1e-9)

	// A known output limit below the mean bounds what this request adds.
	short := mustPick(t, r, &Request{Chain: chainOf(1, 10), Tokens: 160, MaxTokens: 1}).Decision()
	require.InDelta(t, 32*(0.003+64e-6*512+32e-9*320)*(22+0+1.0/16+1-20)/22, short.Cost.Memory, 1e-9)

	unknown, _ := newTestRouter(t, 1, nil, Options{FixedTiming: true})
	require.Zero(t, mustPick(t, unknown, &Request{Chain: chainOf(1, 900), Tokens: 14400}).Decision().Cost.Memory)
}

// The price of work, by hand: prefill seconds times arrivals per worker and second
// times the wait, over the idle share, which is taken as 5 % at least.
func TestPriceByHand(t *testing.T) {
	for _, tc := range []struct{ age, rate, work, perSecond, idle float64 }{
		{age: 100, rate: 120, work: 60, perSecond: 1, idle: 0.5},
		{age: 30, rate: 120, work: 30, perSecond: 2, idle: 0.5},
		{age: 1, rate: 10, work: 5, perSecond: 1, idle: 0.5},
		{age: 100, rate: 120, work: 117, perSecond: 1, idle: 0.05},
		{age: 100, rate: 120, work: 500, perSecond: 1, idle: 0.05},
	} {
		r, _ := newTestRouter(t, 2, nil, Options{FixedTiming: true})
		r.started, r.firstPick = true, -tc.age
		r.flows[RoleAny] = flow{rate: tc.rate, work: tc.work}
		c := mustPick(t, r, &Request{Tokens: 10000}).Decision().Cost
		require.InDelta(t, c.Prefill*tc.perSecond*c.Prefill/tc.idle, c.Price, 1e-9)
	}
}

func TestLLMDUsesReportsAndItsOwnModel(t *testing.T) {
	r, c := newTestRouter(t, 3, nil, Options{Policy: &LLMD{Blocks: 10}})
	report := func(slot, waiting int, kv float64) {
		r.Report(slotOf(slot), Load{Waiting: waiting, HasQueue: true, KVUsage: kv, HasKV: true})
	}
	report(1, 0, 0.5)
	report(2, 4, 0.5)
	report(3, 8, 0)
	a, b := chainOf(1, 8), chainOf(2, 8)
	req := &Request{Chain: a, Tokens: 129} // 9 blocks with the incomplete one
	require.Equal(t, []float64{-3, -2, -2}, scoresOf(t, r, &LLMD{}, req))
	require.Equal(t, slotOf(1), mustPick(t, r, req).Slot())

	// It was sent there, so it counts as cached although no index says so.
	policy := r.opts.Policy
	require.InDelta(t, -(3 + 3*8.0/9), scoresOf(t, r, policy, req)[0], 1e-12)
	// Eight other blocks push the oldest, the prompt's first ones, out of ten.
	mustPick(t, r, &Request{Chain: b, Tokens: 129, Only: []kvindex.Slot{slotOf(1)}})
	require.InDelta(t, -3, scoresOf(t, r, policy, req)[0], 1e-12)
	require.InDelta(t, -(3 + 3*8.0/9), scoresOf(t, r, policy, &Request{Chain: b, Tokens: 129})[0], 1e-12)

	// A worker that left is forgotten.
	require.NoError(t, r.SetWorkers(nil))
	require.NoError(t, r.SetWorkers(workerList(3, 100)))
	require.Empty(t, policy.(*LLMD).seen)

	// Without a report, or with a stale one, the ledger stands in: two pending of
	// at most two on worker 1, and 20 of 100 blocks.
	c.advance(time.Minute)
	got := scoresOf(t, r, &LLMD{}, &Request{Tokens: 1})
	require.InDeltaSlice(t, []float64{-(0 + 2*0.80), -(2 + 2*1.0), -(2 + 2*1.0)}, got, 1e-12)
}

func TestRoundRobinSkipsWhatIsNotEligible(t *testing.T) {
	r, _ := newTestRouter(t, 4, nil, Options{Policy: &RoundRobin{}})
	next := func(req Request) uint32 { return mustPick(t, r, &req).Slot().Num() }
	require.Equal(t, []uint32{1, 2, 3, 4, 1}, []uint32{next(Request{}), next(Request{}), next(Request{}), next(Request{}), next(Request{})})
	require.Equal(t, uint32(3), next(Request{Not: []kvindex.Slot{slotOf(2)}}))
	require.Equal(t, uint32(4), next(Request{}))
	require.NoError(t, r.SetWorkers(workerList(2, 0)))
	require.Equal(t, []uint32{1, 2, 1}, []uint32{next(Request{}), next(Request{}), next(Request{})})
}

// Of two drawn workers the less loaded is taken: with loads 0, 1, 2, 3 the shares
// are 3/6, 2/6, 1/6 and 0.
func TestPowerOfTwoShares(t *testing.T) {
	r, _ := newTestRouter(t, 4, nil, Options{Policy: PowerOfTwo{}})
	for i := range 4 {
		for range i {
			mustPick(t, r, &Request{Only: []kvindex.Slot{slotOf(i + 1)}})
		}
	}
	const n = 6000
	var count [4]float64
	for range n {
		l := mustPick(t, r, &Request{})
		count[l.Slot().Num()-1]++
		l.Done(nil)
	}
	for i, share := range []float64{3.0 / 6, 2.0 / 6, 1.0 / 6, 0} {
		require.InDelta(t, n*share, count[i], 4*math.Sqrt(n*share*(1-share)), "worker %d", i+1)
	}
}

// The learner must find the constants of an engine from what it sees, from a
// start that is three times too high for prefill and three times too low for
// decode, and whether the engine reads its weights once or twice in a mixed step.
func TestLearnerConverges(t *testing.T) {
	for name, truth := range map[string]Timing{
		"weights once":  {T0: 4e-3, W: 12e-3, B: 50e-6, C: 2e-9, KV: 40e-9, D: 90e-6, Chunk: 512},
		"weights twice": {T0: 4e-3, A: 15e-3, B: 50e-6, C: 2e-9, KV: 40e-9, D: 90e-6, Chunk: 512},
	} {
		t.Run(name, func(t *testing.T) {
			start := truth
			start.T0, start.B, start.C = 3*truth.T0, 3*truth.B, 3*truth.C
			start.W, start.A, start.KV, start.D = truth.W/3, truth.A/3, truth.KV/3, truth.D/3
			l, got := newLearner(&start), start
			rng := rand.New(rand.NewPCG(9, 9))
			noise := func() float64 {
				switch rng.IntN(24) {
				case 0:
					return 8 // an engine that stalls
				case 1, 2:
					return 0.1 // an answer that was not computed
				}
				return math.Exp(rng.NormFloat64() * 0.05)
			}
			floor := truth.A
			if truth.W > 0 {
				floor = truth.T0 + truth.W
			}
			for range 4000 {
				n, h := float64(1+rng.IntN(6000)), float64(rng.IntN(20000))
				d := float64(rng.IntN(3) * rng.IntN(20))
				kv := d * float64(500+rng.IntN(6000))
				steps := max(1, n/512)
				ctx := n * (h + n/2)
				y := truth.T0*steps + truth.B*n + truth.C*ctx
				row := [unknowns]float64{kT0: steps, kB: n, kC: ctx}
				if d > 0 {
					y += steps * (truth.A + truth.KV*kv + truth.D*d)
					row[kA], row[kKV], row[kD] = steps, steps*kv, steps*d
				}
				load := rng.Float64() * 0.2
				if l.add(row, y*noise()+load, load) {
					l.apply(&got)
				}

				tokens, p := float64(20+rng.IntN(500)), float64(rng.IntN(8000))
				mixed := p / 512
				d = float64(1 + rng.IntN(40))
				kv = d * float64(500+rng.IntN(6000))
				plain := max(0, tokens-mixed)
				y = mixed*truth.T0 + p*truth.B + plain*floor + tokens*(truth.KV*kv+truth.D*d)
				row = [unknowns]float64{kT0: mixed, kB: p, kR: plain, kA: tokens, kKV: tokens * kv, kD: tokens * d}
				if truth.W == 0 {
					y += (tokens - plain) * truth.A
				}
				if l.add(row, y*noise(), 0) {
					l.apply(&got)
				}
			}
			mixedStep := func(t Timing) float64 { return t.T0 + t.B*512 + t.A }
			require.InEpsilon(t, mixedStep(truth), mixedStep(got), 0.1)
			require.InEpsilon(t, truth.B, got.B, 0.1)
			require.InEpsilon(t, truth.C, got.C, 0.1)
			require.InEpsilon(t, truth.KV, got.KV, 0.15)
			require.InEpsilon(t, truth.D, got.D, 0.25)
			require.InEpsilon(t, truth.A+truth.W+truth.T0, got.A+got.W+got.T0, 0.2)
			if truth.A > 0 {
				require.InEpsilon(t, truth.A, got.A, 0.2)
			} else {
				require.Less(t, got.A, 0.1*truth.W)
			}
			require.Greater(t, l.mean, 0.01)
			require.Less(t, l.mean, 0.25)
		})
	}
}

// Nonsense must not get into the constants.
func TestLearnerStaysSane(t *testing.T) {
	start := DefaultTiming()
	l, got := newLearner(&start), start
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		var row [unknowns]float64
		for i := range row {
			row[i] = math.Abs(rng.NormFloat64()) * math.Pow(10, float64(rng.IntN(9)))
		}
		y := []float64{0, -1, math.Inf(1), math.NaN(), 1e-3, 1e6}[rng.IntN(6)]
		if l.add(row, y, 0) {
			l.apply(&got)
			require.NoError(t, got.check())
			require.GreaterOrEqual(t, got.Prefill(100, 10), 0.0)
			require.False(t, math.IsNaN(got.slowdown(5, 1000)))
		}
	}
	require.Positive(t, l.rows)
}

// A router fed by an engine that follows the step model finds its constants, and
// its predictions become right.
func TestRouterLearnsOnline(t *testing.T) {
	truth := Timing{T0: 5e-3, W: 10e-3, B: 40e-6, C: 3e-9, KV: 30e-9, D: 100e-6, Chunk: 512}
	start := DefaultTiming()
	start.B *= 3
	r, c := newTestRouter(t, 1, nil, Options{Timing: start})
	rng := rand.New(rand.NewPCG(2, 2))
	for range 1500 {
		n := 200 + rng.IntN(8000)
		l := mustPick(t, r, &Request{Tokens: n})
		c.advance(seconds(truth.Prefill(n, 0)))
		l.Tokens(1)
		out := 20 + rng.IntN(100)
		c.advance(seconds(float64(out) * (truth.T0 + truth.W + truth.KV*float64(n) + truth.D)))
		l.Tokens(out)
		l.Done(nil)
	}
	s := r.Stats()
	require.Greater(t, s.LearnRows, uint64(2900))
	for _, n := range []int{512, 2000, 8000} {
		require.InEpsilon(t, truth.Prefill(n, 0), s.Timing.Prefill(n, 0), 0.05, "%d tokens", n)
	}
	require.InEpsilon(t, s.TTFT.Actual.Seconds(), s.TTFT.Predicted.Seconds(), 0.05)
	require.InEpsilon(t, 70, s.OutputMean, 0.1)
}
