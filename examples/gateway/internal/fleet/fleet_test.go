package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fleet over simulated engines, driven until the test ends.
type rig struct {
	t       *testing.T
	fleet   *Fleet
	servers []*sim.Server
	workers []discovery.Worker
	mu      sync.Mutex
	downs   []string
}

// fast is how much faster than real the engines are.
const fast = 50

func newRig(t *testing.T, n int, source func([]discovery.Worker) discovery.Source) *rig {
	r := &rig{t: t}
	for i := range n {
		r.servers = append(r.servers, nil)
		s := r.serve(i, nil)
		r.workers = append(r.workers, discovery.Worker{Name: fmt.Sprint("w", i), Endpoints: discovery.Endpoints{HTTP: s.URL()}})
	}
	var src discovery.Source
	if source != nil {
		src = source(r.workers)
	} else {
		static, err := discovery.Static(r.workers...)
		require.NoError(t, err)
		src = static
	}
	f, err := New(&Options{
		LoadEvery: 10 * time.Millisecond, ProbeEvery: 20 * time.Millisecond, SweepEvery: 10 * time.Millisecond,
		Router: router.Options{FailurePause: 50 * time.Millisecond},
		Hooks: Hooks{Down: func(w discovery.Worker, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.downs = append(r.downs, fmt.Sprintf("%s %v", w.Name, err != nil))
		}},
	})
	require.NoError(t, err)
	r.fleet = f
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx, src) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Zero(t, f.Index().Stats().Slots, "slots are left attached")
		for _, s := range r.servers {
			require.NoError(t, s.Close())
		}
	})
	r.wait(n)
	return r
}

// serve starts engine i, on the addresses of old if there is one.
func (r *rig) serve(i int, old *sim.Server) *sim.Server {
	opts := &sim.Options{Config: sim.H100TP4("dram").WithBlockTokens(16).VLLM(), Speed: fast}
	if old != nil {
		for at, l := range map[string]*net.Listener{old.URL()[len("http://"):]: &opts.HTTP, old.EventsEndpoint()[len("tcp://"):]: &opts.Events, old.ReplayEndpoint()[len("tcp://"):]: &opts.Replay} {
			var err error
			*l, err = net.Listen("tcp", at)
			require.NoError(r.t, err)
		}
	}
	s, err := sim.NewServer(opts)
	require.NoError(r.t, err)
	r.servers[i] = s
	return s
}

func (r *rig) wait(n int) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(r.t, r.fleet.Wait(ctx, n))
}

func (r *rig) eventually(what string, f func() bool) {
	require.Eventually(r.t, f, 20*time.Second, 5*time.Millisecond, what)
}

// prompt is n tokens that begin like those of every prompt of the same family.
func prompt(family, own uint32, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = 1000 + family*31 + uint32(i)%97
		if i >= n/2 {
			p[i] += own * 7
		}
	}
	return p
}

func request(tokens []uint32, out int) *engine.Request {
	body, _ := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": out, "ignore_eos": true, "stream": true})
	return &engine.Request{ID: "r", API: engine.APICompletions, Model: "sim", Body: body, Stream: true, N: 1, Prompts: 1, MaxTokens: out, Tokens: tokens, Rank: -1}
}

// ask runs one request and says how it went.
func (r *rig) ask(req *engine.Request) (tokens, cached int, err error) {
	cached = -1
	for c, err := range r.fleet.Engine().Generate(context.Background(), req) {
		if err != nil {
			return tokens, cached, err
		}
		tokens += c.Tokens
		if c.Usage != nil {
			cached = c.Usage.Cached
		}
	}
	return tokens, cached, nil
}

// What events tell must be what the engine then reports as cached.
func TestPredictedIsReported(t *testing.T) {
	r := newRig(t, 2, nil)
	sized := r.fleet.Index().Stats().NameBytes
	for i := range uint32(12) {
		p := prompt(i%3, i, 1600)
		_, cached, err := r.ask(request(p, 4))
		require.NoError(t, err)
		if i < 3 {
			require.Zero(t, cached)
		} else {
			require.Equal(t, 800, cached, "request %d went where its prefix is not", i)
		}
		// The blocks are announced with the step, the answer may be here before.
		r.eventually("events", func() bool { return r.fleet.Router().Outstanding(0) == 0 && r.blocks() == r.engineBlocks() })
	}
	st := r.fleet.Router().Stats()
	require.Equal(t, st.ActualHit, st.PredictedHit)
	for _, w := range r.fleet.Workers() {
		require.True(t, w.Up)
		require.True(t, w.HasEvents)
		require.Contains(t, []kvindex.StreamState{kvindex.StreamInitial, kvindex.StreamLive}, w.Events)
	}
	require.Equal(t, sized, r.fleet.Index().Stats().NameBytes, "slots have the size of their engines' caches at once")
	for i, w := range r.fleet.Workers() {
		require.Equal(t, [kvindex.Tiers]int{r.servers[i].Stats().CachedBlocks}, w.Blocks)
	}
}

// blocks is what the index holds, engineBlocks what the engines do.
func (r *rig) blocks() int { return r.fleet.Index().Stats().Holders[kvindex.TierGPU] }

func (r *rig) engineBlocks() (n int) {
	for _, s := range r.servers {
		n += s.Stats().CachedBlocks
	}
	return n
}

// An engine that is killed must cost nobody an answer that had not begun, its
// blocks must not be counted any more, and it must come back under another slot.
func TestKilledEngine(t *testing.T) {
	r := newRig(t, 3, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	served, begun := 0, 0
	started := make(chan struct{}, 64)
	for i := range uint32(60) {
		wg.Go(func() {
			n, _, err := r.ask(request(prompt(i%5, i, 1600), 200))
			started <- struct{}{}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && n == 200:
				served++
			case n > 0 && engine.Delivered(err):
				begun++ // its beginning is with the client: nothing to retry
			default:
				t.Errorf("request %d lost after %d tokens: %v", i, n, err)
			}
		})
	}
	dead := r.fleet.Workers()[0]
	r.eventually("the first engine at work", func() bool { return r.servers[0].Stats().Running > 0 })
	require.NoError(t, r.servers[0].Close())
	wg.Wait()
	require.Equal(t, 60, served+begun)

	r.eventually("the dead engine taken out", func() bool { return !r.fleet.Workers()[0].Up })
	_, _, known := r.fleet.Index().Worker(dead.Slots[0])
	require.False(t, known, "its slot is still attached")
	r.eventually("only blocks of the living", func() bool { return r.blocksOf(0) == 0 })
	require.Error(t, r.fleet.Workers()[0].Err)

	r.serve(0, r.servers[0])
	r.eventually("the engine back", func() bool { return r.fleet.Workers()[0].Up })
	back := r.fleet.Workers()[0]
	require.NotEqual(t, dead.Slots[0], back.Slots[0], "a new life needs a new slot")
	_, _, err := r.ask(request(prompt(9, 1, 64), 2))
	require.NoError(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Contains(t, r.downs, "w0 true")
}

// blocksOf is the number of blocks that the router would count on for a worker:
// of the prompts used in these tests, those that its slots hold.
func (r *rig) blocksOf(i int) (n int) {
	s := r.fleet.Workers()[i]
	for family := range uint32(5) {
		var o kvindex.Overlap
		h, err := block.NewHasher(block.Scope{Model: "sim"}, 16, nil)
		require.NoError(r.t, err)
		chain := h.AppendHashes(nil, prompt(family, family, 1600), nil)
		r.fleet.Index().Lookup(&o, chain)
		for _, slot := range s.Slots {
			n += o.Depth(slot, kvindex.TierObject)
		}
	}
	return n
}

// What a worker held is given back although nobody is left to store.
func TestIndexIsSwept(t *testing.T) {
	r := newRig(t, 1, nil)
	_, _, err := r.ask(request(prompt(1, 1, 1600), 2))
	require.NoError(t, err)
	r.eventually("events", func() bool { return r.blocks() > 0 })
	require.NoError(t, r.servers[0].Close())
	r.eventually("taken out", func() bool { return !r.fleet.Workers()[0].Up })
	r.eventually("its memory given back", func() bool { return r.fleet.Index().Stats().Dying == 0 })
	require.Zero(t, r.blocks())
}

// Workers come and go with the file, and a broken file changes nothing.
func TestFileOfWorkers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.json")
	write := func(ws []discovery.Worker) {
		data, err := discovery.Encode(ws)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path+".new", data, 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	r := newRig(t, 2, func(ws []discovery.Worker) discovery.Source {
		write(ws)
		src, err := discovery.File(path, &discovery.FileOptions{Interval: 5 * time.Millisecond})
		require.NoError(t, err)
		return src
	})
	write(r.workers[:1])
	r.eventually("one left", func() bool { return len(r.fleet.Workers()) == 1 })
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	draining := r.workers[0]
	_, _, err := r.ask(request(prompt(1, 1, 64), 2))
	require.NoError(t, err, "a broken file must keep the last good list")

	draining.Draining = true
	slot := r.fleet.Workers()[0].Slots[0]
	write([]discovery.Worker{draining})
	r.eventually("draining", func() bool { return r.fleet.Workers()[0].Draining })
	r.eventually("refused", func() bool {
		_, _, err := r.ask(request(prompt(1, 1, 64), 2))
		return errors.Is(err, engine.ErrUnavailable)
	})
	require.Equal(t, slot, r.fleet.Workers()[0].Slots[0], "draining is no new life")

	moved := r.workers[0]
	moved.Incarnation = "2"
	write([]discovery.Worker{moved})
	r.eventually("a new life", func() bool {
		w := r.fleet.Workers()[0]
		return w.Up && w.Slots[0] != slot
	})
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + l.Addr().String()
	require.NoError(t, l.Close())
	f, err := New(&Options{ProbeEvery: time.Millisecond})
	require.NoError(t, err)
	src, err := discovery.Static(
		discovery.Worker{Name: "gone", Endpoints: discovery.Endpoints{HTTP: url}},
		discovery.Worker{Name: "odd", Engine: "other", Endpoints: discovery.Endpoints{HTTP: url}},
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx, src) }()
	require.Eventually(t, func() bool {
		ws := f.Workers()
		return len(ws) == 2 && ws[0].Err != nil && ws[1].Err != nil
	}, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, f.Workers()[0].Err, engine.ErrUnreachable)
	require.ErrorContains(t, f.Workers()[1].Err, "unknown kind of engine other")
	for _, err := range f.Engine().Generate(ctx, request([]uint32{1}, 1)) {
		require.ErrorIs(t, err, engine.ErrUnavailable)
		require.ErrorIs(t, err, router.ErrNoWorker)
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestOptions(t *testing.T) {
	_, err := New(&Options{LoadEvery: -1, FailAfter: -1, BlockTokens: -1})
	require.ErrorContains(t, err, "Options.LoadEvery is -1")
	require.ErrorContains(t, err, "Options.FailAfter is -1")
	require.ErrorContains(t, err, "Options.BlockTokens is -1")
}

// The last token is always computed, and an engine counts whole blocks of its
// own size.
func TestPredict(t *testing.T) {
	f, err := New(nil)
	require.NoError(t, err)
	small, large := kvindex.MakeSlot(1, 1), kvindex.MakeSlot(2, 1)
	f.sizes.Store(&map[kvindex.Slot]int{small: 16, large: 32})
	for _, c := range []struct {
		slot                   kvindex.Slot
		gpu, cpu, tokens, want int
	}{
		{small, 0, 0, 100, 0}, {small, 4, 0, 100, 64}, {small, 4, 2, 100, 96}, {small, 6, 0, 96, 80}, {small, 6, 0, 97, 96},
		{large, 5, 0, 100, 64}, {large, 4, 0, 64, 32}, {large, 1, 0, 100, 0}, {small, 0, 0, 0, 0},
		{kvindex.MakeSlot(9, 9), 4, 0, 64, 63}, // a size that is not known
	} {
		d := &router.Decision{Slot: c.slot, Tokens: c.tokens, Reused: [kvindex.Tiers]int{c.gpu, c.cpu}}
		require.Equal(t, c.want, f.Predict(d), "%+v", c)
	}
}

func TestMerge(t *testing.T) {
	require.Equal(t, engine.Load{}, merge(nil))
	got := merge([]engine.Load{
		{HasQueue: true, Running: 2, Waiting: 1, HasKV: true, KVUsage: .5, HasPrefix: true, Queries: 10, Hits: 4},
		{HasQueue: true, Running: 3},
		{HasKV: true, KVUsage: .1, HasPrefix: true, Queries: 5, Hits: 5},
	})
	require.Equal(t, engine.Load{HasQueue: true, Running: 5, Waiting: 1, HasKV: true, KVUsage: .3, HasPrefix: true, Queries: 15, Hits: 9}, got)
}

func TestEventSources(t *testing.T) {
	probe := &vllm.Probe{Ranks: 2, Events: []vllm.EventSource{{Endpoint: "tcp://probe:1"}}}
	got, err := eventSources(discovery.Worker{}, probe)
	require.NoError(t, err)
	require.Equal(t, probe.Events, got)
	w := discovery.Worker{Endpoints: discovery.Endpoints{HTTP: "http://h:1", Events: "tcp://*:5557", Replay: "tcp://r:6000"}}
	got, err = eventSources(w, probe)
	require.NoError(t, err)
	require.Equal(t, []vllm.EventSource{
		{Rank: 0, Endpoint: "tcp://h:5557", Replay: "tcp://r:6000"},
		{Rank: 1, Endpoint: "tcp://h:5558", Replay: "tcp://r:6001"},
	}, got)
	w.Endpoints.Replay = "x"
	_, err = eventSources(w, probe)
	require.Error(t, err)
}
