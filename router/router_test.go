package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

func TestOptionsListAllFaults(t *testing.T) {
	_, err := New(nil, &Options{
		BlockTokens:   -1,
		Timing:        Timing{T0: -1, B: math.NaN(), Chunk: -5},
		TierLoad:      [kvindex.Tiers]float64{0, math.Inf(1)},
		TPOTTarget:    -1,
		OutputMean:    -2,
		ReportMaxAge:  -1,
		FailurePause:  -1,
		MaxCandidates: slotLimit + 1,
		Limits:        Limits{Outstanding: -1, Waiting: -1, KVUsage: 1.5},
	})
	require.Error(t, err)
	for _, part := range []string{"BlockTokens", "Timing.T0", "Timing.B", "Timing.Chunk", "TierLoad[cpu]", "TPOTTarget",
		"OutputMean", "ReportMaxAge", "FailurePause", "MaxCandidates", "Limits.Outstanding", "Limits.Waiting", "Limits.KVUsage"} {
		require.ErrorContains(t, err, part)
	}
	for _, o := range []*Options{nil, {}} {
		r, err := New(nil, o)
		require.NoError(t, err)
		require.Equal(t, DefaultTiming(), r.Stats().Timing)
	}
}

// cutIndex is an index that says how its blocks are cut.
type cutIndex struct {
	fakeIndex
	tokens int
}

func (x cutIndex) BlockTokens() int { return x.tokens }

// A router and its index must cut prompts alike, or nothing ever matches.
func TestBlockTokensOfIndex(t *testing.T) {
	x, err := kvindex.New(&kvindex.Options{BlockTokens: 32, Scheme: block.SchemeDynamo})
	require.NoError(t, err)
	for _, c := range []struct {
		index        Index
		given, taken int
		scheme       block.Scheme
		fault        string
	}{
		{x, 0, 32, block.SchemeDynamo, ""},
		{x, 32, 32, block.SchemeDynamo, ""},
		{x, 64, 0, "", "router: Options.BlockTokens is 64, but the index has blocks of 32"},
		{x, -1, 0, "", "router: Options.BlockTokens is -1, want 1 to 65536, or 0 for the index's"},
		{cutIndex{tokens: 8}, 0, 8, "", ""},
		{cutIndex{tokens: 8}, 16, 0, "", "router: Options.BlockTokens is 16, but the index has blocks of 8"},
		{cutIndex{}, 0, 16, "", ""}, // it says nothing
		{fakeIndex{}, 0, 16, "", ""},
		{nil, 64, 64, "", ""},
	} {
		r, err := New(c.index, &Options{BlockTokens: c.given})
		if c.fault != "" {
			require.EqualError(t, err, c.fault)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.taken, r.BlockTokens())
		require.Equal(t, c.scheme, r.Scheme())
	}
}

func TestSetWorkersRejectsAllFaultsAtOnce(t *testing.T) {
	r, _ := newTestRouter(t, 2, nil, Options{})
	err := r.SetWorkers([]Worker{
		{Slot: slotOf(5)},
		{},
		{Slot: kvindex.MakeSlot(5, 2)},
		{Slot: kvindex.MakeSlot(slotLimit, 1)},
		{Slot: slotOf(6), Role: 9, KVBlocks: -1},
	})
	require.ErrorIs(t, err, ErrWorkers)
	for _, part := range []string{"entry 1", "slot number 5 twice", "entry 3", "unknown role 9", "KVBlocks is -1"} {
		require.ErrorContains(t, err, part)
	}
	require.Len(t, r.Stats().Workers, 2, "the old list stays")
}

func TestMalformedRequests(t *testing.T) {
	r, _ := newTestRouter(t, 1, nil, Options{})
	for name, req := range map[string]*Request{
		"nil": nil, "tokens": {Tokens: -1}, "output": {MaxTokens: -1}, "role": {Role: 7},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.Pick(req)
			require.ErrorIs(t, err, ErrRequest)
			l := mustPick(t, r, &Request{Tokens: 5})
			_, err = l.Retry(req, nil)
			require.ErrorIs(t, err, ErrRequest)
			requireEmpty(t, r)
		})
	}
}

func TestRejectReasonsAreKeptApart(t *testing.T) {
	workers := []Worker{
		{Slot: slotOf(1), Role: RolePrefill},
		{Slot: slotOf(2), Role: RoleDecode, Draining: true},
		{Slot: slotOf(3)},
	}
	c := newClock()
	for name, tc := range map[string]struct {
		workers []Worker
		req     Request
		want    error
		policy  Policy
	}{
		"no workers":          {nil, Request{Tokens: 1}, ErrNoWorker, nil},
		"only unknown":        {workers, Request{Only: []kvindex.Slot{slotOf(9)}}, ErrNotAllowed, nil},
		"old generation":      {workers, Request{Only: []kvindex.Slot{kvindex.MakeSlot(1, 9)}}, ErrNotAllowed, nil},
		"not any":             {workers, Request{Not: []kvindex.Slot{slotOf(1), slotOf(2), slotOf(3)}}, ErrNotAllowed, nil},
		"only and not":        {workers, Request{Only: []kvindex.Slot{slotOf(3)}, Not: []kvindex.Slot{slotOf(3)}}, ErrNotAllowed, nil},
		"role without worker": {workers[:1], Request{Role: RoleDecode}, ErrNotAllowed, nil},
		"draining":            {workers[:2], Request{Role: RoleDecode}, ErrDraining, nil},
		"pinned draining":     {workers, Request{Only: []kvindex.Slot{slotOf(2)}}, ErrDraining, nil},
		"deadline":            {workers, Request{Deadline: c.at}, ErrDeadline, nil},
		"veto":                {workers, Request{}, ErrVetoed, veto{}},
	} {
		t.Run(name, func(t *testing.T) {
			var rejected *RejectError
			r, err := New(nil, &Options{Now: c.now, Policy: tc.policy, Hooks: Hooks{
				OnReject: func(e *RejectError, _ *Request) { rejected = e },
			}})
			require.NoError(t, err)
			require.NoError(t, r.SetWorkers(tc.workers))
			_, err = r.Pick(&tc.req)
			require.ErrorIs(t, err, tc.want)
			require.ErrorIs(t, rejected, tc.want)
			require.Equal(t, len(tc.workers), rejected.Workers)
			require.Equal(t, uint64(1), r.Stats().Rejected[rejected.Reason])
			for other := range Reasons {
				require.Equal(t, Reason(other) == rejected.Reason, errors.Is(err, reasons[other].err))
			}
		})
	}
}

type veto struct{}

func (veto) Score(dst []float64, _ *View, _ *Request) {
	for i := range dst {
		dst[i] = []float64{math.NaN(), math.Inf(1)}[i%2]
	}
}

func TestRolesAndFilters(t *testing.T) {
	r, _ := newTestRouter(t, 0, nil, Options{})
	require.NoError(t, r.SetWorkers([]Worker{
		{Slot: slotOf(1), Role: RolePrefill}, {Slot: slotOf(2), Role: RoleDecode},
		{Slot: slotOf(3)}, {Slot: slotOf(4), Draining: true},
	}))
	allowed := func(req Request) map[kvindex.Slot]bool {
		got := map[kvindex.Slot]bool{}
		var leases []*Lease
		for range 8 {
			l := mustPick(t, r, &req)
			got[l.Slot()] = true
			leases = append(leases, l)
		}
		for _, l := range leases {
			l.Done(nil)
		}
		return got
	}
	set := func(nums ...int) map[kvindex.Slot]bool {
		m := map[kvindex.Slot]bool{}
		for _, n := range nums {
			m[slotOf(n)] = true
		}
		return m
	}
	require.Equal(t, set(1, 2, 3), allowed(Request{Tokens: 900}))
	require.Equal(t, set(1, 3), allowed(Request{Tokens: 900, Role: RolePrefill}))
	require.Equal(t, set(2, 3), allowed(Request{Tokens: 900, Role: RoleDecode}))
	require.Equal(t, set(2, 3), allowed(Request{Tokens: 900, Not: []kvindex.Slot{slotOf(1)}}))
	require.Equal(t, set(1, 2), allowed(Request{Tokens: 900, Only: []kvindex.Slot{slotOf(1), slotOf(2), slotOf(2), slotOf(4)}}))
	requireEmpty(t, r)
}

func TestFailuresPauseAWorker(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{FailureLimit: 2, FailurePause: time.Second})
	only := &Request{Tokens: 10, Only: []kvindex.Slot{slotOf(1)}}
	fail := func(err error) {
		l := mustPick(t, r, only)
		l.Done(err)
	}
	down := errors.New("connection refused")
	paused := func() bool { return r.Stats().Workers[0].Paused }

	fail(down)
	fail(context.Canceled) // the client's doing
	require.False(t, paused())
	fail(nil) // a success starts the count anew
	fail(down)
	require.False(t, paused())
	fail(down)
	require.True(t, paused())
	for range 10 {
		require.Equal(t, slotOf(2), mustPick(t, r, &Request{Tokens: 10}).Slot())
	}
	require.Equal(t, slotOf(1), mustPick(t, r, only).Slot(), "when all candidates are paused, none is")
	c.advance(time.Second)
	require.False(t, paused())
	require.Equal(t, slotOf(1), mustPick(t, r, &Request{Tokens: 10}).Slot(), "back, and less loaded")
}

func TestReportsAreChecked(t *testing.T) {
	r, c := newTestRouter(t, 1, nil, Options{})
	stats := func() WorkerStats { return r.Stats().Workers[0] }
	require.Equal(t, time.Duration(-1), stats().LoadAge, "unknown is not zero")

	at := c.now()
	c.advance(5 * time.Second)
	r.Report(slotOf(1), Load{At: at, Waiting: 3, HasQueue: true, KVUsage: math.NaN(), HasKV: true})
	require.Equal(t, 5*time.Second, stats().LoadAge)
	require.True(t, stats().Load.HasQueue)
	require.False(t, stats().Load.HasKV, "not a number is missing")

	r.Report(slotOf(1), Load{At: at.Add(-time.Second), Waiting: 9, HasQueue: true})
	require.Equal(t, 3, stats().Load.Waiting, "older news is dropped")
	r.Report(slotOf(1), Load{At: at.Add(time.Hour), Waiting: -1, HasQueue: true, KVUsage: 7, HasKV: true})
	require.Zero(t, stats().LoadAge, "a clock ahead is now")
	require.False(t, stats().Load.HasQueue)
	require.InDelta(t, 1, stats().Load.KVUsage, 0)

	r.Report(slotOf(2), Load{})
	r.Report(kvindex.MakeSlot(1, 2), Load{})
	require.Equal(t, uint64(2), r.Stats().UnknownReports)
}

func TestDecisionExplains(t *testing.T) {
	chain := chainOf(1, 10)
	index := fakeIndex{}
	index.hold(1, kvindex.TierGPU, chain[:2]...)
	index.hold(1, kvindex.TierCPU, chain[2:5]...)
	index.hold(1, kvindex.TierObject, chain[5:6]...)
	r, _ := newTestRouter(t, 6, index, Options{
		FixedTiming: true, TierLoad: [kvindex.Tiers]float64{0, 1e-3, 1e-2, 1e-1},
	})
	first := mustPick(t, r, &Request{Chain: chain[:8], Tokens: 8 * 16, Only: []kvindex.Slot{slotOf(1)}})
	d := first.Decision()
	require.Equal(t, [kvindex.Tiers]int{2, 3, 0, 1}, d.Reused)
	require.Zero(t, d.InFlight)
	require.Equal(t, 6*16, d.Hit)
	require.InDelta(t, 3*16*1e-3+16*1e-1, d.Cost.Load, 1e-12)
	require.Equal(t, 1, d.Candidates)
	require.Empty(t, d.Alternates)

	// The same on a worker where the first eight are in flight now: they are in
	// GPU memory already or will be, so nothing is loaded.
	d = mustPick(t, r, &Request{Chain: chain, Tokens: 160, Only: []kvindex.Slot{slotOf(1)}}).Decision()
	require.Equal(t, [kvindex.Tiers]int{2, 3, 0, 1}, d.Reused)
	require.Equal(t, 2, d.InFlight)
	require.Equal(t, 8, d.Reuse())
	require.Zero(t, d.Cost.Load)
	require.InDelta(t, d.Score, d.Cost.Total, 0)
	require.Positive(t, d.Cost.Queue)
	ws := r.Stats().Workers
	require.Equal(t, []uint64{2, 8 + 10, 6 + 6}, []uint64{ws[0].Picks, ws[0].Blocks, ws[0].Matched})
	require.Zero(t, ws[1].Blocks+ws[1].Matched)

	// A whole prompt held: its last token is computed all the same.
	d = mustPick(t, r, &Request{Chain: chain[:2], Tokens: 32, Only: []kvindex.Slot{slotOf(1)}}).Decision()
	require.Equal(t, 31, d.Hit)

	d = mustPick(t, r, &Request{Chain: chain, Tokens: 160}).Decision()
	require.Len(t, d.Alternates, 4)
	require.Equal(t, 6, d.Candidates)
	last := d.Score
	for _, a := range d.Alternates {
		require.GreaterOrEqual(t, a.Score, last)
		require.InDelta(t, a.Score, a.Cost.Total, 0)
		require.NotEqual(t, d.Slot, a.Slot)
		last = a.Score
	}
}

// The parts of a cost must add up to its total, and the total must be the score
// of the default policy, in every state.
func TestCostPartsAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	index := fakeIndex{}
	r, c := newTestRouter(t, 4, index, Options{TierLoad: [kvindex.Tiers]float64{0, 1e-6, 1e-5, 1e-4}})
	require.NoError(t, r.SetWorkers(workerList(4, 300)))
	var open []*Lease
	for i := range 500 {
		c.advance(time.Duration(rng.IntN(100)) * time.Millisecond)
		chain := branch(chainOf(1, rng.IntN(20)), rng.IntN(5)+2, rng.IntN(30))
		index.hold(uint32(1+rng.IntN(4)), kvindex.Tier(rng.IntN(4)), chain...)
		l := mustPick(t, r, &Request{Chain: chain, Tokens: len(chain)*16 + rng.IntN(16)})
		d := l.Decision()
		x := d.Cost
		require.InDelta(t, x.Total, x.Queue+x.Prefill+x.Load+x.Transfer+x.Decode+x.Memory+x.Price, 1e-9*max(1, x.Total), "pick %d", i)
		require.InDelta(t, d.Score, x.Total, 0)
		for _, a := range d.Alternates {
			require.GreaterOrEqual(t, a.Score+1e-12, d.Score)
		}
		open = append(open, l)
		if len(open) > 40 {
			k := rng.IntN(len(open))
			open[k].Tokens(1 + rng.IntN(200))
			open[k].Done(nil)
			open = append(open[:k], open[k+1:]...)
		}
	}
	for _, l := range open {
		l.Done(nil)
	}
	requireEmpty(t, r)
}

func TestHooksSeeEveryEnd(t *testing.T) {
	var picks []kvindex.Slot
	var ends []Outcome
	c := newClock()
	r, err := New(nil, &Options{Now: c.now, Hooks: Hooks{
		OnPick: func(d *Decision, req *Request) { picks = append(picks, d.Slot) },
		OnDone: func(o Outcome) { ends = append(ends, o) },
	}})
	require.NoError(t, err)
	require.NoError(t, r.SetWorkers(workerList(2, 0)))

	l := mustPick(t, r, &Request{Tokens: 1000})
	down := errors.New("down")
	next, err := l.Retry(&Request{Tokens: 1000}, down)
	require.NoError(t, err)
	c.advance(300 * time.Millisecond)
	next.Tokens(1)
	c.advance(time.Second)
	next.Tokens(20)
	next.Cached(64)
	next.Done(nil)
	next.Done(nil)

	require.Equal(t, []kvindex.Slot{l.Slot(), next.Slot()}, picks)
	require.Len(t, ends, 2)
	require.ErrorIs(t, ends[0].Err, down)
	require.Zero(t, ends[0].TTFT)
	require.Equal(t, -1, ends[0].CachedTokens)
	require.Equal(t, 300*time.Millisecond, ends[1].TTFT)
	require.Equal(t, 1300*time.Millisecond, ends[1].Total)
	require.Equal(t, 21, ends[1].Tokens)
	require.Equal(t, 64, ends[1].CachedTokens)
	require.Positive(t, ends[1].PredictedTTFT)
	s := r.Stats()
	require.Equal(t, 300*time.Millisecond, s.TTFT.Actual)
	require.Equal(t, uint64(1), s.TTFT.Count)
	require.Equal(t, []uint64{0, 64, 1000}, []uint64{s.PredictedHit, s.ActualHit, s.ReportedPrompt})
	require.Equal(t, 50*time.Millisecond, s.TPOT)
}

func TestConcurrentUse(t *testing.T) {
	index := allHold(8)
	r, err := New(index, nil)
	require.NoError(t, err)
	require.NoError(t, r.SetWorkers(workerList(8, 1000)))
	var users, background sync.WaitGroup
	stop := make(chan struct{})
	background.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			ws := workerList(8, 1000)
			_ = r.SetWorkers(ws[:4+i%5])
			r.Report(slotOf(1+i%8), Load{Waiting: i % 3, HasQueue: true})
			_ = r.Stats()
		}
	})
	for u := range 4 {
		users.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(u), 1))
			for range 300 {
				req := &Request{Chain: branch(chainOf(1, 20), rng.IntN(10), 10), Tokens: 490}
				l, err := r.Pick(req)
				if err != nil {
					continue
				}
				var both sync.WaitGroup
				both.Go(func() { l.Tokens(1); l.Tokens(3); l.Done(nil) })
				both.Go(func() {
					if next, err := l.Retry(req, errors.New("x")); err == nil {
						next.Done(context.Canceled)
					}
				})
				both.Wait()
			}
		})
	}
	users.Wait()
	close(stop)
	background.Wait()
	require.NoError(t, r.SetWorkers(workerList(8, 1000)))
	requireEmpty(t, r)
}

func TestPickAllocatesOnlyTheLease(t *testing.T) {
	if raceEnabled {
		return // counts differ, see raceEnabled
	}
	t.Run("no index", func(t *testing.T) {
		r, _ := newTestRouter(t, 3, nil, Options{})
		req := &Request{Chain: chainOf(1, 40), Tokens: 650}
		require.InDelta(t, 1, testing.AllocsPerRun(200, func() {
			l, _ := r.Pick(req)
			l.Done(nil)
		}), 0.1)
	})
	for _, name := range PolicyNames() {
		t.Run(name, func(t *testing.T) {
			policy, err := PolicyByName(name)
			require.NoError(t, err)
			r, req := loaded(t, workerList(16, 30000), allHold(16), policy)
			pick := func() {
				l, err := r.Pick(req)
				if err != nil {
					panic(err)
				}
				l.FirstToken()
				l.Tokens(7)
				l.Done(nil)
			}
			for range 200 {
				pick() // grow what is kept
			}
			require.InDelta(t, 1, testing.AllocsPerRun(200, pick), 0.1)
			req.Not = []kvindex.Slot{slotOf(3)}
			require.InDelta(t, 1, testing.AllocsPerRun(200, pick), 0.1, "with a filter")
			l := mustPick(t, r, req)
			require.Zero(t, testing.AllocsPerRun(100, func() { l.Tokens(1) }))
			load := Load{Waiting: 1, HasQueue: true}
			require.Zero(t, testing.AllocsPerRun(100, func() { r.Report(slotOf(2), load) }))
		})
	}
}

func TestPolicyNames(t *testing.T) {
	for _, name := range PolicyNames() {
		p, err := PolicyByName(name)
		require.NoError(t, err)
		require.NotNil(t, p)
	}
	for name, want := range map[string]Policy{
		"expected":                          Expected{},
		"expected:decode=full;price=0":      Expected{Decode: DecodeFull, NoPrice: true},
		"expected:decode=off":               Expected{Decode: DecodeOff},
		"dynamo:w=4; pend=1":                Dynamo{Weight: 4, InFlight: true},
		"dynamo:lmetric=true":               Dynamo{Weight: 1, LMetric: true},
		"conductor:pend=0":                  Conductor{NoInFlight: true},
		"lmetric:":                          LMetric{},
		"llmd:q=1;k=1;p=2;exact=1;blocks=9": &LLMD{Queue: 1, KV: 1, Prefix: 2, Exact: true, Blocks: 9},
	} {
		p, err := PolicyByName(name)
		require.NoError(t, err, name)
		require.Equal(t, want, p, name)
	}
	for _, name := range []string{"", "fastest", "dynamo:w=x", "dynamo:w=-1", "dynamo:what=1", "roundrobin:x", "expected:decode=some", "llmd:exact=maybe",
		"dynamo:w=0", "dynamo:w=1;w=2", "llmd:q=0;k=0;p=0", "llmd:blocks=0.5", "llmd:blocks=0", "llmd:q=NaN"} {
		_, err := PolicyByName(name)
		require.ErrorIs(t, err, ErrPolicy, name)
	}
	_, err := PolicyByName("fastest")
	require.ErrorContains(t, err, "conductor, dynamo, expected")
	_, err = PolicyByName("dynamo:what=1")
	require.ErrorContains(t, err, "w=NUMBER")
}

func FuzzPolicyByName(f *testing.F) {
	for _, s := range append(PolicyNames(), "dynamo:w=4;pend=1", "llmd:q=;=;", "expected:decode=full=1", ":", "a:b;c=d") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p, err := PolicyByName(name)
		if (p == nil) == (err == nil) {
			t.Fatalf("%q: policy %v, error %v", name, p, err)
		}
		if err != nil && !errors.Is(err, ErrPolicy) {
			t.Fatal(err)
		}
	})
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range Reasons {
		e := &RejectError{Reason: Reason(i), Workers: 3}
		require.False(t, seen[e.Reason.String()])
		seen[e.Reason.String()] = true
		require.ErrorContains(t, e, "3 workers")
	}
	require.Equal(t, "unknown", Reason(200).String())
	require.NoError(t, errors.Unwrap(&RejectError{Reason: 200}))
	require.Contains(t, fmt.Sprint(&RejectError{Reason: 200}), "unknown")
}
