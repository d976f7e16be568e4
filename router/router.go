package router

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// A Router picks workers and keeps the ledger of what it sent them. It is safe
// for concurrent use.
type Router struct {
	opts     Options
	index    Index
	tierLoad bool // some TierLoad is not zero
	epoch    time.Time
	overlaps sync.Pool // of *kvindex.Overlap

	mu       sync.Mutex // guards all below; held for a few microseconds
	last     float64    // what clock said last
	skew     float64    // what Options.Now has been set back by, in seconds
	view     View
	scores   []float64
	filtered []*worker // candidates after filters
	narrower narrower
	scratch  RejectError              // counts of the filters
	rows     []*worker                // the worker list
	open     [roles][]*worker         // those that are not draining, by what they may be used for
	slots    map[kvindex.Slot]*worker // rows, and gone workers with leases
	ids      []uint32                 // freed worker ids
	nextID   uint32
	trie     *trie

	flows      [roles]flow
	started    bool
	firstPick  float64
	seq        uint64  // picks attempted; marks the slots of Only and Not
	pausedTill float64 // the latest of any worker

	timing      Timing
	learn       *learner // nil = fixed
	outputMean  float64
	outputCount uint64
	tpot        float64 // seconds an output token, mean of recent completions
	tpotCount   uint64
	prefillMean float64 // of recent bookings
	promptMean  float64
	bookings    uint64

	outstanding    int
	quiet          int // quiet leases without a first token
	rejected       [Reasons]uint64
	unknownReports uint64
	ttft           errorMean
	cached         cachedCount
}

const roles = int(RoleDecode) + 1

// New makes a router. A nil index is allowed: then nothing is known of the
// workers' caches but what outstanding requests are putting there. Errors list
// every fault of the options. An index that tells its block size, as
// *kvindex.Index does, must have that of the options.
func New(index Index, opts *Options) (*Router, error) {
	o := opts.withDefaults(index)
	if err := o.validate(index); err != nil {
		return nil, err
	}
	r := &Router{
		opts:       o,
		index:      index,
		epoch:      o.Now(),
		slots:      make(map[kvindex.Slot]*worker),
		trie:       newTrie(),
		timing:     o.Timing,
		outputMean: o.OutputMean,
	}
	for _, v := range o.TierLoad {
		r.tierLoad = r.tierLoad || v > 0
	}
	if !o.FixedTiming {
		r.learn = newLearner(&o.Timing)
	}
	r.overlaps.New = func() any { return new(kvindex.Overlap) }
	r.view.r = r
	r.narrower.bound = o.MaxCandidates
	if p, ok := o.Policy.(WholeLister); ok && p.WholeList() {
		r.narrower.bound = -1
	}
	r.resize(0)
	return r, nil
}

// BlockTokens is the number of tokens of a block of the chains that Pick takes.
func (r *Router) BlockTokens() int { return r.opts.BlockTokens }

// Scheme is the hash function of the index's blocks, which that of the chains
// must be too, when the index says it by a method Scheme() block.Scheme, as
// *kvindex.Index has one. Empty means that it does not.
func (r *Router) Scheme() block.Scheme {
	if x, ok := r.index.(interface{ Scheme() block.Scheme }); ok {
		return x.Scheme()
	}
	return ""
}

// clock is the time in seconds since the router was made, under the mutex. It
// never goes back: when Options.Now is set back, time goes on from where it was.
func (r *Router) clock() float64 {
	now := r.since(r.opts.Now())
	if now < r.last {
		r.skew += r.last - now
		now = r.last
	}
	r.last = now
	return now
}

// since puts a time of Options.Now on the scale of clock.
func (r *Router) since(t time.Time) float64 { return t.Sub(r.epoch).Seconds() + r.skew }

// SetWorkers replaces the worker list. Workers are told apart by Slot: one that
// stays keeps its ledger, one that leaves takes no more requests while its
// leases stay valid, and one that comes back with leases still running gets
// them back. An error names every bad entry and leaves the old list in use.
// The slice is not kept.
func (r *Router) SetWorkers(workers []Worker) error {
	var errs []error
	top := uint32(0)
	nums := make(map[uint32]struct{}, len(workers))
	for i, w := range workers {
		num := w.Slot.Num()
		if !validSlot(w.Slot) {
			errs = append(errs, fmt.Errorf("%w: entry %d: slot %v, want number and generation from 1, number below %d", ErrWorkers, i, w.Slot, slotLimit))
			continue
		}
		if _, twice := nums[num]; twice {
			errs = append(errs, fmt.Errorf("%w: entry %d: slot number %d twice", ErrWorkers, i, num))
		}
		if int(w.Role) >= roles {
			errs = append(errs, fmt.Errorf("%w: entry %d: unknown role %d", ErrWorkers, i, w.Role))
		}
		if w.KVBlocks < 0 {
			errs = append(errs, fmt.Errorf("%w: entry %d: KVBlocks is %d, want >= 0", ErrWorkers, i, w.KVBlocks))
		}
		nums[num] = struct{}{}
		top = max(top, num)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.rows
	for _, w := range old {
		w.pos = -1
	}
	r.rows = make([]*worker, 0, len(workers))
	r.open = [roles][]*worker{}
	for _, given := range workers {
		w := r.slots[given.Slot]
		if w == nil {
			w = &worker{id: r.newID(), at: r.clock()}
			r.slots[given.Slot] = w
		}
		w.Worker, w.pos = given, len(r.rows)
		r.rows = append(r.rows, w)
		for role := range roles {
			if !w.Draining && w.serves(Role(role)) {
				r.open[role] = append(r.open[role], w)
			}
		}
	}
	for _, w := range old {
		if w.pos >= 0 {
			continue
		}
		if f, ok := r.opts.Policy.(Forgetter); ok {
			f.Forget(w.Slot)
		}
		w.hasLoad, w.strangers = false, strangers{}
		if w.outstanding == 0 {
			r.forget(w)
		}
	}
	r.resize(top)
	return nil
}

// serves says whether the worker may take requests of a role.
func (w *worker) serves(role Role) bool {
	return role == RoleAny || w.Role == RoleAny || w.Role == role
}

func (r *Router) newID() uint32 {
	if n := len(r.ids); n > 0 {
		id := r.ids[n-1]
		r.ids = r.ids[:n-1]
		return id
	}
	r.nextID++
	return r.nextID - 1
}

// forget drops a worker that left and has no leases.
func (r *Router) forget(w *worker) {
	delete(r.slots, w.Slot)
	r.ids = append(r.ids, w.id)
}

// resize makes the tables fit slot numbers up to top and all worker ids.
func (r *Router) resize(top uint32) {
	for t := range r.view.depth {
		r.view.depth[t] = make([]uint32, top+1)
	}
	r.view.inFlight = make([]uint32, r.nextID)
	r.view.rows, r.view.top = nil, 0
	r.scores = make([]float64, len(r.rows))
	r.narrower.resize(r, top)
}

// maxReported is the greatest number of requests that a report may name; an
// engine does not hold a million.
const maxReported = 1 << 20

// Report takes what an engine says about itself. It is kept apart from the
// ledger, with its age, and corrects it only by requests the ledger does not
// have. Reports older than the last one and those of unknown slots are dropped.
// A Load without At is of now; figures that make no sense count as missing.
func (r *Router) Report(s kvindex.Slot, load Load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.slots[s]
	if w == nil || w.pos < 0 {
		r.unknownReports++
		return
	}
	at := r.clock()
	if !load.At.IsZero() {
		at = min(at, r.since(load.At))
	}
	if w.hasLoad && at < w.loadAt {
		return
	}
	if load.Running < 0 || load.Running > maxReported || load.Waiting < 0 || load.Waiting > maxReported {
		load.HasQueue = false
	}
	if math.IsNaN(load.KVUsage) || load.KVUsage < 0 {
		load.HasKV = false
	}
	load.KVUsage = min(load.KVUsage, 1)
	w.load, w.hasLoad, w.loadAt = load, true, at
	r.settle(w, r.last)
	w.correct()
}

// Pick chooses a worker and books the request on it. It does not block. The
// request is not kept. Refusals are *RejectError and unwrap to the sentinel of
// their reason; a malformed request is ErrRequest.
func (r *Router) Pick(req *Request) (*Lease, error) { return r.place(req, nil, nil) }

// place is Pick, and Retry when old is not nil.
func (r *Router) place(req *Request, old *Lease, cause error) (*Lease, error) {
	if err := r.check(req); err != nil {
		if old != nil {
			old.Done(cause)
		}
		return nil, err
	}
	l := &Lease{r: r}
	var (
		reject  *RejectError
		outcome Outcome
		ended   bool
	)
	if r.index == nil {
		var none kvindex.Overlap
		reject, outcome, ended = r.decide(l, req, &none, old, cause)
	} else {
		ov := r.overlaps.Get().(*kvindex.Overlap)
		r.index.Lookup(ov, req.Chain)
		reject, outcome, ended = r.decide(l, req, ov, old, cause)
		r.overlaps.Put(ov)
	}
	h := &r.opts.Hooks
	if ended && h.OnDone != nil {
		h.OnDone(outcome)
	}
	if reject != nil {
		if h.OnReject != nil {
			h.OnReject(reject, req)
		}
		return nil, reject
	}
	if h.OnPick != nil {
		h.OnPick(&l.dec, req)
	}
	return l, nil
}

// maxTokens is the greatest length of a prompt: above all that models take, and
// low enough that no sum of the ledger overflows.
const maxTokens = 1 << 26

// check finds what no pick can be made of.
func (r *Router) check(q *Request) error {
	switch {
	case q == nil:
		return fmt.Errorf("%w: nil", ErrRequest)
	case q.Tokens < 0 || q.MaxTokens < 0:
		return fmt.Errorf("%w: negative token count", ErrRequest)
	case q.Tokens > maxTokens:
		return fmt.Errorf("%w: Tokens is %d, want at most %d", ErrRequest, q.Tokens, maxTokens)
	case len(q.Chain) > maxTokens/r.opts.BlockTokens:
		return fmt.Errorf("%w: Chain has %d blocks, want at most %d of %d tokens", ErrRequest, len(q.Chain), maxTokens/r.opts.BlockTokens, r.opts.BlockTokens)
	case q.Tokens > 0 && len(q.Chain) > q.Tokens/r.opts.BlockTokens:
		return fmt.Errorf("%w: Chain has %d blocks, want at most %d, as Tokens is %d and a block has %d", ErrRequest, len(q.Chain), q.Tokens/r.opts.BlockTokens, q.Tokens, r.opts.BlockTokens)
	case int(q.Role) >= roles:
		return fmt.Errorf("%w: unknown role %d", ErrRequest, q.Role)
	}
	return nil
}

// decide ends old, if any, and scores and books, all under one hold of the mutex.
func (r *Router) decide(l *Lease, req *Request, ov *kvindex.Overlap, old *Lease, cause error) (reject *RejectError, out Outcome, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	var avoid *worker
	if old != nil {
		out, ended = r.end(old, now, cause)
		avoid = r.slots[old.dec.Slot] // which may have left and come back
	}
	if !r.started {
		r.started, r.firstPick = true, now
	}
	v := &r.view
	v.now = now
	if !r.narrower.over(len(r.open[req.Role])) {
		r.settleAll(now)
	}
	if reject = r.candidates(req, avoid); reject == nil {
		v.fill(ov, req)
		narrowed := r.narrow(ov)
		dst, best := r.score(req)
		if best < 0 && narrowed {
			r.widen() // a worker that was not drawn is better than none
			dst, best = r.score(req)
		}
		if best >= 0 {
			r.assign(l, req, best, dst)
			return nil, out, ended
		}
		reject = &RejectError{Reason: ReasonVetoed, Workers: len(r.rows), Allowed: len(v.rows)}
	}
	r.rejected[reject.Reason]++
	return reject, out, ended
}

// score has the policy fill in the rows' scores and finds the best row, -1 for none.
func (r *Router) score(req *Request) (scores []float64, best int) {
	v := &r.view
	scores = r.scores[:len(v.rows)]
	r.opts.Policy.Score(scores, v, req)
	return scores, v.least(scores)
}

// least is the row with the smallest score, ties drawn at random; -1 when there
// is none.
func (v *View) least(dst []float64) int {
	const tie = 1e-12
	best, at, n := math.Inf(1), -1, 0
	for i, s := range dst {
		if s < best-tie {
			best, at, n = s, i, 1
		} else if s <= best+tie && at >= 0 {
			if n++; v.Intn(n) == 0 {
				at = i
			}
		}
	}
	return at
}

// assign writes the decision for row best and books it.
func (r *Router) assign(l *Lease, req *Request, best int, scores []float64) {
	v := &r.view
	w := v.rows[best]
	policy, ok := r.opts.Policy.(Expected)
	if !ok {
		policy = Expected{}
	}
	e := policy.estimator(v, req)

	d := &l.dec
	d.Slot, d.Score = w.Slot, scores[best]
	d.Reused, d.InFlight = v.reused(best)
	d.Hit, d.Slowdown = e.explain(best, &d.Cost)
	d.Tokens, d.Blocks = v.tokens, v.complete
	d.Candidates, d.LowerBound = len(v.rows), v.lowerBound
	_, d.LoadAge, _ = v.Load(best)
	v.alternates(d, &e, best, scores)

	w.blocks += uint64(v.complete)
	for _, n := range d.Reused {
		w.matched += uint64(n)
	}

	held := v.Held(best)
	b := &l.b
	b.tokens, b.private = v.tokens, v.blocks-v.complete+1
	b.estHit = d.Hit
	b.estNew = v.tokens - d.Hit
	b.estSec = v.Prefill(best, held)
	b.quiet, b.due = req.Quiet, b.estSec*d.Slowdown
	b.estLoad = r.timing.Load*float64(d.Hit) + v.tierLoad(best, d.Hit)
	l.predicted = d.Cost.TTFT()
	l.pickedAt = v.now

	f := &r.flows[v.role]
	f.decay(v.now)
	f.rate++
	f.work += b.estSec * r.timing.slowdown(w.decoding, w.context())
	r.bookings++
	k := max(1/float64(r.bookings), 1.0/200)
	r.prefillMean += (b.estSec - r.prefillMean) * k
	r.promptMean += (float64(b.tokens) - r.promptMean) * k

	if a, ok := r.opts.Policy.(Assigner); ok {
		a.Assigned(v, best, req)
	}
	r.book(l, w, req, v.now)
}

// alternates puts the next best rows into the decision. The scan starts at a
// random row, so that equal alternates do not come in the same order each time.
func (v *View) alternates(d *Decision, e *estimator, best int, scores []float64) {
	var (
		top [maxAlternates]int
		n   int
	)
	start := 0
	if len(scores) > 2 {
		start = v.Intn(len(scores))
	}
	for k := range scores {
		i := start + k
		if i >= len(scores) {
			i -= len(scores)
		}
		s := scores[i]
		if i == best || !(s < math.Inf(1)) {
			continue
		}
		if n == maxAlternates && !(s < scores[top[n-1]]) {
			continue
		}
		at := min(n, maxAlternates-1)
		for at > 0 && s < scores[top[at-1]] {
			top[at] = top[at-1]
			at--
		}
		top[at] = i
		n = min(n+1, maxAlternates)
	}
	d.Alternates = d.alternates[:n]
	for k, i := range top[:n] {
		a := &d.alternates[k]
		a.Slot, a.Score, a.Reuse = v.rows[i].Slot, scores[i], v.Held(i)
		e.cost(i, &a.Cost)
	}
}
