package router

// A quiet request is one whose first token nobody sees: its answer comes whole.
// Left to itself it would wait in the ledger's queue until its end, and make the
// worker look as busy with prefill as it is with decoding. So the ledger assumes:
//
//   - when a quiet request has headed its worker's queue for as long as its
//     prefill was expected to take at booking, beside what decoded there then
//     (booking.due), its first token is out, at that very moment;
//   - when a request that was booked later has its first token, those of the quiet
//     ones before it are out too, since engines prefill in order of arrival.
//
// A request that is not quiet is never moved, and quiet ones behind it wait for
// it. Both rules look at the ledger and the time only, so it does not matter when
// they are applied; it is done before a pick, a report and Stats look at the
// worker, and before one of its leases changes. Nothing is learned from an
// assumption: neither from the request's own times nor from those of a request
// whose prefill is taken to have begun at an assumed moment.

// settle applies the first rule to a worker.
func (r *Router) settle(w *worker, now float64) {
	for w.head != nil && w.head.b.quiet {
		out := w.headAt + w.head.b.due
		if out > now {
			return
		}
		r.assume(w.head, out)
	}
}

// settleAll is settle for the whole worker list.
func (r *Router) settleAll(now float64) {
	if r.quiet == 0 {
		return
	}
	for _, w := range r.rows {
		if w.quiet > 0 {
			r.settle(w, now)
		}
	}
}

// overtake applies both rules before a lease's first token is noted.
func (r *Router) overtake(l *Lease, now float64) {
	w := l.b.w
	if w.quiet == 0 {
		return
	}
	r.settle(w, now)
	if !l.b.pendingFirst {
		return
	}
	for e := w.head; e != l && w.quiet > 0; {
		next := e.b.next
		if e.b.quiet {
			r.assume(e, now)
		}
		e = next
	}
}

// assume takes a quiet lease for one whose first token came at the given time.
func (r *Router) assume(l *Lease, at float64) {
	w := l.b.w
	if g := &w.group; g.open {
		if at-g.at > groupWindow {
			r.flush(w)
		} else {
			g.open = false // of one step with it, whose work is not known
		}
	}
	w.did.add(&l.b)
	r.firstToken(l, at)
	w.guessed = true
	l.state.Store(leaseAssumed)
}
