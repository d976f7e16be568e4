package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/internal/report"
	"github.com/stator-go/stator/internal/trace"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// A workload is a trace with the hash chains of its prompts.
type workload struct {
	reqs   []trace.Request
	chains [][]block.Hash
	names  [][]uint64 // the same numbers, as the engines' names
	output float64    // mean output tokens
}

func newWorkload(reqs []trace.Request) *workload {
	w := &workload{reqs: reqs}
	// A trace's id stands for a block's content: the chain of ids names prefixes.
	h, err := block.NewHasher(block.Scope{Model: "trace"}, 1, nil)
	if err != nil {
		panic(err) // constant arguments
	}
	sum := 0
	for i := range reqs {
		r := &reqs[i]
		chain := h.AppendHashes(make([]block.Hash, 0, r.Full()), r.Blocks[:r.Full()], nil)
		names := make([]uint64, len(chain))
		for j, v := range chain {
			names[j] = uint64(v)
		}
		w.chains, w.names = append(w.chains, chain), append(w.names, names)
		sum += r.Output
	}
	w.output = float64(sum) / float64(len(reqs))
	return w
}

// span is the time between the first and the last request, in seconds.
func (w *workload) span() float64 { return (w.reqs[len(w.reqs)-1].At - w.reqs[0].At).Seconds() }

// rate is the trace's own, in requests per second.
func (w *workload) rate() float64 { return float64(len(w.reqs)) / w.span() }

type settings struct {
	policy  string
	workers int
	speed   float64 // of the trace's clock
	seed    int64
	learn   bool
	warm    float64 // share of requests left out of the samples
}

type result struct {
	samples    []report.Sample
	throughput float64 // requests per second, first arrival to last end
}

// flight is one request on its way. Times are seconds of virtual time.
type flight struct {
	sim.Req
	lease                    *router.Lease
	arrived, first, finished float64
	cached                   int
	tokens                   int
}

// A worker is one simulated engine with its place in the index.
type worker struct {
	core *sim.Core
	slot kvindex.Slot
	next float64 // when its step ends
}

// player holds one run: engines, index and router under one virtual clock.
type player struct {
	now     float64
	workers []worker
	index   *kvindex.Index
	router  *router.Router
	err     error
	done    int
	hashes  []block.Hash // scratch
}

// scrape is the period at which engines report their load.
const scrape = 0.050

func replay(w *workload, cfg sim.Config, s settings) (*result, error) {
	p, err := newPlayer(w, cfg, s)
	if err != nil {
		return nil, err
	}
	flights := make([]flight, len(w.reqs))
	scraped := 0.0
	for i := 0; ; {
		b := p.earliest()
		t := math.Inf(1)
		if b >= 0 {
			t = p.workers[b].next
		}
		arrival := i < len(w.reqs) && w.reqs[i].At.Seconds()/s.speed <= t
		if arrival {
			t = w.reqs[i].At.Seconds() / s.speed
		}
		if math.IsInf(t, 1) {
			break
		}
		if t >= scraped+scrape {
			scraped = math.Floor(t/scrape) * scrape
			p.now = scraped
			p.report()
		}
		p.now = t
		if arrival {
			p.arrive(&flights[i], w, i)
			i++
		} else {
			p.step(&p.workers[b])
		}
		if p.err != nil {
			return nil, p.err
		}
	}
	if p.done != len(flights) {
		return nil, fmt.Errorf("%d of %d requests were not answered", len(flights)-p.done, len(flights))
	}
	return p.result(w, cfg, s, flights), nil
}

func newPlayer(w *workload, cfg sim.Config, s settings) (*player, error) {
	p := &player{workers: make([]worker, s.workers)}
	var err error
	if p.index, err = kvindex.New(&kvindex.Options{BlockTokens: cfg.BlockTokens}); err != nil {
		return nil, err
	}
	policy, err := router.PolicyByName(s.policy)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(uint64(s.seed), 1))
	epoch := time.Unix(0, 0)
	o := &router.Options{
		Policy:      policy,
		BlockTokens: cfg.BlockTokens,
		Rand:        rng.Uint64,
		Now:         func() time.Time { return epoch.Add(time.Duration(p.now * float64(time.Second))) },
	}
	if !s.learn {
		t := cfg.Timing
		o.Timing = router.Timing{T0: t.T0, W: t.W, B: t.B, C: t.C, KV: t.KV, D: t.D, Load: t.Load, Chunk: t.Chunk}
		o.FixedTiming = true
		o.OutputMean, o.FixedOutputMean = w.output, true
	}
	if p.router, err = router.New(p.index, o); err != nil {
		return nil, err
	}
	list := make([]router.Worker, s.workers)
	for i := range p.workers {
		k := &p.workers[i]
		if k.core, err = sim.NewCore(cfg); err != nil {
			return nil, err
		}
		k.slot = p.index.Attach(fmt.Sprintf("engine-%d", i), 0)
		k.next = math.Inf(1)
		list[i] = router.Worker{Slot: k.slot, Name: fmt.Sprintf("engine-%d", i), KVBlocks: cfg.RunBlocks}
	}
	return p, p.router.SetWorkers(list)
}

// earliest is the worker whose step ends first, -1 when all are idle.
func (p *player) earliest() int {
	b := -1
	for i := range p.workers {
		if n := p.workers[i].next; !math.IsInf(n, 1) && (b < 0 || n < p.workers[b].next) {
			b = i
		}
	}
	return b
}

func (p *player) report() {
	for i := range p.workers {
		k := &p.workers[i]
		st := k.core.Stats()
		p.router.Report(k.slot, router.Load{
			At:      time.Unix(0, 0).Add(time.Duration(p.now * float64(time.Second))),
			Running: st.Running, Waiting: st.Waiting, HasQueue: true,
			KVUsage: min(1, st.KVUsage()), HasKV: true,
		})
	}
}

// arrive picks a worker for request i and hands it over.
func (p *player) arrive(f *flight, w *workload, i int) {
	r := &w.reqs[i]
	f.arrived = p.now
	lease, err := p.router.Pick(&router.Request{Chain: w.chains[i], Tokens: r.Input})
	if err != nil {
		p.err = err
		return
	}
	f.lease = lease
	f.Req = sim.Req{ID: uint64(i), Out: r.Output, Prompt: r.Input, Chain: w.names[i], Data: f}
	for j := range p.workers {
		k := &p.workers[j]
		if k.slot != lease.Slot() {
			continue
		}
		if p.err = k.core.Add(&f.Req); p.err == nil && k.core.Idle() {
			p.step(k)
		}
		return
	}
	p.err = fmt.Errorf("request %d was sent to no worker", i)
}

// step lets an engine finish its step and begin the next.
func (p *player) step(k *worker) {
	var out *sim.Output
	k.next, out = k.core.Step(p.now)
	for i := range out.Tokens {
		t := &out.Tokens[i]
		f := t.Req.Data.(*flight)
		if t.First() {
			f.first, f.cached = p.now, t.Cached
			f.lease.FirstToken()
		}
		if t.Done {
			f.finished, f.tokens = p.now, t.Count
			f.lease.Tokens(t.Count)
			f.lease.Done(nil)
			p.done++
		}
	}
	for i := range out.Cache {
		p.apply(k, &out.Cache[i].Event)
	}
}

// apply feeds one cache event to the index. The engine's names are the chain's
// hashes.
func (p *player) apply(k *worker, e *kvindex.Event) {
	hashes := p.hashes[:0]
	for _, h := range e.Hashes {
		hashes = append(hashes, block.Hash(h))
	}
	p.hashes = hashes
	switch e.Kind {
	case kvindex.EventStored:
		if err := p.index.Store(k.slot, e.Tier, block.Hash(e.Parent), hashes); err != nil {
			p.err = err
		}
	case kvindex.EventRemoved:
		p.index.Remove(k.slot, e.Tier, hashes)
	case kvindex.EventCleared:
		p.index.Clear(k.slot)
	}
}

// result turns the flights into samples.
func (p *player) result(w *workload, cfg sim.Config, s settings, flights []flight) *result {
	res := &result{}
	end := 0.0
	skip := int(s.warm * float64(len(flights)))
	for i := range flights {
		f := &flights[i]
		end = max(end, f.finished)
		if i < skip {
			continue
		}
		r := &w.reqs[i]
		sm := report.Sample{
			TTFT: seconds(f.first - f.arrived), Prompt: r.Input, Cached: f.cached,
			Cold: seconds(cfg.Timing.Prefill(r.Input, 0)),
		}
		if f.tokens > 1 {
			sm.ITL, sm.HasITL = seconds((f.finished-f.first)/float64(f.tokens-1)), true
		}
		res.samples = append(res.samples, sm)
	}
	res.throughput = float64(len(flights)) / (end - w.reqs[0].At.Seconds()/s.speed)
	return res
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
