package sim

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex"
)

// small is an engine with few small blocks and vLLM's habits.
func small(blocks int) Config {
	c := H100TP4("hbm").VLLM()
	c.BlockTokens, c.RunBlocks, c.CacheBlocks = 4, blocks, blocks
	c.Timing.Chunk = 16
	return c
}

func mustCore(t testing.TB, cfg Config) *Core {
	t.Helper()
	c, err := NewCore(cfg)
	require.NoError(t, err)
	return c
}

// drive steps the core until it is idle, copying what it says.
func drive(c *Core, now float64, each func(*Output)) float64 {
	for {
		next, out := c.Step(now)
		if each != nil {
			each(out)
		}
		if math.IsInf(next, 1) {
			return now
		}
		now = next
	}
}

func seqTokens(from, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(from + i)
	}
	return t
}

func TestConfigFaultsAreAllListed(t *testing.T) {
	_, err := NewCore(Config{Timing: Timing{T0: -1, B: math.NaN()}, BlockTokens: 0, RunBlocks: 5, CacheBlocks: 4, Hash: 9, MaxSeqs: -1})
	for _, want := range []string{"T0", "Timing.B", "W", "Chunk", "BlockTokens", "CacheBlocks", "Hash", "MaxSeqs"} {
		require.ErrorContains(t, err, want)
	}
	_, err = NewCore(H100TP4("tape"))
	require.ErrorContains(t, err, "RunBlocks")
	for _, tier := range []string{"hbm", "dram"} {
		c := H100TP4(tier)
		require.Equal(t, 781, mustCore(t, c).Config().RunBlocks)
		require.Equal(t, 781*32, mustCore(t, c.WithBlockTokens(16)).Config().RunBlocks)
	}
}

// One engine that is given prompts of one size with one output token is a queue
// with one server and a fixed service time (M/D/1), whose mean wait is known.
func TestMeanWaitOfFixedServiceQueue(t *testing.T) {
	cfg := H100TP4("hbm")
	cfg.Timing.Chunk = 1 << 20
	cfg.Timing.C = 0
	service := cfg.Timing.Prefill(1000, 0)
	const n, rho = 60_000, 0.7
	// One request a step: more would share T0 and be served faster.
	cfg.MaxSeqs = 1
	c := mustCore(t, cfg)
	rng := rand.New(rand.NewPCG(7, 7))
	arrive := make([]float64, n)
	at := 0.0
	for i := range arrive {
		at += rng.ExpFloat64() * service / rho
		arrive[i] = at
	}
	sum, done := 0.0, 0
	take := func(out *Output) {
		for _, tok := range out.Tokens {
			sum += out.At - arrive[tok.Req.ID]
			done++
		}
	}
	next := math.Inf(1)
	var out *Output
	for i := 0; i < n || !math.IsInf(next, 1); {
		if i < n && arrive[i] <= next {
			require.NoError(t, c.Add(&Req{ID: uint64(i), Prompt: 1000, Out: 1}))
			if c.Idle() {
				next, out = c.Step(arrive[i])
				take(out)
			}
			i++
			continue
		}
		next, out = c.Step(next)
		take(out)
	}
	require.Equal(t, n, done)
	want := service * (1 + rho/(2*(1-rho)))
	require.InEpsilon(t, want, sum/n, 0.08)
}

// The reference: the step model for one engine, written without any structure,
// with the whole cache as a list in order of use.
type naive struct {
	cfg          Config
	queue        []*naiveReq
	decode       []*naiveReq
	cache        []uint64 // least recently used first; pinned blocks are in pins
	pins         map[uint64]int
	private      int
	hits, looked int
}

type naiveReq struct {
	r                  *Req
	admitted           bool
	rem, ctx, out, own int
	load               float64
}

func (m *naive) held(b uint64) bool { return m.pins[b] > 0 || slices.Contains(m.cache, b) }

func (m *naive) pin(b uint64) {
	m.cache = slices.DeleteFunc(m.cache, func(x uint64) bool { return x == b })
	m.pins[b]++
}

func (m *naive) admit(q *naiveReq) bool {
	bs := m.cfg.BlockTokens
	k := 0
	for k < q.r.Prompt/bs && m.held(q.r.Chain[k]) {
		k++
	}
	need := (q.r.Prompt+q.r.Out+bs-1)/bs + 1 - k
	idle := 0
	for _, b := range q.r.Chain[:k] {
		if m.pins[b] == 0 {
			idle++
		}
	}
	if len(m.pins)+m.private+idle+need > m.cfg.RunBlocks {
		return false
	}
	for _, b := range q.r.Chain[:k] {
		m.pin(b)
	}
	for len(m.pins)+len(m.cache)+m.private+need > m.cfg.CacheBlocks {
		m.cache = m.cache[1:]
	}
	m.private += need
	q.own, q.admitted = need, true
	hit := min(k*bs, q.r.Prompt-1)
	q.rem, q.ctx, q.load = q.r.Prompt-hit, hit, m.cfg.Timing.Load*float64(hit)
	m.hits += hit
	m.looked += q.r.Prompt
	return true
}

// step does one step from now on and returns its end and who got a first token.
func (m *naive) step(now float64) (end float64, first []uint64) {
	t := m.cfg.Timing
	budget, p, ctx, load := t.Chunk, 0, 0.0, 0.0
	took := map[*naiveReq]int{}
	for _, q := range m.queue {
		if budget == 0 || !q.admitted && !m.admit(q) {
			break
		}
		n := min(budget, q.rem)
		ctx += float64(n) * (float64(q.ctx) + float64(n)/2)
		load += q.load
		q.load = 0
		took[q] = n
		budget -= n
		p += n
	}
	if p == 0 && len(m.decode) == 0 {
		return math.Inf(1), nil
	}
	kv := 0
	for _, q := range m.decode {
		kv += q.ctx
	}
	d := float64(len(m.decode))
	length := t.T0 + math.Max(t.W, t.B*(float64(p)+d)) + t.C*ctx + t.KV*float64(kv) + t.D*d + load
	end = now + length // summed in the core's order, so that times are equal to the bit
	var still []*naiveReq
	for _, q := range m.decode {
		q.ctx++
		if q.out++; q.out == q.r.Out {
			m.finish(q)
		} else {
			still = append(still, q)
		}
	}
	m.decode = still
	for len(m.queue) > 0 && took[m.queue[0]] == m.queue[0].rem && took[m.queue[0]] > 0 {
		q := m.queue[0]
		m.queue = m.queue[1:]
		q.ctx += took[q]
		delete(took, q)
		q.out = 1
		first = append(first, q.r.ID)
		bs := m.cfg.BlockTokens
		k := q.r.Prompt/bs - (q.own - ((q.r.Prompt+q.r.Out+bs-1)/bs + 1 - q.r.Prompt/bs))
		for _, b := range q.r.Chain[k : q.r.Prompt/bs] {
			m.private--
			q.own--
			m.pin(b)
		}
		if q.r.Out == 1 {
			m.finish(q)
		} else {
			m.decode = append(m.decode, q)
		}
	}
	for q, n := range took {
		q.rem -= n
		q.ctx += n
	}
	return end, first
}

func (m *naive) finish(q *naiveReq) {
	m.private -= q.own
	for j := q.r.Prompt/m.cfg.BlockTokens - 1; j >= 0; j-- {
		b := q.r.Chain[j]
		if m.pins[b]--; m.pins[b] == 0 {
			delete(m.pins, b)
			m.cache = append(m.cache, b)
		}
	}
}

// chains makes prompts that share prefixes as conversations do.
func chains(rng *rand.Rand, n, bs, maxBlocks int) []*Req {
	var reqs []*Req
	fresh := uint64(1)
	for i := range n {
		var chain []uint64
		if len(reqs) > 0 && rng.IntN(3) > 0 {
			old := reqs[rng.IntN(len(reqs))].Chain
			chain = append(chain, old[:rng.IntN(len(old)+1)]...)
		}
		for want := 1 + rng.IntN(maxBlocks); len(chain) < want; fresh++ {
			chain = append(chain, fresh)
		}
		reqs = append(reqs, &Req{ID: uint64(i), Prompt: len(chain)*bs + rng.IntN(bs), Chain: chain, Out: 1 + rng.IntN(40)})
	}
	return reqs
}

func TestAgreesWithReference(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := H100TP4("dram")
		cfg.BlockTokens, cfg.RunBlocks, cfg.CacheBlocks = 16, 60, 60+int(seed)*4
		cfg.Timing.Chunk = 64
		reqs := chains(rng, 400, cfg.BlockTokens, 20)
		c := mustCore(t, cfg)
		m := &naive{cfg: cfg, pins: map[uint64]int{}}

		next, ref := math.Inf(1), math.Inf(1)
		var refFirst []uint64 // of the step that ends at ref
		at := 0.0
		firsts := 0
		for i := 0; i < len(reqs) || !math.IsInf(next, 1); {
			require.Equal(t, ref, next, "seed %d request %d", seed, i)
			if i < len(reqs) && at <= next {
				require.NoError(t, c.Add(reqs[i]))
				m.queue = append(m.queue, &naiveReq{r: reqs[i]})
				if c.Idle() {
					next, _ = c.Step(at)
					ref, refFirst = m.step(at)
				}
				i++
				at += rng.ExpFloat64() * 0.35
				continue
			}
			now := next
			var out *Output
			next, out = c.Step(now)
			var got []uint64
			for _, tok := range out.Tokens {
				if tok.First() {
					got = append(got, tok.Req.ID)
				}
			}
			require.Equal(t, refFirst, got, "seed %d time %v", seed, now)
			firsts += len(got)
			ref, refFirst = m.step(now)
		}
		st := c.Stats()
		require.Equal(t, len(reqs), firsts)
		require.Equal(t, uint64(m.hits), st.Hits)
		require.Equal(t, uint64(m.looked), st.Queries)
		require.NotZero(t, st.Hits)
		require.NotZero(t, st.Evictions)
		require.Zero(t, st.UsedBlocks)
	}
}

func TestHitAccounting(t *testing.T) {
	c := mustCore(t, small(64))
	ask := func(id uint64, toks []uint32) (cached int) {
		require.NoError(t, c.Add(&Req{ID: id, Tokens: toks, Out: 1}))
		drive(c, 0, func(o *Output) {
			for _, tok := range o.Tokens {
				cached = tok.Cached
			}
		})
		return cached
	}
	require.Equal(t, 0, ask(1, seqTokens(10, 10)))
	require.Equal(t, 8, ask(2, seqTokens(10, 10)))
	require.Equal(t, 4, ask(3, seqTokens(10, 8)), "a hit leaves a token to compute and ends at a border")
	require.Equal(t, 8, ask(4, seqTokens(10, 30)))
	ch := newChainer(HashMix64)
	first, _ := ch.next(nil, seqTokens(10, 4), &Req{})
	second, _ := ch.next(nil, seqTokens(14, 4), &Req{})
	require.Equal(t, 2, c.Cached([]uint64{first, second, 7}))
	require.Zero(t, c.Cached([]uint64{second}[:0]))
	st := c.Stats()
	require.Equal(t, uint64(10+10+8+30), st.Queries)
	require.Equal(t, uint64(8+4+8), st.Hits)
}

func TestAddErrors(t *testing.T) {
	c := mustCore(t, small(8))
	require.ErrorIs(t, c.Add(&Req{Prompt: 0, Out: 1}), ErrBadRequest)
	require.ErrorIs(t, c.Add(&Req{Prompt: 1, Out: 0}), ErrBadRequest)
	require.ErrorIs(t, c.Add(&Req{Prompt: 30, Out: 3}), ErrTooLong)
	require.NoError(t, c.Add(&Req{Prompt: 30, Out: 2}))
	err := c.Add(&Req{Prompt: 1, Out: 1})
	require.True(t, errors.Is(err, ErrBadRequest), "id in use: %v", err)
	require.True(t, c.Cancel(0))
	require.False(t, c.Cancel(0))
	next, _ := c.Step(0)
	require.True(t, math.IsInf(next, 1))
}

// Whatever is stopped, moved or preempted on the way, the tokens after a prompt
// are the same.
func TestTokensDependOnIdsAlone(t *testing.T) {
	run := func(c *Core, r *Req) []uint32 {
		var ids []uint32
		require.NoError(t, c.Add(r))
		drive(c, 0, func(o *Output) {
			for _, tok := range o.Tokens {
				if tok.Req == r {
					ids = append(ids, tok.ID)
				}
			}
		})
		return ids
	}
	cfg := small(64)
	prompt := seqTokens(100, 21)
	want := run(mustCore(t, cfg), &Req{Tokens: prompt, Out: 30})
	require.Len(t, want, 30)

	moved := run(mustCore(t, cfg), &Req{Tokens: append(slices.Clone(prompt), want[:11]...), Out: 19})
	require.Equal(t, want[11:], moved)

	require.NotEqual(t, want, run(mustCore(t, cfg), &Req{Tokens: prompt, Out: 30, Adapter: "x"}))
	cfg.Model.Seed = 1
	require.NotEqual(t, want, run(mustCore(t, cfg), &Req{Tokens: prompt, Out: 30}))

	cfg.Model = Model{StopEvery: 10}
	c := mustCore(t, cfg)
	stopped := run(c, &Req{ID: 1, Tokens: seqTokens(5, 9), Out: 200})
	require.Equal(t, uint32(EOS), stopped[len(stopped)-1])
	require.Less(t, len(stopped), 200)
	require.Len(t, run(c, &Req{ID: 2, Tokens: seqTokens(5, 9), Out: 200, IgnoreEOS: true}), 200)
}

func TestPreemptionRecomputesAndChangesNothing(t *testing.T) {
	ample, tight := mustCore(t, small(400)), mustCore(t, small(40))
	outputs := func(c *Core) map[uint64][]uint32 {
		got := map[uint64][]uint32{}
		for i := range uint64(6) {
			require.NoError(t, c.Add(&Req{ID: i, Tokens: seqTokens(int(i)*1000, 20), Out: 100}))
		}
		drive(c, 0, func(o *Output) {
			for _, tok := range o.Tokens {
				got[tok.Req.ID] = append(got[tok.Req.ID], tok.ID)
				require.Len(t, got[tok.Req.ID], tok.Count)
			}
		})
		return got
	}
	a, b := outputs(ample), outputs(tight)
	require.Equal(t, a, b)
	require.Zero(t, ample.Stats().Preemptions)
	require.NotZero(t, tight.Stats().Preemptions)
	require.Zero(t, tight.Stats().UsedBlocks)
}

func TestCloneIsIndependent(t *testing.T) {
	c := mustCore(t, small(40))
	for i := range uint64(5) {
		require.NoError(t, c.Add(&Req{ID: i, Tokens: seqTokens(int(i)*7, 30), Out: 50}))
	}
	now := 0.0
	for range 20 {
		now, _ = c.Step(now)
	}
	d := c.Clone()
	before := c.Stats()
	var dOut, cOut []uint32
	end := drive(d, now, func(o *Output) {
		for _, tok := range o.Tokens {
			dOut = append(dOut, tok.ID)
		}
	})
	require.Equal(t, before, c.Stats())
	require.Equal(t, end, drive(c, now, func(o *Output) {
		for _, tok := range o.Tokens {
			cOut = append(cOut, tok.ID)
		}
	}))
	require.Equal(t, cOut, dOut)
	require.Equal(t, c.Stats(), d.Stats())
}

// follower keeps the cache as a consumer of the events sees it: copies by name.
type follower map[uint64]int

func (f follower) apply(t require.TestingT, events []CacheEvent) {
	for i := range events {
		ev := &events[i]
		switch ev.Kind {
		case kvindex.EventCleared:
			clear(f)
		case kvindex.EventRemoved:
			require.Len(t, ev.Hashes, 1)
			require.Positive(t, f[ev.Hashes[0]], "removed what is not there")
			if f[ev.Hashes[0]]--; f[ev.Hashes[0]] == 0 {
				delete(f, ev.Hashes[0])
			}
		case kvindex.EventStored:
			if ev.HasParent {
				require.Positive(t, f[ev.Parent], "parent is not there")
			}
			for _, h := range ev.Hashes {
				f[h]++
			}
		}
	}
}

// Under any load the events, followed from the start, give the cache's content.
func TestEventsTellTheCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := small(rapid.IntRange(12, 40).Draw(t, "blocks"))
		cfg.CacheBlocks += rapid.IntRange(0, 20).Draw(t, "more")
		cfg.PublishAtPrefillEnd = rapid.Bool().Draw(t, "late")
		cfg.Preempt = !cfg.PublishAtPrefillEnd && rapid.Bool().Draw(t, "preempt")
		cfg.MaxSeqs = rapid.IntRange(1, 6).Draw(t, "seqs")
		c, err := NewCore(cfg)
		require.NoError(t, err)
		seen := follower{}
		now, next := 0.0, math.Inf(1)
		live := map[uint64]bool{}
		id := uint64(0)
		step := func() {
			var out *Output
			next, out = c.Step(now)
			seen.apply(t, out.Cache)
			for _, tok := range out.Tokens {
				require.True(t, live[tok.Req.ID])
				if tok.Done {
					delete(live, tok.Req.ID)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				id++
				n := rapid.IntRange(1, 24).Draw(t, "tokens")
				r := &Req{ID: id, Tokens: seqTokens(rapid.IntRange(0, 2).Draw(t, "kind")*100, n), Out: rapid.IntRange(1, 12).Draw(t, "out")}
				require.NoError(t, c.Add(r))
				live[id] = true
				if c.Idle() {
					step()
				}
			},
			"cancel": func(t *rapid.T) {
				if id > 0 {
					k := rapid.Uint64Range(1, id).Draw(t, "id")
					require.Equal(t, live[k], c.Cancel(k))
					delete(live, k)
				}
			},
			"reset": func(t *rapid.T) {
				require.Equal(t, c.Stats().UsedBlocks == 0, c.Reset())
			},
			"step": func(t *rapid.T) {
				if !math.IsInf(next, 1) {
					now = next
					step()
				}
			},
			"": func(t *rapid.T) {
				st := c.Stats()
				require.LessOrEqual(t, st.UsedBlocks, cfg.RunBlocks)
				require.LessOrEqual(t, st.CachedBlocks, cfg.CacheBlocks)
				require.LessOrEqual(t, st.Running, cfg.MaxSeqs)
				require.Equal(t, len(live), st.Running+st.Waiting)
			},
		})
		for !math.IsInf(next, 1) {
			now = next
			step()
		}
		require.Empty(t, live)
		// One more request flushes what a reset left to tell.
		require.NoError(t, c.Add(&Req{ID: id + 1, Tokens: seqTokens(900, 1), Out: 1}))
		live[id+1] = true
		for step(); !math.IsInf(next, 1); {
			now = next
			step()
		}
		total := 0
		for name, n := range seen {
			total += n
			require.Contains(t, c.pool.byName, name)
		}
		require.Equal(t, c.Stats().CachedBlocks, total)
		require.Zero(t, c.Stats().UsedBlocks)
	})
}

// Decoding allocates only when a sequence outgrows what was set aside for it.
func TestStepAllocatesNothing(t *testing.T) {
	for name, req := range map[string]Req{
		"names": {Prompt: 2000, Chain: []uint64{1, 2, 3}, Out: 900},
		"ids":   {Tokens: seqTokens(5, 2000), Out: 900},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := H100TP4("dram").WithBlockTokens(16).VLLM()
			c := mustCore(t, cfg)
			for i := range uint64(8) {
				r := req
				r.ID = i
				require.NoError(t, c.Add(&r))
			}
			now := 0.0
			for range 100 {
				now, _ = c.Step(now)
			}
			n := testing.AllocsPerRun(200, func() { now, _ = c.Step(now) })
			require.LessOrEqual(t, n, 0.5, "blocks and events grow now and then")
			require.NotZero(t, c.Stats().Running)
		})
	}
}

func BenchmarkCoreStep(b *testing.B) {
	cfg := H100TP4("dram")
	c := mustCore(b, cfg)
	rng := rand.New(rand.NewPCG(1, 1))
	reqs := chains(rng, 4096, cfg.BlockTokens, 40)
	now, id, steps := 0.0, uint64(0), 0
	b.ReportAllocs()
	for b.Loop() {
		for c.Stats().Running+c.Stats().Waiting < 24 {
			r := *reqs[id%4096]
			r.ID, r.Out = id, 200
			id++
			if err := c.Add(&r); err != nil {
				b.Fatal(err)
			}
		}
		now, _ = c.Step(now)
		steps++
	}
	b.ReportMetric(float64(steps)/b.Elapsed().Seconds(), "steps/s")
}
