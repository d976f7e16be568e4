package router_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// quietRun is one simulated run, in seconds of virtual time.
type quietRun struct {
	ttft, reuse float64 // mean, as the engines have it
	stats       router.Stats
}

// tell is what a run's router hears of a request.
type tell struct{ quiet, first bool }

// simulate plays 1,500 requests of eight families on four engines in virtual
// time. told says, by the request's number, what the router hears of it.
func simulate(t *testing.T, learn bool, told func(i int) tell) quietRun {
	const engines, requests, families, rate = 4, 1500, 8, 7.5
	cfg := sim.H100TP4("hbm")
	ix, err := kvindex.New(&kvindex.Options{BlockTokens: cfg.BlockTokens})
	require.NoError(t, err)
	now := 0.0
	opts := &router.Options{
		BlockTokens: cfg.BlockTokens, Rand: rand.New(rand.NewPCG(1, 2)).Uint64,
		Now: func() time.Time { return time.Unix(0, int64(now*1e9)) },
	}
	tm := cfg.Timing
	opts.Timing = router.Timing{T0: tm.T0, W: tm.W, B: tm.B, C: tm.C, KV: tm.KV, D: tm.D, Chunk: tm.Chunk}
	if opts.FixedTiming = !learn; learn {
		opts.Timing.T0, opts.Timing.W, opts.Timing.B = 2*tm.T0, 2*tm.W, 2*tm.B // to be unlearned
	}
	r, err := router.New(ix, opts)
	require.NoError(t, err)
	type node struct {
		core *sim.Core
		slot kvindex.Slot
		next float64
	}
	nodes := make([]node, engines)
	bySlot := map[kvindex.Slot]*node{}
	var list []router.Worker
	for i := range nodes {
		core, err := sim.NewCore(cfg)
		require.NoError(t, err)
		nodes[i] = node{core, ix.Attach(fmt.Sprint(i), 0), math.Inf(1)}
		bySlot[nodes[i].slot] = &nodes[i]
		list = append(list, router.Worker{Slot: nodes[i].slot, KVBlocks: cfg.RunBlocks})
	}
	require.NoError(t, r.SetWorkers(list))

	type flight struct {
		req     sim.Req
		lease   *router.Lease
		tell    tell
		arrived float64
	}
	res := quietRun{}
	done, cached, prompt := 0, 0, 0
	step := func(n *node) {
		var out *sim.Output
		n.next, out = n.core.Step(now)
		for i := range out.Tokens {
			k := &out.Tokens[i]
			f := k.Req.Data.(*flight)
			if k.First() {
				res.ttft += (now - f.arrived) / requests
				cached += k.Cached
				if f.tell.first {
					f.lease.FirstToken()
				}
			}
			if k.Done {
				f.lease.Output(k.Count)
				f.lease.Done(nil)
				done++
			}
		}
		for i := range out.Cache {
			e := &out.Cache[i].Event
			var hashes []block.Hash
			for _, h := range e.Hashes {
				hashes = append(hashes, block.Hash(h))
			}
			switch e.Kind {
			case kvindex.EventStored:
				require.NoError(t, ix.Store(n.slot, e.Tier, block.Hash(e.Parent), hashes))
			case kvindex.EventRemoved:
				ix.Remove(n.slot, e.Tier, hashes)
			}
		}
	}

	rng := rand.New(rand.NewPCG(3, 4))
	at := 0.0
	for i := range requests {
		at += rng.ExpFloat64() / rate
		for {
			var first *node
			for j := range nodes {
				if n := &nodes[j]; n.next <= at && (first == nil || n.next < first.next) {
					first = n
				}
			}
			if first == nil {
				break
			}
			now = first.next
			step(first)
		}
		now = at
		// A family's prefix, and blocks of its own.
		f := &flight{tell: told(i), arrived: at}
		family, shared, own := rng.IntN(families), 8+rng.IntN(8), 1+rng.IntN(10)
		for j := range shared + own {
			name := uint64(family+1)<<32 | uint64(j)
			if j >= shared {
				name = uint64(i+1)<<44 | uint64(j)
			}
			f.req.Chain = append(f.req.Chain, name)
		}
		f.req.ID, f.req.Prompt, f.req.Out, f.req.Data = uint64(i), (shared+own)*cfg.BlockTokens, 50+rng.IntN(400), f
		prompt += f.req.Prompt
		chain := make([]block.Hash, len(f.req.Chain))
		for j, h := range f.req.Chain {
			chain[j] = block.Hash(h)
		}
		f.lease, err = r.Pick(&router.Request{Chain: chain, Tokens: f.req.Prompt, Quiet: f.tell.quiet})
		require.NoError(t, err)
		n := bySlot[f.lease.Slot()]
		require.NoError(t, n.core.Add(&f.req))
		if n.core.Idle() {
			step(n)
		}
	}
	for done < requests {
		first := &nodes[0]
		for j := range nodes {
			if nodes[j].next < first.next {
				first = &nodes[j]
			}
		}
		now = first.next
		step(first)
	}
	res.reuse, res.stats = float64(cached)/float64(prompt), r.Stats()
	require.Zero(t, res.stats.Outstanding)
	for _, w := range res.stats.Workers {
		require.Zero(t, w.Pending)
		require.Zero(t, w.Queue)
		require.Zero(t, w.Decoding)
	}
	return res
}

// Requests whose first token nobody sees are routed about as well as streaming
// ones, and better than when the router is left to think that they prefill until
// they end. They teach it no wrong times.
func TestQuietRoutesLikeStreaming(t *testing.T) {
	for _, learn := range []bool{false, true} {
		stream := simulate(t, learn, func(int) tell { return tell{first: true} })
		silent := simulate(t, learn, func(int) tell { return tell{} })
		quiet := simulate(t, learn, func(int) tell { return tell{quiet: true} })
		half := simulate(t, learn, func(i int) tell { return tell{quiet: i%2 == 0, first: i%2 != 0} })
		for name, x := range map[string]quietRun{"quiet": quiet, "half": half} {
			require.InEpsilon(t, stream.ttft, x.ttft, 0.05, "%s, learn %v", name, learn)
			require.InDelta(t, stream.reuse, x.reuse, 0.01, "%s, learn %v", name, learn)
			require.Greater(t, silent.ttft, 1.1*x.ttft, "%s, learn %v", name, learn)
		}
		for _, x := range []quietRun{silent, quiet, half} {
			require.InEpsilon(t, stream.stats.OutputMean, x.stats.OutputMean, 0.01)
		}
		require.Zero(t, quiet.stats.LearnRows)
		require.Zero(t, quiet.stats.TTFT.Count)
		if learn {
			want, got := stream.stats.Timing, half.stats.Timing
			require.InEpsilon(t, want.Prefill(8192, 0), got.Prefill(8192, 0), 0.05)
			require.InDelta(t, stream.stats.LearnError, half.stats.LearnError, 0.05)
		}
	}
}
