package router

import (
	"math"
	"time"
)

// candidates puts the workers that may take the request into the view's rows, or
// says why there are none. Without filters, limits and pauses the list that
// SetWorkers made is used as it is.
func (r *Router) candidates(req *Request, avoid *worker) *RejectError {
	v := &r.view
	r.seq++
	if !req.Deadline.IsZero() && r.since(req.Deadline) <= v.now {
		return &RejectError{Reason: ReasonDeadline, Workers: len(r.rows)}
	}
	open := r.open[req.Role]
	plain := len(req.Only) == 0 && len(req.Not) == 0 && avoid == nil
	plain = plain && r.opts.Limits == (Limits{}) && v.now >= r.pausedTill && len(open) > 0
	r.narrower.plain = plain
	if plain {
		v.rows = open
		return nil
	}
	if r.narrower.over(len(open)) {
		r.settleAll(v.now) // which a pick that need not look at all leaves to narrow
	}
	if avoid != nil {
		avoid.refused = r.seq
	}
	for _, s := range req.Not {
		if w := r.slots[s]; w != nil {
			w.refused = r.seq
		}
	}
	for _, s := range req.Only {
		if w := r.slots[s]; w != nil {
			w.allowed = r.seq
		}
	}

	reject := &r.scratch
	*reject = RejectError{Workers: len(r.rows)}
	r.filtered = r.filtered[:0]
	paused := r.filter(req, reject, false)
	if len(r.filtered) == 0 && paused > 0 {
		// All are paused: a worker that may fail is better than none.
		*reject = RejectError{Workers: len(r.rows)}
		r.filter(req, reject, true)
	}
	if v.rows = r.filtered; len(v.rows) > 0 {
		return nil
	}
	switch {
	case reject.Workers == 0:
		reject.Reason = ReasonNoWorker
	case reject.Allowed == 0:
		reject.Reason = ReasonNotAllowed
	case reject.Draining == reject.Allowed:
		reject.Reason = ReasonDraining
	default:
		reject.Reason = ReasonOverloaded
		reject.RetryAfter = max(reject.RetryAfter, minRetryAfter)
	}
	out := *reject
	return &out
}

// minRetryAfter is the least hint that is worth giving.
const minRetryAfter = 50 * time.Millisecond

// filter appends the candidates to r.filtered and counts the others. It returns
// how many were left out only for being paused.
func (r *Router) filter(req *Request, reject *RejectError, evenPaused bool) (paused int) {
	now, soonest := r.view.now, math.Inf(1)
	for _, w := range r.rows {
		if !w.serves(req.Role) || w.refused == r.seq || len(req.Only) > 0 && w.allowed != r.seq {
			continue
		}
		reject.Allowed++
		switch {
		case w.Draining:
			reject.Draining++
		case r.over(w):
			reject.Overloaded++
			soonest = min(soonest, w.queue(now))
		case now < w.pausedTill && !evenPaused:
			paused++
		default:
			w.passed = r.seq
			r.filtered = append(r.filtered, w)
		}
	}
	if reject.Overloaded > 0 {
		reject.RetryAfter = seconds(soonest)
	}
	return paused
}

// over says whether a worker is over one of the limits.
func (r *Router) over(w *worker) bool {
	lim := &r.opts.Limits
	if lim.Outstanding > 0 && w.outstanding >= lim.Outstanding {
		return true
	}
	if !r.view.fresh(w) {
		return false
	}
	return lim.Waiting > 0 && w.load.HasQueue && w.load.Waiting >= lim.Waiting ||
		lim.KVUsage > 0 && w.load.HasKV && w.load.KVUsage >= lim.KVUsage
}
