package router

import (
	"math/bits"
	"time"

	"github.com/stator-go/stator/kvindex"
)

// A Policy gives every candidate a score; the smallest wins. Score must fill
// dst, which has one entry per row of v. +Inf and NaN rule a row out. Score is
// called under the router's mutex: it must be quick, must not call the router or
// keep v, and may keep state without a mutex of its own. Of more than
// Options.MaxCandidates candidates it sees a part, see [WholeLister]; if it rules
// out all of these, it is called once more with all.
type Policy interface {
	Score(dst []float64, v *View, req *Request)
}

// An Assigner is a policy that wants to know what was booked.
type Assigner interface {
	// Assigned follows a Score whose row i was booked. It has Score's duties.
	Assigned(v *View, i int, req *Request)
}

// A Forgetter is a policy that keeps something per slot.
type Forgetter interface {
	// Forget is called when a slot left the worker list.
	Forget(s kvindex.Slot)
}

// A View is the table a policy decides from: one row per candidate, in the order
// of the worker list. It is read-only and valid during the call. Rows are the
// workers that the request may go to, draining, paused and overloaded ones left
// out, and no more than Options.MaxCandidates allows.
type View struct {
	r    *Router
	rows []*worker
	now  float64

	// depth[t] is, by slot number, how many leading blocks the index has in tier t
	// or a faster one, for t up to top; inFlight the same for outstanding requests,
	// by worker id.
	depth    [kvindex.Tiers][]uint32
	top      int
	inFlight []uint32

	tokens, blocks, complete int
	role                     Role
	lowerBound               bool
}

// Len is the number of rows.
func (v *View) Len() int { return len(v.rows) }

// Worker is the worker of row i.
func (v *View) Worker(i int) *Worker { return &v.rows[i].Worker }

// Position is the place of row i in the whole worker list, of Workers entries.
func (v *View) Position(i int) int { return v.rows[i].pos }

// Workers is the length of the worker list.
func (v *View) Workers() int { return len(v.r.rows) }

// Tokens is the length of the prompt in tokens.
func (v *View) Tokens() int { return v.tokens }

// Complete is the number of complete blocks of the prompt, the length of its chain.
func (v *View) Complete() int { return v.complete }

// Blocks is the number of blocks of the prompt, an incomplete last one included.
func (v *View) Blocks() int { return v.blocks }

// BlockTokens is the number of tokens of a block.
func (v *View) BlockTokens() int { return v.r.opts.BlockTokens }

// Depth is the number of leading blocks that the index has for row i in tier t
// or a faster one.
func (v *View) Depth(i int, t kvindex.Tier) int {
	k := min(int(t), v.top)
	return min(int(v.depth[k][v.rows[i].Slot.Num()]), v.complete)
}

// Indexed is the number of leading blocks that the index has for row i, in
// whatever tier.
func (v *View) Indexed(i int) int { return v.Depth(i, kvindex.Tiers-1) }

// InFlight is the number of leading blocks that outstanding requests on row i
// hold or are computing.
func (v *View) InFlight(i int) int { return int(v.inFlight[v.rows[i].id]) }

// Held is the greater of Indexed and InFlight: what needs no computing.
func (v *View) Held(i int) int { return max(v.Indexed(i), v.InFlight(i)) }

// hit is the number of tokens that blocks leading ones save: the last token of a
// prompt is always computed.
func (v *View) hit(blocks int) int { return max(0, min(blocks*v.r.opts.BlockTokens, v.tokens-1)) }

// Outstanding is the number of requests that this router has on row i.
func (v *View) Outstanding(i int) int { return v.rows[i].outstanding }

// Decoding is the number of outstanding requests on row i that are past their
// first token.
func (v *View) Decoding(i int) int { return v.rows[i].decoding }

// PendingTokens is the number of prompt tokens still to compute on row i: those of
// the outstanding requests without a first token, less what they reuse.
func (v *View) PendingTokens(i int) int { return v.rows[i].pendTok }

// PromptTokens is the sum of the prompts of the outstanding requests on row i.
func (v *View) PromptTokens(i int) int { return v.rows[i].promptTokens }

// UsedBlocks is the number of KV blocks that the outstanding requests on row i
// hold; blocks that they share count once.
func (v *View) UsedBlocks(i int) int { return v.rows[i].active + v.rows[i].private }

// Queue is the seconds of prefill that wait on row i.
func (v *View) Queue(i int) float64 { return v.rows[i].queue(v.now) }

// Load is the last report of row i and its age; ok says that there is a report
// and that it is not stale.
func (v *View) Load(i int) (load Load, age time.Duration, ok bool) {
	w := v.rows[i]
	if !w.hasLoad {
		return Load{}, -1, false
	}
	s := v.now - w.loadAt
	return w.load, seconds(s), v.fresh(w)
}

func (v *View) fresh(w *worker) bool {
	return w.hasLoad && v.now-w.loadAt <= v.r.opts.ReportMaxAge.Seconds()
}

// Timing is the step model in use.
func (v *View) Timing() *Timing { return &v.r.timing }

// OutputMean is the expected number of output tokens of a request.
func (v *View) OutputMean() float64 { return v.r.outputMean }

// Intn draws a number below n from the router's random source; n must be > 0.
func (v *View) Intn(n int) int {
	hi, _ := bits.Mul64(v.r.opts.Rand(), uint64(n))
	return int(hi)
}

// Prefill is the time row i needs to compute what is missing of the prompt when
// it does nothing else, with the loading of reused blocks; blocks leading ones
// count as held.
func (v *View) Prefill(i, blocks int) float64 {
	h := v.hit(blocks)
	return v.r.timing.Prefill(v.tokens-h, h) + v.tierLoad(i, h)
}

// tierLoad is the time to bring the reused blocks of row i up from lower tiers.
// Blocks that outstanding requests hold are up already.
func (v *View) tierLoad(i, hit int) float64 {
	if !v.r.tierLoad {
		return 0
	}
	s, from := 0.0, 0
	for t := range v.top + 1 {
		to := min(v.hit(v.Depth(i, kvindex.Tier(t))), hit)
		if t > 0 {
			from = max(from, min(v.hit(v.InFlight(i)), hit))
		}
		if to > from {
			s += v.r.opts.TierLoad[t] * float64(to-from)
			from = to
		}
	}
	return s
}

// fill reads an overlap and the trie into the tables.
func (v *View) fill(ov *kvindex.Overlap, req *Request) {
	r := v.r
	clear(v.depth[0])
	v.top = 0
	v.lowerBound = ov.LowerBound
	ov.Dense(v.depth[0], 0)
	for t := 1; t < kvindex.Tiers; t++ {
		tier := kvindex.Tier(t)
		if len(ov.Groups(tier)) == 0 && len(ov.Pairs(tier)) == 0 {
			continue
		}
		for u := v.top + 1; u <= t; u++ {
			copy(v.depth[u], v.depth[v.top])
		}
		v.top = t
		ov.Dense(v.depth[t], tier)
	}
	clear(v.inFlight)
	r.trie.walk(v.inFlight, req.Chain)
	v.complete = len(req.Chain)
	v.tokens = req.Tokens
	if v.tokens <= 0 {
		v.tokens = v.complete * r.opts.BlockTokens
	}
	v.blocks = max(v.complete, (v.tokens+r.opts.BlockTokens-1)/r.opts.BlockTokens)
	v.role = req.Role
}

// seconds converts to a Duration without overflow.
func seconds(s float64) time.Duration {
	const limit = float64(1<<63-1) / 1e9
	return time.Duration(max(-limit, min(limit*(1-1e-15), s)) * 1e9)
}
