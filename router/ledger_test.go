package router

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// The model below is the ledger and the policies written down once more in the
// plainest way, block by block, straight from their definitions. It shares no
// code with the package.

type modelRequest struct {
	worker, in, full int
	chain            []block.Hash
	estNew           int
	estSec           float64
	lease            *Lease
	first            bool
	quiet            bool
	due              float64
}

type modelWorker struct {
	pend   []*modelRequest
	headAt float64
	out    []*modelRequest
	active map[block.Hash]int
}

type model struct {
	unit       int
	tm         Timing
	outMean    float64
	runCap     int
	index      fakeIndex
	workers    []*modelWorker
	now, first float64
	rate, work float64
	decayed    float64
}

func (m *model) private(w *modelWorker) (n int) {
	for _, q := range w.out {
		n += m.blocks(q.in) - q.full + 1
	}
	return n
}

func (m *model) blocks(in int) int { return (in + m.unit - 1) / m.unit }

func (m *model) indexed(i int, q *modelRequest) int {
	return m.index.depth(uint32(i+1), kvindex.Tiers-1, q.chain)
}

func (m *model) held(i int, q *modelRequest) int {
	active := 0
	for active < q.full && m.workers[i].active[q.chain[active]] > 0 {
		active++
	}
	return max(active, m.indexed(i, q))
}

func (m *model) hit(k, in int) int { return min(k*m.unit, in-1) }

func (m *model) prefill(n, h int) float64 {
	steps := math.Ceil(float64(n) / float64(m.tm.Chunk))
	x := float64(n)
	return steps*m.tm.T0 + math.Max(m.tm.B*x, m.tm.W*steps) + m.tm.C*x*(float64(h)+x/2) + m.tm.Load*float64(h)
}

func (m *model) queue(w *modelWorker) float64 {
	if len(w.pend) == 0 {
		return 0
	}
	sum := 0.0
	for _, q := range w.pend {
		sum += q.estSec
	}
	return math.Max(0, sum-math.Min(m.now-w.headAt, w.pend[0].estSec))
}

func (w *modelWorker) counts() (d, kv, pendTok int) {
	for _, q := range w.out {
		kv += q.in
		if q.first {
			d++
		}
	}
	for _, q := range w.pend {
		pendTok += q.estNew
	}
	return d, kv, pendTok
}

func (m *model) slowdown(w *modelWorker) float64 {
	d, kv, _ := w.counts()
	share := 0.0
	if len(w.out) > 0 {
		share = float64(kv) * float64(d) / float64(len(w.out))
	}
	x := float64(d)
	return 1 + (m.tm.B*x+m.tm.KV*share+m.tm.D*x)/(m.tm.T0+math.Max(m.tm.W, m.tm.B*float64(m.tm.Chunk)))
}

func (m *model) decay() {
	f := math.Exp(-(m.now - m.decayed) / 60)
	m.rate, m.work, m.decayed = m.rate*f, m.work*f, m.now
}

// costB is policy B of the reference: full decode weight.
func (m *model) costB(i int, q *modelRequest) float64 {
	w := m.workers[i]
	k := m.held(i, q)
	h := m.hit(k, q.in)
	p, f := m.prefill(q.in-h, h), m.slowdown(w)
	d, kv, _ := w.counts()
	v := (m.queue(w) + p) * f
	used := float64(len(w.active) + m.private(w))
	over := used + float64(m.blocks(q.in)-k) + m.outMean/float64(m.unit) + 1 - float64(m.runCap)
	if over > 0 {
		step := m.tm.T0 + math.Max(m.tm.W, m.tm.B*float64(m.tm.Chunk+d)) + m.tm.KV*float64(kv) + m.tm.D*float64(d)
		v += m.outMean * step * over / math.Max(1, used)
	}
	m.decay()
	hz := math.Min(60, math.Max(m.now-m.first, 5))
	n := float64(len(m.workers))
	rho := math.Min(0.98, m.work/hz/n)
	v += p * f * (m.rate / hz / n) * v / math.Max(0.05, 1-rho)
	return v + m.outMean*(m.tm.KV*float64(kv)+(m.tm.D+m.tm.B)*float64(len(w.out)))
}

// costB2 is B with the decode term of B2, for a mean time per token of tpot.
func (m *model) costB2(i int, q *modelRequest, tpot float64) float64 {
	w := m.workers[i]
	d, kv, _ := w.counts()
	n := float64(len(w.out))
	k := m.held(i, q)
	h := m.hit(k, q.in)
	u := tpot / 0.05
	theta := math.Min(1, u*u/2)
	own := m.outMean * (m.tm.KV*float64(kv) + (m.tm.D+m.tm.B)*n)
	return m.costB(i, q) - own + theta*(own+m.outMean*(m.tm.KV*float64(q.in)+m.tm.D+m.tm.B)*n+0.6*m.prefill(q.in-h, h)*float64(d))
}

// scores is every policy by its definition, under the names of PolicyByName.
func (m *model) scores(i int, q *modelRequest, tpot float64) map[string]float64 {
	w := m.workers[i]
	_, _, pendTok := w.counts()
	held, indexed := m.held(i, q), m.indexed(i, q)
	news := func(k int) int { return q.in - m.hit(k, q.in) }
	fresh := 0
	for _, b := range q.chain {
		if w.active[b] == 0 {
			fresh++
		}
	}
	after := float64(len(w.active) + m.private(w) + fresh + 1)
	blocksum := func(weight float64, k int) float64 {
		return weight*float64(pendTok+news(k))/float64(m.unit) + after
	}
	seconds := func(k int) float64 { h := m.hit(k, q.in); return m.queue(w) + m.prefill(q.in-h, h) }
	return map[string]float64{
		"expected:decode=full": m.costB(i, q),
		"expected":             m.costB2(i, q, tpot),
		"dynamo":               blocksum(1, indexed),
		"dynamo:w=4;pend=1":    blocksum(4, held),
		"dynamo:lmetric=1":     float64(pendTok+news(held)) * (after + 1),
		"lmetric":              float64(pendTok+news(held)) * float64(len(w.out)+1),
		"lmetric:pend=0":       float64(news(held)) * float64(len(w.out)+1),
		"conductor":            seconds(held),
		"conductor:pend=0":     seconds(indexed),
		"leastloaded":          float64(len(w.out)),
	}
}

func (m *model) assign(i int, q *modelRequest) {
	w := m.workers[i]
	h := m.hit(m.held(i, q), q.in)
	q.worker, q.estNew, q.estSec = i, q.in-h, m.prefill(q.in-h, h)
	q.due = q.estSec * m.slowdown(w)
	m.decay()
	m.rate++
	m.work += q.estSec * m.slowdown(w)
	if len(w.pend) == 0 {
		w.headAt = m.now
	}
	w.pend = append(w.pend, q)
	w.out = append(w.out, q)
	for _, b := range q.chain {
		w.active[b]++
	}
}

func without(list []*modelRequest, q *modelRequest) []*modelRequest {
	var out []*modelRequest
	for _, x := range list {
		if x != q {
			out = append(out, x)
		}
	}
	return out
}

func (m *model) firstToken(q *modelRequest) { m.firstTokenAt(q, m.now) }

func (m *model) firstTokenAt(q *modelRequest, at float64) {
	if q.first {
		return
	}
	q.first = true
	w := m.workers[q.worker]
	w.pend = without(w.pend, q)
	w.headAt = at
}

// settle is the first rule of quiet requests, and overtake both.
func (m *model) settle(w *modelWorker) {
	for len(w.pend) > 0 && w.pend[0].quiet && w.headAt+w.pend[0].due <= m.now {
		m.firstTokenAt(w.pend[0], w.headAt+w.pend[0].due)
	}
}

func (m *model) overtake(q *modelRequest) {
	w := m.workers[q.worker]
	m.settle(w)
	if q.first {
		return
	}
	for _, e := range w.pend {
		if e == q {
			return
		}
		if e.quiet {
			m.firstToken(e)
		}
	}
}

func (m *model) finish(q *modelRequest) {
	m.firstToken(q)
	w := m.workers[q.worker]
	w.out = without(w.out, q)
	for _, b := range q.chain {
		if w.active[b]--; w.active[b] == 0 {
			delete(w.active, b)
		}
	}
}

// probe lets the test choose and records what every policy says.
type probe struct {
	policies map[string]Policy
	got      map[string][]float64
	choice   int
}

func (p *probe) Score(dst []float64, v *View, req *Request) {
	p.got = map[string][]float64{}
	for name, policy := range p.policies {
		policy.Score(dst, v, req)
		p.got[name] = append([]float64(nil), dst...)
	}
	for i := range dst {
		dst[i] = float64((i - p.choice + len(dst)) % len(dst))
	}
}

func TestPoliciesAgainstModel(t *testing.T) {
	names := []string{"expected:decode=full", "expected", "dynamo", "dynamo:w=4;pend=1", "dynamo:lmetric=1",
		"lmetric", "lmetric:pend=0", "conductor", "conductor:pend=0", "leastloaded"}
	rapid.Check(t, func(t *rapid.T) {
		const n = 3
		p := &probe{policies: map[string]Policy{}}
		for _, name := range names {
			policy, err := PolicyByName(name)
			require.NoError(t, err)
			p.policies[name] = policy
		}
		tm := DefaultTiming()
		tm.Load = 4e-6
		m := &model{unit: 16, tm: tm, outMean: 100, runCap: 60, index: fakeIndex{}, first: -1}
		for range n {
			m.workers = append(m.workers, &modelWorker{active: map[block.Hash]int{}})
		}
		c := newClock()
		start := c.at
		r, err := New(m.index, &Options{Policy: p, Now: c.now, Rand: seeded(3), Timing: tm,
			FixedTiming: true, OutputMean: 100, FixedOutputMean: true, FailureLimit: -1})
		require.NoError(t, err)
		require.NoError(t, r.SetWorkers(workerList(n, 60)))

		var open []*modelRequest
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.advance(time.Duration(rapid.IntRange(0, 400).Draw(t, "ms")) * time.Millisecond)
			m.now = c.at.Sub(start).Seconds()
			op := rapid.SampledFrom([]string{"pick", "pick", "first", "done", "fail", "cache"}).Draw(t, "op")
			if op != "pick" && op != "cache" && len(open) == 0 {
				continue
			}
			pickOpen := func() int { return rapid.IntRange(0, len(open)-1).Draw(t, "which") }
			switch op {
			case "cache":
				chain := branch(chainOf(1, rapid.IntRange(0, 6).Draw(t, "prefix")), rapid.IntRange(2, 4).Draw(t, "family"), rapid.IntRange(0, 6).Draw(t, "blocks"))
				tier := kvindex.Tier(rapid.IntRange(0, kvindex.Tiers-1).Draw(t, "tier"))
				m.index.hold(rapid.Uint32Range(1, n).Draw(t, "slot"), tier, chain...)
			case "pick":
				chain := branch(chainOf(1, rapid.IntRange(0, 6).Draw(t, "prefix")), rapid.IntRange(2, 4).Draw(t, "family"), rapid.IntRange(0, 6).Draw(t, "blocks"))
				q := &modelRequest{chain: chain, full: len(chain), in: max(1, len(chain)*16+rapid.IntRange(0, 15).Draw(t, "rest"))}
				q.quiet = rapid.Bool().Draw(t, "quiet")
				for _, w := range m.workers {
					m.settle(w)
				}
				p.choice = rapid.IntRange(0, n-1).Draw(t, "worker")
				if m.first < 0 {
					m.first = m.now
				}
				tpot := r.Stats().TPOT.Seconds()
				l, err := r.Pick(&Request{Chain: chain, Tokens: q.in, Quiet: q.quiet})
				require.NoError(t, err)
				require.Equal(t, slotOf(p.choice+1), l.Slot())
				for i := range n {
					want := m.scores(i, q, tpot)
					for _, name := range names {
						require.InDelta(t, want[name], p.got[name][i], 1e-6*math.Max(1, math.Abs(want[name])), "%s, worker %d", name, i)
					}
				}
				q.lease = l
				m.assign(p.choice, q)
				open = append(open, q)
			case "first":
				q := open[pickOpen()]
				q.lease.FirstToken()
				m.overtake(q)
				m.firstToken(q)
			default:
				i := pickOpen()
				q := open[i]
				if op == "done" {
					tokens := rapid.IntRange(0, 3).Draw(t, "tokens")
					if q.quiet {
						q.lease.Output(tokens)
					} else {
						q.lease.Tokens(tokens)
					}
					q.lease.Done(nil)
					m.overtake(q)
				} else {
					q.lease.Done(errors.New("broken"))
					m.settle(m.workers[q.worker])
				}
				m.finish(q)
				open = append(open[:i], open[i+1:]...)
			}
		}
		for _, q := range open {
			q.lease.Done(context.Canceled)
		}
		requireEmpty(t, r)
	})
}

// requireEmpty says that nothing is left of any booking.
func requireEmpty(t require.TestingT, r *Router) {
	s := r.Stats()
	require.Zero(t, s.Outstanding)
	require.Zero(t, s.GoneLeases)
	require.Zero(t, s.TrieNodes)
	require.Equal(t, s.Picks, s.Done)
	for _, w := range s.Workers {
		require.Zero(t, w.Outstanding, "%v", w.Slot)
		require.Zero(t, w.Decoding)
		require.Zero(t, w.Pending)
		require.Zero(t, w.PendingTokens)
		require.Zero(t, w.Queue)
		require.Zero(t, w.PromptTokens)
		require.Zero(t, w.ActiveBlocks)
		require.Zero(t, w.PrivateBlocks)
	}
	for _, w := range r.rows {
		require.Zero(t, w.pendSec, "no float drift")
		require.Nil(t, w.head)
		require.Nil(t, w.tail)
	}
}
