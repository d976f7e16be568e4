package router

import "github.com/stator-go/stator/kvindex"

// Expected is the default policy: the seconds that a request is expected to cost
// on a worker, itself and others, as [Cost] lists them.
//
// On top of the wait for its first token it counts what its work does to those
// who come later: on a busy pool, prefill seconds put on a worker delay everyone
// who arrives before its busy period ends, rate/(1-utilisation) requests a second
// each by the present wait. That price draws requests with a common prefix
// together as load grows, which is where spreading them costs capacity; it has
// no weight to tune. The decode terms count to the degree to which the target
// time per output token is in use.
type Expected struct {
	// Decode selects the decode terms; the zero value is DecodeTarget.
	Decode DecodeTerm
	// NoPrice leaves the price on later arrivals out, for comparison.
	NoPrice bool
}

// A DecodeTerm is a way to count decoding in [Expected].
type DecodeTerm uint8

// Decode terms.
const (
	// DecodeTarget counts the request's own decode, what it does to that of the
	// others, and the stall its prefill puts on them, weighed by the share of the
	// target time per token in use.
	DecodeTarget DecodeTerm = iota
	// DecodeFull counts the request's own decode at full weight.
	DecodeFull
	// DecodeOff counts none.
	DecodeOff
)

// Score is the total cost of each row.
func (p Expected) Score(dst []float64, v *View, req *Request) {
	e := p.estimator(v, req)
	for i := range dst {
		dst[i] = e.cost(i, nil)
	}
}

// estimator holds what is the same for all rows of one pick.
type estimator struct {
	v      *View
	t      *Timing
	own    float64 // expected output of this request, tokens
	mean   float64 // of any request
	price  float64 // arrivals per worker and second over the idle share
	theta  float64 // weight of the decode terms
	decode DecodeTerm
	d1     float64
	unit   float64 // tokens per block
}

func (p Expected) estimator(v *View, req *Request) estimator {
	r := v.r
	e := estimator{v: v, t: &r.timing, mean: r.outputMean, decode: p.Decode, unit: float64(r.opts.BlockTokens)}
	e.own = e.mean
	if req.MaxTokens > 0 {
		e.own = min(e.own, float64(req.MaxTokens))
	}
	if !p.NoPrice {
		f := &r.flows[v.role]
		f.decay(v.now)
		h := min(tau, max(v.now-r.firstPick, 5))
		n := float64(max(1, len(r.open[v.role])))
		rho := min(0.98, f.work/h/n)
		e.price = f.rate / h / n / max(0.05, 1-rho)
	}
	e.d1 = e.t.perSequence()
	u := r.tpot / r.opts.TPOTTarget.Seconds()
	e.theta = min(1, u*u/2)
	return e
}

// cost is the total for row i; c, when not nil, gets its parts.
func (e *estimator) cost(i int, c *Cost) float64 {
	v, t, w := e.v, e.t, e.v.rows[i]
	m := v.Held(i)
	h := v.hit(m)
	n := v.tokens - h
	load := t.Load*float64(h) + v.tierLoad(i, h)
	prefill := t.Prefill(n, h) + (load - t.Load*float64(h))

	// The ledger, with what only the engine's report knows.
	queue := w.queue(v.now)
	d, outstanding, prompt := w.decoding, w.outstanding, float64(w.promptTokens)
	used := w.active + w.private
	if s := &w.strangers; s.waiting+s.running > 0 && v.fresh(w) {
		queue += float64(s.waiting) * v.r.prefillMean
		prompt += float64(s.waiting+s.running) * v.r.promptMean
		d += s.running
		outstanding += s.waiting + s.running
		used += s.blocks
	}
	kv := 0.0
	if outstanding > 0 {
		kv = prompt * float64(d) / float64(outstanding)
	}
	f := t.slowdown(d, kv)
	total := (queue + prefill) * f

	// Blocks wanted beyond capacity, freed at the worker's own completion rate.
	memory := 0.0
	if w.KVBlocks > 0 {
		over := float64(used) + float64(v.blocks-m) + e.own/e.unit + 1 - float64(w.KVBlocks)
		if over > 0 {
			memory = e.mean * t.step(d, prompt) * over / float64(max(1, used))
		}
	}
	total += memory
	price := prefill * f * e.price * total
	total += price

	decode := 0.0
	switch e.decode {
	case DecodeTarget:
		out := float64(outstanding)
		decode = e.theta * (e.own*(t.KV*prompt+e.d1*out) +
			e.own*(t.KV*float64(v.tokens)+e.d1)*out + 0.6*prefill*float64(d))
	case DecodeFull:
		decode = e.own * (t.KV*prompt + e.d1*float64(outstanding))
	}
	total += decode

	if c != nil {
		*c = Cost{
			Queue: queue * f, Prefill: (prefill - load) * f, Load: load * f,
			Memory: memory, Price: price, Decode: decode, Total: total,
		}
	}
	return total
}

// explain fills the parts of a decision or alternate that concern row i.
func (e *estimator) explain(i int, c *Cost) (hit int, slowdown float64) {
	e.cost(i, c)
	w := e.v.rows[i]
	return e.v.hit(e.v.Held(i)), e.t.slowdown(w.decoding, w.context())
}

// reused splits the leading blocks of row i by tier and in-flight.
func (v *View) reused(i int) (tiers [kvindex.Tiers]int, inFlight int) {
	below := 0
	for t := range kvindex.Tiers {
		k := v.Depth(i, kvindex.Tier(t))
		if k > below {
			tiers[t] = k - below
			below = k
		}
	}
	return tiers, max(0, v.InFlight(i)-below)
}
