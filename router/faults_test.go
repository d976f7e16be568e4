package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
)

// The tests of this file are cases in which known routers go wrong.

// A burst of equal requests must see one another's bookings although all calls
// come at once: selecting and booking are one step.
func TestR1BurstSpreads(t *testing.T) {
	for _, name := range []string{"expected", "conductor", "leastloaded", "lmetric", "dynamo", "roundrobin"} {
		t.Run(name, func(t *testing.T) {
			policy, err := PolicyByName(name)
			require.NoError(t, err)
			var mu sync.Mutex
			random := seeded(1)
			r, _ := newTestRouter(t, 4, nil, Options{Policy: policy, Rand: func() uint64 {
				mu.Lock()
				defer mu.Unlock()
				return random()
			}})
			var wg sync.WaitGroup
			var leases [16]*Lease
			for i := range leases {
				wg.Go(func() { leases[i], _ = r.Pick(&Request{Tokens: 900}) })
			}
			wg.Wait()
			for i := 1; i <= 4; i++ {
				require.Equal(t, 4, r.Outstanding(slotOf(i)))
			}
			for _, l := range leases {
				l.Done(nil)
			}
			requireEmpty(t, r)
		})
	}
}

// Several routers that see the same state must not all take the same worker.
func TestR2RoutersDoNotHerd(t *testing.T) {
	count := map[kvindex.Slot]int{}
	for router := range 30 {
		r, _ := newTestRouter(t, 6, nil, Options{Rand: seeded(uint64(router))})
		for i := 1; i <= 6; i++ {
			r.Report(slotOf(i), Load{Running: 2, HasQueue: true, KVUsage: 0.5, HasKV: true})
		}
		count[mustPick(t, r, &Request{Tokens: 4000}).Slot()]++
	}
	require.Len(t, count, 6, "all six workers are as good: %v", count)
	for s, n := range count {
		require.Less(t, n, 15, "%v", s)
	}
}

// A client that goes away before, at and after the first token gives its booking
// back exactly once, however often and in whatever order the calls come.
func TestR3AbortReturnsBookingOnce(t *testing.T) {
	gone := context.Canceled
	for name, calls := range map[string]func(*Lease){
		"before the first token": func(l *Lease) { l.Done(gone); l.FirstToken(); l.Tokens(3); l.Done(nil) },
		"with the first token":   func(l *Lease) { l.FirstToken(); l.Done(gone); l.Done(gone); l.FirstToken() },
		"after the first token":  func(l *Lease) { l.FirstToken(); l.Tokens(5); l.Done(gone); l.Tokens(5); l.Done(nil) },
		"completion only":        func(l *Lease) { l.Done(nil); l.Done(gone); l.FirstToken() },
		"one token, no first":    func(l *Lease) { l.tokens.Store(1); l.Done(nil); l.Tokens(1) },
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newTestRouter(t, 1, nil, Options{})
			other := mustPick(t, r, &Request{Chain: chainOf(1, 4), Tokens: 70})
			before := r.Stats().Workers[0]
			l := mustPick(t, r, &Request{Chain: chainOf(2, 9), Tokens: 150})
			require.Equal(t, 2, r.Outstanding(slotOf(1)))
			calls(l)
			after := r.Stats().Workers[0]
			before.Picks, before.Done, before.Blocks = after.Picks, after.Done, after.Blocks
			require.Equal(t, before, after)
			other.Done(nil)
			requireEmpty(t, r)
		})
	}
}

// A completion that arrives before its first token event, as with outputs of one
// token, must take its prefill off the queue too.
func TestCompletionBeforeFirstTokenDoesNotLeak(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{})
	for i := range 1000 {
		l := mustPick(t, r, &Request{Chain: chainOf(i, 8), Tokens: 130})
		c.advance(10 * time.Millisecond)
		l.Done(nil)
	}
	requireEmpty(t, r)
}

// When scrapes are slower than the staleness limit, dispatch goes on and the
// load is marked stale.
func TestR4StaleReportsDoNotHaltDispatch(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{
		ReportMaxAge: 200 * time.Millisecond,
		Limits:       Limits{Waiting: 5, KVUsage: 0.9},
	})
	for i := 1; i <= 2; i++ {
		r.Report(slotOf(i), Load{Waiting: 50, HasQueue: true, KVUsage: 0.99, HasKV: true})
	}
	_, err := r.Pick(&Request{Tokens: 100})
	require.ErrorIs(t, err, ErrOverloaded)

	c.advance(15 * time.Second)
	l := mustPick(t, r, &Request{Tokens: 100})
	require.Equal(t, 15*time.Second, l.Decision().LoadAge)
	for _, w := range r.Stats().Workers {
		require.True(t, w.HasLoad)
		require.True(t, w.Stale)
		require.Equal(t, 15*time.Second, w.LoadAge)
		require.Equal(t, 50, w.Load.Waiting, "the stale figure is still shown")
	}
}

// A worker that reports 90 % of KV in use while the router's own ledger says
// little: the two stay apart, and refusal goes by the report.
func TestR5ReportAndLedgerStayApart(t *testing.T) {
	r, c := newTestRouter(t, 1, nil, Options{Limits: Limits{KVUsage: 0.85}})
	require.NoError(t, r.SetWorkers(workerList(1, 1000)))
	l := mustPick(t, r, &Request{Chain: chainOf(1, 99), Tokens: 99 * 16})
	r.Report(slotOf(1), Load{At: c.now(), KVUsage: 0.9, HasKV: true})

	w := r.Stats().Workers[0]
	require.Equal(t, 100, w.ActiveBlocks+w.PrivateBlocks, "the ledger: 10 %")
	require.InDelta(t, 0.9, w.Load.KVUsage, 1e-12, "the report: 90 %")
	_, err := r.Pick(&Request{Tokens: 10})
	require.ErrorIs(t, err, ErrOverloaded)

	l.Done(nil)
	w = r.Stats().Workers[0]
	require.InDelta(t, 0.9, w.Load.KVUsage, 1e-12, "a booking's end does not touch the report")
	_, err = r.Pick(&Request{Tokens: 10})
	require.ErrorIs(t, err, ErrOverloaded)
}

// With every worker over a limit the refusal is immediate, says why and when to
// come back.
func TestR7OverloadIsRefusedAtOnce(t *testing.T) {
	r, _ := newTestRouter(t, 3, nil, Options{Limits: Limits{Outstanding: 1}})
	for range 3 {
		mustPick(t, r, &Request{Tokens: 20000})
	}
	_, err := r.Pick(&Request{Tokens: 100})
	var reject *RejectError
	require.ErrorAs(t, err, &reject)
	require.Equal(t, ReasonOverloaded, reject.Reason)
	require.Equal(t, 3, reject.Overloaded)
	require.Greater(t, reject.RetryAfter, time.Second, "20,000 tokens take more than a second")
	require.Equal(t, uint64(1), r.Stats().Rejected[ReasonOverloaded])
}

// 10,000 workers, a prefix on three of them: the pick finds them, and makes no
// table or map for the request.
func TestR8ManyWorkers(t *testing.T) {
	const n = 10000
	chain := chainOf(1, 400)
	index := fakeIndex{}
	for _, num := range []uint32{17, 4711, 9999} {
		index.hold(num, kvindex.TierGPU, chain...)
	}
	policy := &counting{}
	r, err := New(index, &Options{Rand: seeded(1), Policy: policy})
	require.NoError(t, err)
	require.NoError(t, r.SetWorkers(workerList(n, 0)))
	req := &Request{Chain: chain, Tokens: 6401}
	for range 3 {
		l := mustPick(t, r, req)
		require.Contains(t, []kvindex.Slot{slotOf(17), slotOf(4711), slotOf(9999)}, l.Slot())
		require.Equal(t, 400, l.Decision().Reused[kvindex.TierGPU])
		require.Equal(t, 512+3, l.Decision().Candidates)
	}
	require.Equal(t, 3*(512+3), policy.rows)
	if !raceEnabled {
		require.LessOrEqual(t, testing.AllocsPerRun(20, func() {
			l, _ := r.Pick(req)
			l.Done(nil)
		}), 1.0)
	}
}

// A request that decodes for twenty minutes stays in the load until it ends.
func TestR9LongRequestsStayInTheLoad(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{})
	l := mustPick(t, r, &Request{Chain: chainOf(1, 100), Tokens: 1600})
	for range 20 * 60 {
		c.advance(time.Second)
		l.Tokens(30)
	}
	require.Equal(t, 1, r.Outstanding(l.Slot()))
	next := mustPick(t, r, &Request{Chain: chainOf(2, 100), Tokens: 1600})
	require.NotEqual(t, l.Slot(), next.Slot())
	next.Done(nil)
	l.Done(nil)
	requireEmpty(t, r)
}

// A worker that fails before the first byte: the booking moves to an alternate in
// one step, and the failed worker is not tried again.
func TestR12RetryBeforeFirstByte(t *testing.T) {
	r, _ := newTestRouter(t, 3, nil, Options{})
	refused := errors.New("503")
	req := &Request{Chain: chainOf(1, 10), Tokens: 170}
	tried := map[kvindex.Slot]bool{}
	l := mustPick(t, r, req)
	require.Len(t, l.Decision().Alternates, 2)
	for range 2 {
		tried[l.Slot()] = true
		req.Not = append(req.Not, l.Slot())
		next, err := l.Retry(req, refused)
		require.NoError(t, err)
		require.False(t, tried[next.Slot()])
		require.Zero(t, r.Outstanding(l.Slot()))
		require.Equal(t, 1, r.Stats().Outstanding)
		l = next
	}
	req.Not = append(req.Not, l.Slot())
	_, err := l.Retry(req, refused)
	require.ErrorIs(t, err, ErrNotAllowed)
	l.Done(nil)
	requireEmpty(t, r)
}

// A prefix known only on a worker with a long queue, on a busy pool: the price of
// work decides. Idle, the request leaves the queue behind; under load, when
// computing the prefix again would delay others, it waits for the prefix.
func TestR13PriceKeepsPrefixesTogetherUnderLoad(t *testing.T) {
	chain := chainOf(1, 2000)
	pick := func(arrivals int) kvindex.Slot {
		index := fakeIndex{}
		index.hold(1, kvindex.TierGPU, chain...)
		r, c := newTestRouter(t, 2, index, Options{FixedTiming: true})
		mustPick(t, r, &Request{Tokens: 1}).Done(nil)
		c.advance(time.Minute)
		// Short requests that come and go give the arrival rate and utilisation.
		for i := range arrivals {
			l := mustPick(t, r, &Request{Chain: chainOf(10+i, 250), Tokens: 4000, Only: []kvindex.Slot{slotOf(1 + i%2)}})
			l.Tokens(1)
			l.Done(nil)
			c.advance(100 * time.Millisecond)
		}
		mustPick(t, r, &Request{Tokens: 40000, Only: []kvindex.Slot{slotOf(1)}})
		l := mustPick(t, r, &Request{Chain: chain, Tokens: 32100})
		return l.Slot()
	}
	require.Equal(t, slotOf(2), pick(0))
	require.Equal(t, slotOf(1), pick(600))
}

// Two workers of identical cost: each gets half within three sigma, and the same
// seed gives the same picks.
func TestR14TiesAreDrawnFairly(t *testing.T) {
	const n = 10000
	run := func(seed uint64) string {
		r, _ := newTestRouter(t, 2, nil, Options{Rand: seeded(seed)})
		picks := make([]byte, n)
		first := 0
		for i := range picks {
			l := mustPick(t, r, &Request{Tokens: 100})
			if l.Slot() == slotOf(1) {
				first++
			}
			picks[i] = byte('0' + l.Slot().Num())
			l.Done(nil)
		}
		require.InDelta(t, n/2, first, 3*math.Sqrt(n)/2)
		return string(picks)
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
}

// Requests that reach an engine past the router show in its report only, and
// count on top of the ledger; requests of the ledger's own do not count twice.
func TestStrangersInReportsCount(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{})
	for range 3 {
		mustPick(t, r, &Request{Tokens: 5000, Only: []kvindex.Slot{slotOf(1)}})
	}
	r.Report(slotOf(1), Load{Waiting: 2, Running: 1, HasQueue: true})
	require.Zero(t, r.Stats().Workers[0].OtherRequests)

	r.Report(slotOf(1), Load{Waiting: 3, Running: 2, HasQueue: true})
	require.Equal(t, strangers{running: 2}, r.slots[slotOf(1)].strangers, "the waiting ones are ours")
	r.Report(slotOf(1), Load{Waiting: 5, Running: 0, HasQueue: true})
	require.Equal(t, strangers{waiting: 2}, r.slots[slotOf(1)].strangers)
	r.Report(slotOf(1), Load{Waiting: 2, Running: 1, HasQueue: true})

	r.Report(slotOf(2), Load{Waiting: 9, Running: 4, HasQueue: true})
	require.Equal(t, 13, r.Stats().Workers[1].OtherRequests)
	require.Equal(t, slotOf(1), mustPick(t, r, &Request{Tokens: 5000}).Slot(),
		"three of ours are less than thirteen of others")
	c.advance(time.Minute)
	require.Equal(t, slotOf(2), mustPick(t, r, &Request{Tokens: 5000}).Slot(), "a stale report counts no more")
}

// A worker that leaves and comes back while leases run: late calls hit their own
// bookings, whether the slot comes back as it was or its number in a new
// generation.
func TestWorkersFlap(t *testing.T) {
	for _, gen := range []uint32{1, 2} {
		t.Run(fmt.Sprintf("generation=%d", gen), func(t *testing.T) {
			r, _ := newTestRouter(t, 1, nil, Options{})
			old := mustPick(t, r, &Request{Chain: chainOf(1, 10), Tokens: 170})
			require.NoError(t, r.SetWorkers(nil))
			_, err := r.Pick(&Request{Tokens: 1})
			require.ErrorIs(t, err, ErrNoWorker)
			require.Equal(t, 1, r.Stats().GoneLeases)

			back := Worker{Slot: kvindex.MakeSlot(1, gen)}
			require.NoError(t, r.SetWorkers([]Worker{back}))
			same := gen == 1
			l := mustPick(t, r, &Request{Chain: chainOf(1, 10), Tokens: 170})
			if same {
				require.Equal(t, 10, l.Decision().InFlight, "the booking is back")
				require.Equal(t, 2, r.Outstanding(back.Slot))
			} else {
				require.Zero(t, l.Decision().InFlight, "a new incarnation holds nothing")
				require.Equal(t, 1, r.Outstanding(back.Slot))
			}
			old.FirstToken()
			old.Done(errors.New("worker gone"))
			old.Done(nil)
			require.Equal(t, 1, r.Outstanding(back.Slot))
			l.Done(nil)
			requireEmpty(t, r)
			require.Len(t, r.slots, 1)
		})
	}
}

// Several gateways, each with its own index of what the workers announced: a
// family of prompts finds its worker through every one of them, and requests that
// one gateway booked show to the others in the reports only.
func TestR17GatewaysFindTheSameWorker(t *testing.T) {
	chain := chainOf(1, 300)
	for gateway := range 8 {
		x, err := kvindex.New(nil)
		require.NoError(t, err)
		var workers []Worker
		// Slots are each gateway's own numbers: the workers came in another order.
		for i := range 6 {
			name := fmt.Sprintf("w%d", (i+gateway)%6)
			s := x.Attach(name, 0)
			workers = append(workers, Worker{Slot: s, Name: name})
			if name == "w4" {
				require.NoError(t, x.Store(s, kvindex.TierGPU, 0, chain))
			}
		}
		r, _ := newTestRouter(t, 0, x, Options{Rand: seeded(uint64(gateway))})
		require.NoError(t, r.SetWorkers(workers))
		for i := range 20 {
			l := mustPick(t, r, &Request{Chain: branch(chain, 50+i, 3), Tokens: 303*16 + 1})
			at := slices.IndexFunc(workers, func(w Worker) bool { return w.Slot == l.Slot() })
			require.Equal(t, "w4", workers[at].Name)
			require.Equal(t, 300, l.Decision().Reused[kvindex.TierGPU])
			l.Done(nil)
		}
	}
}
