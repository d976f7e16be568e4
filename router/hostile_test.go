package router

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// The tests of this file feed the router what no well-behaved caller, engine or
// clock gives.

// A clock that is set back stops nothing and turns no figure negative: the
// ledger's time goes on.
func TestClockSetBack(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{FailureLimit: 1, FailurePause: 2 * time.Second})
	r.Report(slotOf(1), Load{At: c.now(), Waiting: 1, HasQueue: true})
	l := mustPick(t, r, &Request{Tokens: 8000, Only: []kvindex.Slot{slotOf(1)}})
	queue := r.Stats().Workers[0].Queue
	failed := mustPick(t, r, &Request{Tokens: 10, Only: []kvindex.Slot{slotOf(2)}})
	failed.Done(errors.New("broken"))

	c.advance(-time.Hour)
	require.Equal(t, queue, r.Stats().Workers[0].Queue)
	c.advance(time.Second)
	require.Less(t, r.Stats().Workers[0].Queue, queue, "time goes on from there")
	require.True(t, r.Stats().Workers[1].Paused)
	c.advance(time.Second + time.Millisecond)
	require.False(t, r.Stats().Workers[1].Paused, "a pause ends when it should")

	r.Report(slotOf(1), Load{At: c.now(), Waiting: 7, HasQueue: true})
	w := r.Stats().Workers[0]
	require.Equal(t, 7, w.Load.Waiting, "a report after the jump is newer than one before it")
	require.Zero(t, w.LoadAge)
	_, err := r.Pick(&Request{Tokens: 1, Deadline: c.now().Add(time.Second)})
	require.NoError(t, err)
	_, err = r.Pick(&Request{Tokens: 1, Deadline: c.now()})
	require.ErrorIs(t, err, ErrDeadline, "deadlines are of the clock as it stands")

	l.FirstToken()
	require.InDelta(t, 2, r.Stats().TTFT.Actual.Seconds(), 0.01)
}

// Figures that cannot be an engine's neither draw all requests to it nor break
// the arithmetic; the report's other figures count.
func TestNonsenseReports(t *testing.T) {
	for name, load := range map[string]Load{
		"running":   {Running: math.MaxInt, HasQueue: true},
		"waiting":   {Waiting: math.MaxInt, HasQueue: true},
		"both":      {Running: math.MaxInt, Waiting: math.MaxInt, HasQueue: true},
		"large":     {Running: maxReported + 1, HasQueue: true},
		"negative":  {Running: -1, Waiting: math.MinInt, HasQueue: true},
		"usage":     {KVUsage: math.Inf(1), HasKV: true},
		"not usage": {KVUsage: math.NaN(), HasKV: true},
		"minus":     {KVUsage: math.Inf(-1), HasKV: true},
		"future":    {At: time.Unix(1<<40, 0), Running: 1, HasQueue: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newTestRouter(t, 2, nil, Options{})
			require.NoError(t, r.SetWorkers(workerList(2, 1000)))
			r.Report(slotOf(1), load)
			for range 4 {
				l := mustPick(t, r, &Request{Chain: chainOf(1, 300), Tokens: 5000})
				c := l.Decision().Cost
				for _, part := range []float64{c.Queue, c.Prefill, c.Load, c.Memory, c.Decode, c.Price, c.Total} {
					require.True(t, part >= 0 && part < 1e6, "%+v", c)
				}
			}
			require.NotZero(t, r.Outstanding(slotOf(2)), "the other worker is not starved")
			w := r.Stats().Workers[0]
			require.LessOrEqual(t, w.OtherRequests, 2*maxReported)
			require.False(t, math.IsNaN(w.Load.KVUsage) && w.Load.HasKV)
			require.GreaterOrEqual(t, w.LoadAge, time.Duration(0))
		})
	}
}

// The largest report that is believed still costs what it says, in finite
// seconds.
func TestLargestReport(t *testing.T) {
	r, _ := newTestRouter(t, 2, nil, Options{})
	mustPick(t, r, &Request{Tokens: maxTokens}).Done(nil) // the mean prompt is now absurd too
	r.Report(slotOf(1), Load{Running: maxReported, Waiting: maxReported, HasQueue: true})
	l := mustPick(t, r, &Request{Tokens: 100})
	require.Equal(t, slotOf(2), l.Slot())
	worst := l.Decision().Alternates[0].Cost.Total
	require.True(t, worst > l.Decision().Cost.Total && worst < 1e40, "%g", worst)
}

// Lengths beyond every model are refused as malformed, not added up.
func TestHugeRequests(t *testing.T) {
	r, _ := newTestRouter(t, 2, nil, Options{BlockTokens: block.MaxBlockTokens})
	for name, req := range map[string]*Request{
		"tokens": {Tokens: maxTokens + 1},
		"most":   {Tokens: math.MaxInt},
		"chain":  {Chain: make([]block.Hash, maxTokens/block.MaxBlockTokens+1)},
	} {
		_, err := r.Pick(req)
		require.ErrorIs(t, err, ErrRequest, name)
	}
	l := mustPick(t, r, &Request{Tokens: maxTokens, MaxTokens: math.MaxInt})
	require.False(t, math.IsInf(l.Decision().Cost.Total, 0) || math.IsNaN(l.Decision().Cost.Total))
	l.Done(nil)
	requireEmpty(t, r)
}

// A chain of more blocks than the prompt has room for is malformed; nothing is
// booked for it.
func TestChainLongerThanPrompt(t *testing.T) {
	r, _ := newTestRouter(t, 1, nil, Options{})
	_, err := r.Pick(&Request{Tokens: 5, Chain: chainOf(1, 10)})
	require.ErrorIs(t, err, ErrRequest)
	require.EqualError(t, err, "router: bad request: Chain has 10 blocks, want at most 0, as Tokens is 5 and a block has 16")
	_, err = r.Pick(&Request{Tokens: 159, Chain: chainOf(1, 10)})
	require.ErrorContains(t, err, "Chain has 10 blocks, want at most 9")
	requireEmpty(t, r)
	for _, tokens := range []int{0, 160, 161} {
		l := mustPick(t, r, &Request{Tokens: tokens, Chain: chainOf(1, 10)})
		require.Equal(t, 10, l.Decision().Blocks)
		l.Done(nil)
	}
	requireEmpty(t, r)
}

// An engine that claims absurd counts of tokens cannot turn the means over.
func TestHugeTokenCounts(t *testing.T) {
	r, c := newTestRouter(t, 1, nil, Options{})
	for range 3 {
		l := mustPick(t, r, &Request{Tokens: 100})
		l.FirstToken()
		c.advance(time.Second)
		for range 3 {
			l.Tokens(math.MaxInt)
		}
		l.Cached(math.MaxInt)
		l.Done(nil)
	}
	s := r.Stats()
	require.LessOrEqual(t, s.OutputMean, float64(maxTokens))
	require.Greater(t, s.OutputMean, 0.0)
	require.Greater(t, s.TPOT, time.Duration(-1))
	require.LessOrEqual(t, s.ActualHit, s.ReportedPrompt, "no more reuse than there was prompt")
	requireEmpty(t, r)
}

// Options whose products would not be finite are refused.
func TestOptionExtremes(t *testing.T) {
	for name, o := range map[string]Options{
		"BlockTokens":    {BlockTokens: math.MaxInt},
		"Timing.T0":      {Timing: Timing{T0: math.MaxFloat64}},
		"Timing.Chunk":   {Timing: Timing{T0: 1, Chunk: math.MaxInt}},
		"TierLoad[disk]": {TierLoad: [kvindex.Tiers]float64{2: 1e300}},
		"OutputMean":     {OutputMean: math.Inf(1)},
		"Limits.KVUsage": {Limits: Limits{KVUsage: math.NaN()}},
	} {
		_, err := New(nil, &o)
		require.ErrorContains(t, err, "router: Options."+name)
	}
	r, _ := newTestRouter(t, 2, nil, Options{Timing: Timing{T0: maxSeconds, W: maxSeconds, B: maxSeconds, C: maxSeconds, KV: maxSeconds, D: maxSeconds, A: maxSeconds, Load: maxSeconds, Chunk: 1},
		OutputMean: maxTokens, TPOTTarget: 1, ReportMaxAge: math.MaxInt64, FailurePause: math.MaxInt64})
	for range 4 {
		l := mustPick(t, r, &Request{Tokens: maxTokens})
		l.Tokens(1)
		require.False(t, math.IsInf(l.Decision().Cost.Total, 0) || math.IsNaN(l.Decision().Cost.Total))
	}
}

// A lease that ended long ago is retried after its worker left and came back:
// the worker is still the one to avoid.
func TestRetryAvoidsAWorkerThatCameBack(t *testing.T) {
	r, _ := newTestRouter(t, 2, nil, Options{})
	l := mustPick(t, r, &Request{Tokens: 10})
	l.Done(errors.New("broken"))
	require.NoError(t, r.SetWorkers(nil))
	require.NoError(t, r.SetWorkers(workerList(2, 0)))
	for range 20 {
		next, err := l.Retry(&Request{Tokens: 10}, nil)
		require.NoError(t, err)
		require.NotEqual(t, l.Slot(), next.Slot())
	}
}

// Hooks may call the lease and the router.
func TestHooksMayCallBack(t *testing.T) {
	var r *Router
	var ends, rejects int
	var current *Lease
	hooks := Hooks{
		OnPick: func(d *Decision, _ *Request) { r.Outstanding(d.Slot) },
		OnDone: func(o Outcome) {
			ends++
			if current != nil {
				current.FirstToken()
				current.Tokens(1)
				current.Done(nil)
			}
			r.Report(o.Decision.Slot, Load{Running: 1, HasQueue: true})
			_ = r.Stats()
		},
		OnReject: func(*RejectError, *Request) {
			rejects++
			_ = r.SetWorkers(workerList(2, 0))
		},
	}
	r, _ = newTestRouter(t, 2, nil, Options{Hooks: hooks})
	current = mustPick(t, r, &Request{Tokens: 10})
	current.Done(nil)
	require.NoError(t, r.SetWorkers(nil))
	_, err := r.Pick(&Request{Tokens: 10})
	require.ErrorIs(t, err, ErrNoWorker)
	current = mustPick(t, r, &Request{Tokens: 10})
	_, err = current.Retry(&Request{Tokens: 10, Only: []kvindex.Slot{current.Slot()}}, context.Canceled)
	require.ErrorIs(t, err, ErrNotAllowed)
	require.Equal(t, 2, ends)
	require.Equal(t, 2, rejects)
	requireEmpty(t, r)
}

// Everything at once: workers of changing generations come and go while leases
// outlive them, are retried, ended twice and from hooks.
func TestStorm(t *testing.T) {
	var r *Router
	var mu sync.Mutex
	picked, ended := 0, 0
	count := func(n *int) {
		mu.Lock()
		*n++
		mu.Unlock()
	}
	r, err := New(allHold(8), &Options{FailureLimit: 2, FailurePause: time.Microsecond, Hooks: Hooks{
		OnPick: func(*Decision, *Request) { count(&picked) },
		OnDone: func(Outcome) { count(&ended); _ = r.Outstanding(slotOf(1)) },
	}})
	require.NoError(t, err)
	set := func(i int) {
		var list []Worker
		for k := 1; k <= 8; k++ {
			if (i>>k)&1 == 0 {
				list = append(list, Worker{Slot: kvindex.MakeSlot(uint32(k), uint32(1+i%3)), Role: Role(k % 3), KVBlocks: 100 * (k % 2), Draining: i%5 == k})
			}
		}
		require.NoError(t, r.SetWorkers(list))
	}
	set(0)
	var users, background sync.WaitGroup
	stop := make(chan struct{})
	background.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			set(i)
			r.Report(kvindex.MakeSlot(uint32(1+i%9), uint32(1+i%3)), Load{Waiting: i % 7, Running: i % 5, HasQueue: true, KVUsage: float64(i%10) / 9, HasKV: true})
		}
	})
	const goroutines, rounds = 16, 60
	for u := range goroutines {
		users.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(u), 2))
			var kept []*Lease
			for range rounds {
				req := &Request{Chain: branch(chainOf(1, rng.IntN(30)), rng.IntN(5), 10), Role: Role(rng.IntN(3))}
				l, err := r.Pick(req)
				if err != nil {
					continue
				}
				switch rng.IntN(4) {
				case 0:
					kept = append(kept, l)
				case 1:
					var wg sync.WaitGroup
					for range 3 {
						wg.Go(func() { l.Done(nil) })
						wg.Go(func() { l.FirstToken(); l.Tokens(2); l.Cached(5) })
					}
					wg.Wait()
				case 2:
					if next, err := l.Retry(req, errors.New("x")); err == nil {
						kept = append(kept, next)
					}
				default:
					l.Tokens(1)
					l.Done(context.Canceled)
				}
			}
			for _, l := range kept {
				l.Done(nil)
				l.Done(errors.New("again"))
			}
		})
	}
	users.Wait()
	close(stop)
	background.Wait()
	require.Equal(t, picked, ended, "each booking ended once")
	require.NoError(t, r.SetWorkers(workerList(8, 0)))
	requireEmpty(t, r)
	require.Len(t, r.slots, 8, "nothing is left of the workers that went")
	require.LessOrEqual(t, int(r.nextID)-len(r.ids), 8, "their ids are free")
}

// What a burst of long prompts leaves behind is bounded, and is not handed to
// short prompts one by one.
func TestBurstLeavesLittleMemory(t *testing.T) {
	held := func(tr *trie) (n int) {
		for i := range tr.nodes {
			n += cap(tr.nodes[i].run)
		}
		return n
	}
	tr := newTrie()
	depth := make([]uint32, 1)
	burst := func(n, blocks int) {
		ends := make([]uint32, n)
		for i := range ends {
			chain := chainOf(i+1, blocks)
			tr.walk(depth, chain)
			ends[i], _ = tr.insert(0, chain)
		}
		for _, end := range ends {
			tr.remove(0, end)
		}
	}
	burst(400, 6000)
	require.LessOrEqual(t, held(tr), maxKept)
	require.Equal(t, held(tr), tr.kept)

	var ends []uint32
	for i := range 300 {
		chain := chainOf(1000+i, 4)
		tr.walk(depth, chain)
		end, _ := tr.insert(0, chain)
		ends = append(ends, end)
		burst(2, 6000)
	}
	live := 0
	for _, end := range ends {
		live += cap(tr.nodes[end].run)
	}
	require.Less(t, live, 300*2*shortRun)
	require.Equal(t, held(tr), tr.kept+live)
}

// A worker that left takes its report along, also when its leases keep its place:
// after it came back, what it said in its former life counts no more.
func TestReportLeavesWithTheWorker(t *testing.T) {
	r, _ := newTestRouter(t, 1, nil, Options{Limits: Limits{Waiting: 5}})
	l := mustPick(t, r, &Request{Tokens: 10})
	r.Report(slotOf(1), Load{Waiting: 50, HasQueue: true})
	_, err := r.Pick(&Request{Tokens: 10})
	require.ErrorIs(t, err, ErrOverloaded)
	require.NoError(t, r.SetWorkers(nil))
	r.Report(slotOf(1), Load{Waiting: 50, HasQueue: true})
	require.Equal(t, uint64(1), r.Stats().UnknownReports)
	require.NoError(t, r.SetWorkers(workerList(1, 0)))
	w := r.Stats().Workers[0]
	require.False(t, w.HasLoad)
	require.Zero(t, w.OtherRequests)
	mustPick(t, r, &Request{Tokens: 10}).Done(nil)
	l.Done(nil)
	requireEmpty(t, r)
}
