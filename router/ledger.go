package router

import (
	"math"

	"github.com/stator-go/stator/kvindex"
)

// A worker is the ledger of one slot. It outlives the slot's stay in the worker
// list for as long as leases point to it, and is taken up again when the slot
// comes back meanwhile.
type worker struct {
	Worker
	id      uint32 // in the trie; not given to another worker before the last lease ends
	pos     int    // in the worker list; -1 = not in it
	allowed uint64 // the pick that named it in Only
	refused uint64 // the pick that named it in Not
	passed  uint64 // the pick whose filters let it through

	outstanding  int // booked and not done
	decoding     int // past the first token
	promptTokens int // of outstanding requests

	// Requests without a first token, oldest first, linked through the leases, and
	// the sums of their estimates. headAt is when the present head became head, and
	// headSec a copy of its estimate, so that scoring touches no lease.
	head, tail *Lease
	pending    int
	pendSec    float64
	pendTok    int
	headAt     float64
	headSec    float64
	quiet      int  // pending ones that are quiet
	guessed    bool // headAt is an assumption

	active  int // distinct complete prompt blocks of outstanding requests
	private int // their other blocks: the incomplete last one and one for output

	load       Load
	hasLoad    bool
	loadAt     float64
	strangers  strangers
	fails      int // failures in a row
	pausedTill float64

	// Time integrals of decoding and of the context it reads, up to at, and the
	// prefills done so far: what the learner takes averages from.
	at, decodeSec, contextSec float64
	did                       prefilled
	group                     firstGroup

	picks, done, failed uint64
	blocks, matched     uint64 // of the picks: complete ones, and those known to be there
}

// strangers is what the engine's last report has beyond this router's ledger.
type strangers struct{ waiting, running, blocks int }

// A booking is what a lease added to the ledger; it is fixed when it is made.
type booking struct {
	w            *worker
	end          uint32 // the trie node in which the chain ends
	tokens       int    // prompt tokens
	private      int
	estNew       int     // tokens to compute
	estHit       int     // tokens reused
	estSec       float64 // seconds of prefill, alone on the engine
	estLoad      float64 // the part of estSec that is load, not compute
	pendingFirst bool
	quiet        bool
	due          float64 // seconds at the head after which a quiet one is taken to be out
	prev, next   *Lease
}

// queue is the seconds of prefill that wait on the worker: all that is pending
// but for what the head must have done since it became head.
func (w *worker) queue(now float64) float64 {
	if w.head == nil {
		return 0
	}
	return max(0, w.pendSec-min(now-w.headAt, w.headSec))
}

// context is the resident context that decoding reads: the share of the
// outstanding prompts that is past its first token.
func (w *worker) context() float64 {
	if w.outstanding == 0 {
		return 0
	}
	return float64(w.promptTokens) * float64(w.decoding) / float64(w.outstanding)
}

// advance brings the integrals up to now; call it before anything changes.
func (w *worker) advance(now float64) {
	if dt := now - w.at; dt > 0 {
		if w.decoding > 0 {
			w.decodeSec += float64(w.decoding) * dt
			w.contextSec += w.context() * dt
		}
		w.at = now
	}
}

// book adds a lease whose chain was the last one walked in the trie. The
// estimates in l.b are set.
func (r *Router) book(l *Lease, w *worker, req *Request, now float64) {
	b := &l.b
	b.w = w
	w.advance(now)
	var grown int
	b.end, grown = r.trie.insert(w.id, req.Chain)
	w.active += grown
	w.private += b.private
	if w.head == nil {
		w.head, w.headAt, w.headSec, w.guessed = l, now, b.estSec, false
	} else {
		w.tail.b.next, b.prev = l, w.tail
	}
	w.tail = l
	b.pendingFirst = true
	w.pending++
	w.pendSec += b.estSec
	w.pendTok += b.estNew
	w.outstanding++
	w.promptTokens += b.tokens
	w.picks++
	r.outstanding++
	if b.quiet {
		w.quiet++
		r.quiet++
	}
}

// firstToken takes a lease off the pending list.
func (r *Router) firstToken(l *Lease, now float64) {
	b, w := &l.b, l.b.w
	w.advance(now)
	if b.prev != nil {
		b.prev.b.next = b.next
	} else {
		w.head = b.next
	}
	if b.next != nil {
		b.next.b.prev = b.prev
	} else {
		w.tail = b.prev
	}
	b.prev, b.next = nil, nil
	b.pendingFirst = false
	w.pending--
	w.pendSec -= b.estSec
	w.pendTok -= b.estNew
	if w.pending == 0 {
		w.pendSec, w.pendTok = 0, 0 // no drift from sums of floats
	}
	w.headAt, w.guessed = now, false
	if b.quiet {
		w.quiet--
		r.quiet--
	}
	if w.head != nil {
		w.headSec = w.head.b.estSec
	}
	w.decoding++
}

// unbook takes away what book and firstToken added.
func (r *Router) unbook(l *Lease, now float64) {
	if l.b.pendingFirst {
		r.firstToken(l, now)
		l.b.w.guessed = l.b.quiet // it was out before
	}
	b, w := &l.b, l.b.w
	w.advance(now)
	w.outstanding--
	w.decoding--
	w.promptTokens -= b.tokens
	w.active -= r.trie.remove(w.id, b.end)
	w.private -= b.private
	w.done++
	r.outstanding--
	if w.pos < 0 && w.outstanding == 0 {
		r.forget(w)
	}
}

// flow is the decayed count and work of the requests booked in about the last
// minute, for workers of one role.
type flow struct {
	rate, work, at float64
}

// tau is the time constant of the decay in seconds.
const tau = 60

func (f *flow) decay(now float64) {
	if dt := now - f.at; dt > 0 {
		k := math.Exp(-dt / tau)
		f.rate *= k
		f.work *= k
		f.at = now
	}
}

// correct compares a report with the ledger. Only requests that the ledger does
// not have count: they came by another way, so their number is added and so are
// the blocks that the ledger's own do not explain.
func (w *worker) correct() {
	w.strangers = strangers{}
	ld := &w.load
	if !ld.HasQueue {
		return
	}
	more := max(0, ld.Waiting+ld.Running-w.outstanding)
	w.strangers.waiting = min(more, max(0, ld.Waiting-w.pending))
	w.strangers.running = more - w.strangers.waiting
	if more > 0 && ld.HasKV && w.KVBlocks > 0 {
		w.strangers.blocks = max(0, int(ld.KVUsage*float64(w.KVBlocks))-w.active-w.private)
	}
}

// slotLimit bounds slot numbers, since tables are indexed with them.
const slotLimit = 1 << 20

func validSlot(s kvindex.Slot) bool { return s.Num() > 0 && s.Num() < slotLimit && s.Gen() > 0 }
