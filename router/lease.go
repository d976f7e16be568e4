package router

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/stator-go/stator/kvindex"
)

// A Lease is one booked request. Tell it of the first token, of progress and of
// the end; every method may be called from any goroutine, any number of times
// and in any order, and does nothing after Done. Leases are not reused, so a late
// call can never touch another request's booking.
type Lease struct {
	r         *Router
	state     atomic.Uint32 // written under r.mu
	tokens    atomic.Int64
	cached    atomic.Int64 // reported by Cached, plus 1; 0 = not reported
	pickedAt  float64
	firstAt   float64
	predicted float64 // seconds to the first token

	// The worker's integrals and prefills at the first token.
	decodeAt, contextAt float64
	didAt               prefilled

	b   booking
	dec Decision
}

const (
	leaseBooked  = iota
	leaseAssumed // quiet, and taken to be past its first token
	leaseDecoding
	leaseDone
)

// Slot is where to send the request.
func (l *Lease) Slot() kvindex.Slot { return l.dec.Slot }

// Decision says why the request goes to Slot. It is read-only and valid until
// Done.
func (l *Lease) Decision() *Decision { return &l.dec }

// FirstToken notes that the first output token has come: the prefill is done and
// the request decodes. Later calls do nothing, nor does one that comes after the
// router has assumed as much of a quiet request.
func (l *Lease) FirstToken() {
	if l.state.Load() != leaseBooked {
		return
	}
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state.Load() != leaseBooked {
		return
	}
	r.first(l, r.clock())
}

// Tokens notes n more output tokens, the first one included; it implies
// FirstToken. It is cheap enough for every chunk of a stream.
func (l *Lease) Tokens(n int) {
	if n <= 0 || l.state.Load() == leaseDone {
		return
	}
	if l.tokens.Add(int64(min(n, maxTokens))) > maxTokens {
		l.tokens.Store(maxTokens) // an engine's nonsense must not overflow
	}
	l.FirstToken()
}

// Output sets the number of output tokens, for a caller that learns the number at the
// end only, or better than by counting. It says nothing of when the first token
// came. The last call counts.
func (l *Lease) Output(n int) {
	if n >= 0 {
		l.tokens.Store(int64(min(n, maxTokens)))
	}
}

// Cached notes how many prompt tokens the engine says it reused, so that Stats
// can set them against what was expected. The last call before Done counts.
func (l *Lease) Cached(tokens int) {
	if tokens >= 0 {
		l.cached.Store(int64(tokens) + 1)
	}
}

// Done ends the lease and takes its booking away. Only the first call counts, so
// it may be deferred. A nil error is a completion. An error that is not
// context.Canceled counts as a failure of the worker: a few in a row pause it,
// see Options.FailureLimit. Pass context.Canceled when the client went away.
//
// Done without FirstToken means both. If exactly one token was reported, this
// is the moment of the first token; otherwise that moment is not known, and
// nothing is learned from it.
func (l *Lease) Done(err error) {
	if l.state.Load() == leaseDone {
		return
	}
	r := l.r
	r.mu.Lock()
	out, ended := r.end(l, r.clock(), err)
	r.mu.Unlock()
	if ended && r.opts.Hooks.OnDone != nil {
		r.opts.Hooks.OnDone(out)
	}
}

// Retry moves the request to another worker: it ends this lease with err and
// picks anew with its slot left out, in one step, so that no other pick sees the
// request on neither or both. It is what to do when a worker failed before the
// first byte. If nothing can be picked, the lease is ended all the same. To
// leave out all workers that were tried, collect their slots in req.Not.
func (l *Lease) Retry(req *Request, err error) (*Lease, error) {
	return l.r.place(req, l, err)
}

// first notes the first token, under the mutex.
func (r *Router) first(l *Lease, now float64) {
	r.overtake(l, now)
	if l.state.Load() != leaseBooked {
		return
	}
	r.observeFirst(l, now)
	r.firstToken(l, now)
	r.ttft.add(l.predicted, now-l.pickedAt)
	w := l.b.w
	l.firstAt = now
	l.decodeAt, l.contextAt, l.didAt = w.decodeSec, w.contextSec, w.did
	l.state.Store(leaseDecoding)
}

// end is Done under the mutex; false when the lease had ended before.
func (r *Router) end(l *Lease, now float64, err error) (Outcome, bool) {
	if l.state.Load() == leaseDone {
		return Outcome{}, false
	}
	w, tokens := l.b.w, int(l.tokens.Load())
	if err == nil {
		r.overtake(l, now)
	} else if w.quiet > 0 {
		r.settle(w, now)
	}
	if err == nil && l.state.Load() == leaseBooked {
		if tokens == 1 {
			r.first(l, now)
		} else {
			w.did.add(&l.b)
		}
	}
	seen := l.state.Load() == leaseDecoding
	if err == nil && seen {
		r.observeDone(l, now, tokens)
	}
	r.unbook(l, now)
	l.state.Store(leaseDone)

	switch {
	case err == nil:
		w.fails = 0
		if tokens > 0 && !r.opts.FixedOutputMean {
			r.outputCount++
			r.outputMean += (float64(tokens) - r.outputMean) * max(1/float64(r.outputCount+outputPrior), 1.0/outputMemory)
		}
	case !errors.Is(err, context.Canceled):
		w.failed++
		w.fails++
		if r.opts.FailureLimit > 0 && w.fails >= r.opts.FailureLimit {
			w.pausedTill = now + r.opts.FailurePause.Seconds()
			r.pausedTill = max(r.pausedTill, w.pausedTill)
		}
	}
	out := Outcome{
		Decision: &l.dec, Err: err, Tokens: tokens, CachedTokens: int(l.cached.Load()) - 1,
		PredictedTTFT: seconds(l.predicted), Total: seconds(now - l.pickedAt),
	}
	if seen {
		out.TTFT = seconds(l.firstAt - l.pickedAt)
	}
	if err == nil && out.CachedTokens >= 0 {
		r.cached.add(l.dec.Hit, out.CachedTokens, l.b.tokens)
	}
	return out, true
}

// The running mean of output lengths starts as if outputPrior requests of the
// given length had been seen and forgets over outputMemory.
const (
	outputPrior  = 4
	outputMemory = 1000
)
