package fleet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/router"
)

// Cases that peers get wrong where workers come up, seen from the whole fleet.

// engineOf starts an engine of these tests that the test closes.
func engineOf(t *testing.T, opts sim.Options) *sim.Server {
	opts.Config, opts.Speed = sim.H100TP4("dram").WithBlockTokens(16).VLLM(), fast
	s, err := sim.NewServer(&opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// over runs a fleet over the workers until the test ends.
func over(t *testing.T, opts *Options, workers ...discovery.Worker) *Fleet {
	f, err := New(opts)
	require.NoError(t, err)
	src, err := discovery.Static(workers...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx, src) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	wctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	require.NoError(t, f.Wait(wctx, len(workers)))
	return f
}

// A fleet that starts beside engines at work is synced once it knows what they
// hold, and not before.
func TestSyncedMeansRestored(t *testing.T) {
	r := newRig(t, 3, nil)
	for i := range uint32(12) {
		_, _, err := r.ask(request(prompt(i, i, 3200), 2))
		require.NoError(t, err)
	}
	r.eventually("events", func() bool { return r.blocks() == r.engineBlocks() })
	for range 8 {
		f := over(t, &Options{LoadEvery: 10 * time.Millisecond}, r.workers...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		require.NoError(t, f.Synced(ctx))
		require.Equal(t, r.engineBlocks(), f.Index().Stats().Holders[kvindex.TierGPU])
	}
}

// An engine without events, and one whose events reach nobody, serve; and that
// they say nothing can be told from the status, beside the engine's own count of
// lookups.
func TestSilentRanksCanBeTold(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() // takes connections and never speaks
	pl, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	pub := zmtp.NewPub(pl, nil) // takes subscribers and has nothing for them
	defer pub.Close()
	off, mute, silent := engineOf(t, sim.Options{NoEvents: true}), engineOf(t, sim.Options{}), engineOf(t, sim.Options{})
	f := over(t, &Options{LoadEvery: 5 * time.Millisecond, WarnAfter: time.Nanosecond},
		discovery.Worker{Name: "mute", Endpoints: discovery.Endpoints{HTTP: mute.URL(), Events: "tcp://" + l.Addr().String()}},
		discovery.Worker{Name: "off", Endpoints: discovery.Endpoints{HTTP: off.URL()}},
		discovery.Worker{Name: "silent", Endpoints: discovery.Endpoints{HTTP: silent.URL(), Events: "tcp://" + pl.Addr().String()}})
	r := &rig{t: t, fleet: f}
	for i := range uint32(40) {
		_, _, err := r.ask(request(prompt(i, i, 320), 2))
		require.NoError(t, err)
	}
	r.eventually("all at work", func() bool {
		ws := f.Workers()
		return ws[0].Queries > 0 && ws[1].Queries > 0 && ws[2].Queries > 0 && ws[2].Warning != ""
	})
	ws := f.Workers()
	require.True(t, ws[0].HasEvents)
	require.Zero(t, ws[0].Messages)
	require.Equal(t, kvindex.StreamInitial, ws[0].Events)
	require.False(t, ws[1].HasEvents)
	require.Contains(t, errors.Join(missing(ws[1])...).Error(), "kv-events-config")
	require.Zero(t, ws[0].Blocks)
	require.Empty(t, ws[0].Warning, "a channel that does not stand is no silent one")
	require.Empty(t, ws[1].Warning)
	require.Equal(t, "no KV events from rank 0", ws[2].Warning)
	require.NotZero(t, ws[1].Blocks[kvindex.TierGPU], "what went to an engine without events is guessed")
}

func missing(s Status) (out []error) {
	for _, m := range s.Missing {
		out = append(out, errors.New(m))
	}
	return out
}

// A worker whose network is gone is taken out, and the requests that wait there
// for their first token are answered by another one; what has begun goes on.
func TestHangingEngine(t *testing.T) {
	var hung atomic.Bool
	release := make(chan struct{})
	front := func(s *sim.Server) *httptest.Server { // stands before an engine and can stop to speak
		u, err := url.Parse(s.URL())
		require.NoError(t, err)
		next := httputil.NewSingleHostReverseProxy(u)
		next.FlushInterval = -1
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if hung.Load() {
				_, _ = io.Copy(io.Discard, r.Body) // or the server does not see the client leave
				select {
				case <-release:
				case <-r.Context().Done():
				}
				return
			}
			next.ServeHTTP(w, r)
		}))
	}
	slow := engineOf(t, sim.Options{NoEvents: true})
	proxy := front(slow)
	defer proxy.Close()
	defer close(release)
	good := engineOf(t, sim.Options{NoEvents: true})
	var running atomic.Bool // the one that has begun
	downs := make(chan error, 1)
	f := over(t, &Options{
		LoadEvery: 10 * time.Millisecond, CheckTimeout: 300 * time.Millisecond, FailAfter: 2,
		Hooks: Hooks{Down: func(w discovery.Worker, err error) {
			if !running.Load() {
				t.Error("it ended before its worker was down")
			}
			select {
			case downs <- err:
			default:
			}
		}},
	}, discovery.Worker{Name: "a", Endpoints: discovery.Endpoints{HTTP: proxy.URL}})
	r := &rig{t: t, fleet: f}
	// One begins there before the second engine is known.
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	var wg sync.WaitGroup
	wg.Go(func() {
		defer begin() // however it ends
		n := 0
		for c, err := range f.Engine().Generate(context.Background(), request(prompt(1, 1, 160), 5000)) {
			if err != nil {
				t.Error(err)
				return
			}
			if n == 0 && c.Tokens > 0 {
				running.Store(true)
				begin()
			}
			n += c.Tokens
		}
		running.Store(false)
		if n != 5000 {
			t.Errorf("%d tokens of the request that had begun", n)
		}
	})
	<-begun
	hung.Store(true)
	for i := range uint32(4) { // these can go nowhere else yet
		wg.Go(func() {
			if n, _, err := r.ask(request(prompt(2+i, i, 160), 3)); err != nil || n != 3 {
				t.Errorf("%d tokens, %v", n, err)
			}
		})
	}
	r.eventually("they wait", func() bool { return outstanding(f) == 5 })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.apply(ctx, []discovery.Worker{
		{Name: "a", Endpoints: discovery.Endpoints{HTTP: proxy.URL}}, {Name: "b", Endpoints: discovery.Endpoints{HTTP: good.URL()}},
	})
	wg.Wait()
	r.eventually("a is down", func() bool { return len(downs) == 1 })
	require.ErrorContains(t, <-downs, "metrics: no answer in 300ms")
	r.eventually("b is up alone", func() bool { ws := f.Workers(); return !ws[0].Up && ws[1].Up })
}

func outstanding(f *Fleet) (n int) {
	for _, w := range f.Router().Stats().Workers {
		n += w.Outstanding
	}
	return n
}

// An engine whose events cannot match, as when it hashes with names that the
// gateway does not use, is told of once a thousand picks found nothing though the
// engine itself found something.
func TestEventsThatNeverMatch(t *testing.T) {
	r := newRig(t, 1, nil)
	f := r.fleet
	m := f.members["w0"]
	slot := m.ranks[0].slot
	ledger := router.WorkerStats{Picks: unmatched, Done: unmatched, Blocks: unmatched}
	warning := func(l router.WorkerStats, hits float64) string {
		f.mu.Lock()
		defer f.mu.Unlock()
		m.seen, m.merged = true, engine.Load{HasPrefix: true, Hits: m.since.Hits + hits}
		return f.warning(m, map[kvindex.Slot]router.WorkerStats{slot: l})
	}
	require.Equal(t, "1000 picks and no block ever matched", warning(ledger, 16))
	require.Empty(t, warning(ledger, 0), "the engine finds nothing either")
	few, short, fine := ledger, ledger, ledger
	few.Picks, short.Blocks, fine.Matched = unmatched-1, 0, 1
	for _, l := range []router.WorkerStats{few, short, fine, {}} {
		require.Empty(t, warning(l, 16))
	}
}
