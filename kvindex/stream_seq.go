package kvindex

import (
	"math"
	"time"
)

// sequence is where a stream stands in its engine's sequence of messages.
type sequence struct {
	state StreamState
	next  uint64 // number of the message that comes next; 0 and not started is the beginning
	seen  uint64 // one above the highest number seen on the live channel

	// Times by the engine's clock of the messages of this engine process with the
	// lowest and the highest number; 0 when messages have none. fence is that of
	// the last message of the process before it.
	first, newest, fence float64
	firstSeq             uint64

	// The replay that was asked for.
	asking   bool
	got      bool // its reply has begun
	from     uint64
	attempts int // how often in a row it was asked for

	lastResync time.Time // of resyncs that orphans asked for
}

// endMarker is the number that engines put on the end of a replay.
const endMarker = math.MaxUint64

// Apply takes a live message. The batch belongs to the caller again afterwards.
// Its Rank is not looked at: each rank has a stream of its own.
func (st *Stream) Apply(b *Batch) Result {
	q := &st.seq
	if !st.begin() {
		return st.end()
	}
	if b.Seq == endMarker {
		st.res.Counts.Malformed++
		return st.end()
	}
	switch q.state {
	case StreamInitial:
		st.firstContact(b)
	case StreamLive:
		switch {
		case b.Seq == q.next:
			st.note(b)
			st.advance(b)
		case b.Seq < q.next:
			st.back(b)
		default:
			st.gap(b)
		}
	case StreamGap, StreamRestoring:
		switch {
		case b.Seq < q.seen || b.Seq < q.next:
			st.back(b)
		case lastCleared(b) >= 0:
			st.barrier(b)
		case q.state == StreamRestoring:
			st.restoring(b)
		case b.Seq == q.next && len(st.buf.list) == 0:
			st.note(b)
			st.advance(b)
			st.settle()
		default:
			st.note(b)
			if !st.buf.push(b) {
				st.overflow(b)
			}
		}
	}
	return st.end()
}

// note takes down number and time of a live message.
func (st *Stream) note(b *Batch) {
	q := &st.seq
	q.seen = max(q.seen, b.Seq+1)
	st.noteTime(b)
}

// clockOf is the engine's time of a message, 0 if it does not say. What is no
// number, or no end, says nothing: kept as the newest it would hide every restart.
func clockOf(b *Batch) float64 {
	if b.Time > 0 && !math.IsInf(b.Time, 0) {
		return b.Time
	}
	return 0
}

func (st *Stream) noteTime(b *Batch) {
	q := &st.seq
	at := clockOf(b)
	if at == 0 {
		return
	}
	if q.first == 0 || b.Seq < q.firstSeq {
		q.first, q.firstSeq = at, b.Seq
	}
	if b.Seq+1 >= max(q.seen, q.next) {
		q.newest = at
	}
}

// advance applies a message and moves the cursor behind it.
func (st *Stream) advance(b *Batch) {
	st.apply(b, 0)
	st.seq.next = b.Seq + 1
}

// firstContact starts from the message that happens to be first. What came
// before it is asked for, and meanwhile the index shows a lower bound.
func (st *Stream) firstContact(b *Batch) {
	if clockOf(b) <= st.seq.fence { // the clock was set back, so it fences nothing off
		st.seq.fence = 0
	}
	st.note(b)
	if b.Seq == 0 || st.cfg.NoReplay || lastCleared(b) >= 0 {
		st.advance(b)
		st.setState(StreamLive)
		return
	}
	st.resync()
	st.restoring(b)
}

// resync asks for everything from the beginning.
func (st *Stream) resync() {
	st.setState(StreamRestoring)
	st.res.Counts.Resyncs++
	st.seq.attempts = 0
	st.ask(0)
}

// ask asks for a replay. The first is wanted at once, further ones after a wait
// that doubles.
func (st *Stream) ask(from uint64) {
	q := &st.seq
	var after time.Duration
	if q.attempts > 0 {
		after = st.cfg.ReplayBackoff << min(q.attempts-1, 10)
	}
	q.attempts++
	q.asking, q.got, q.from = true, false, from
	st.res.Counts.Replays++
	st.res.Replay = ReplayRequest{Wanted: true, From: from, After: after}
}

// gap handles a live message after missing ones.
func (st *Stream) gap(b *Batch) {
	st.res.Counts.Gaps++
	st.note(b)
	switch {
	case lastCleared(b) >= 0:
		st.barrier(b)
	case st.cfg.NoReplay:
		st.hole()
		st.advance(b)
	default:
		st.setState(StreamGap)
		st.seq.attempts = 0
		st.ask(st.seq.next)
		if !st.buf.push(b) {
			st.overflow(b)
		}
	}
}

// hole gives up missing messages: removes may be among them, so nothing that the
// slot was known to hold can be kept.
func (st *Stream) hole() {
	st.res.Counts.Holes++
	st.forget()
}

// restoring handles a live message while a replay from the beginning is wanted.
// Until the reply begins it is applied, and kept too, since the reply starts
// from nothing.
func (st *Stream) restoring(b *Batch) {
	q := &st.seq
	st.note(b)
	if !q.got {
		if b.Seq > q.next && q.next > 0 {
			st.res.Counts.Gaps++
			st.hole()
		}
		st.advance(b)
	}
	if !st.buf.push(b) { // the replay after this one brings what is dropped
		st.buf.drop()
		st.buf.push(b)
	}
}

// overflow ends a gap whose buffer is full before the replay came: the slot is
// cleared, goes on with what there is, and is built anew from the beginning.
func (st *Stream) overflow(b *Batch) {
	if st.seq.got { // the reply is coming in; ask again for what no longer fits
		st.buf.drop()
		return
	}
	st.drainAll()
	if b.Seq > st.seq.next {
		st.hole()
	}
	st.advance(b)
	st.resync()
}

// drainAll applies the buffer whatever is missing.
func (st *Stream) drainAll() {
	for _, b := range st.buf.list {
		if b.Seq < st.seq.next {
			continue
		}
		if b.Seq > st.seq.next {
			st.hole()
		}
		st.advance(b)
	}
	st.buf.drop()
}

// barrier handles a live message that says that the engine holds nothing: what
// was missing before it no longer matters.
func (st *Stream) barrier(b *Batch) {
	st.note(b)
	st.cancel()
	st.forget()
	st.apply(b, lastCleared(b))
	st.seq.next = b.Seq + 1
	st.setState(StreamLive)
}

// cancel drops the buffer and what is left of a replay.
func (st *Stream) cancel() {
	st.seq.asking, st.seq.got, st.seq.attempts = false, false, 0
	st.buf.drop()
}

// lastCleared is the index of the last event that clears the slot, or -1.
func lastCleared(b *Batch) int {
	for i := len(b.Events) - 1; i >= 0; i-- {
		if b.Events[i].Kind == EventCleared {
			return i
		}
	}
	return -1
}

// back handles a live message that goes back in the sequence: a duplicate, or
// the first word of a restarted engine. See Stream for the rule.
func (st *Stream) back(b *Batch) {
	q := &st.seq
	var restart bool
	at := clockOf(b)
	switch {
	case at > 0 && q.newest > 0:
		switch {
		case at > q.newest:
			restart = true
		case b.Seq == 0 && q.firstSeq == 0:
			restart = at != q.first
		default:
			restart = b.Seq >= q.firstSeq && at < q.first
		}
	case b.Seq >= q.seen:
		// A replay ran ahead of the live channel.
	default:
		restart = b.Seq == 0 || b.Seq+1 < q.seen
	}
	switch {
	case restart:
		st.res.Counts.Restarts++
		st.restart()
		st.firstContact(b)
	case q.state == StreamGap && b.Seq >= q.next && !st.buf.has(b.Seq):
		// A missing message that comes late, on a channel that does not keep order.
		if b.Seq != q.next {
			st.buf.push(b) // or else the replay brings it
			return
		}
		st.advance(b)
		st.drain()
		st.settle()
	default:
		st.res.Counts.Duplicates++
		q.seen = max(q.seen, b.Seq+1)
	}
}

// restart forgets the ended engine process.
func (st *Stream) restart() {
	q := &st.seq
	st.cancel()
	st.forget()
	st.groups.reset()
	*q = sequence{state: q.state, fence: max(q.fence, q.newest), lastResync: q.lastResync}
	st.setState(StreamInitial)
}

// Replay takes one message of the reply to a replay. The driver passes only
// messages of the newest request. In state initial a replay need not be asked
// for: it is taken to begin at 0.
func (st *Stream) Replay(b *Batch) Result {
	q := &st.seq
	if !st.begin() {
		return st.end()
	}
	if q.state == StreamInitial && !q.asking {
		st.setState(StreamRestoring)
		q.asking = true
	}
	switch {
	case b.Seq == endMarker:
		st.res.Counts.Malformed++
	case !q.asking, clockOf(b) > 0 && clockOf(b) <= q.fence:
		st.res.Counts.Stale++
	case q.state == StreamRestoring && !q.got:
		q.got = true
		if q.next > 0 {
			st.forget()
		}
		if b.Seq > q.from {
			st.res.Counts.Holes++
		}
		st.noteTime(b)
		st.advance(b)
	case b.Seq < q.next:
		q.got = true
		st.res.Counts.Duplicates++
	default:
		q.got = true
		if b.Seq > q.next {
			st.hole()
		}
		st.noteTime(b)
		st.advance(b)
	}
	return st.end()
}

// ReplayEnd says that the reply to a replay is complete (ok), or that it failed
// or was cut off. The Result may want another.
func (st *Stream) ReplayEnd(ok bool) Result {
	q := &st.seq
	if !st.begin() {
		return st.end()
	}
	if !q.asking {
		if q.state == StreamInitial && !ok && !st.cfg.NoReplay {
			st.resync() // the driver began by itself, and nothing has come
		}
		return st.end()
	}
	q.asking = false
	switch {
	case ok && q.got:
		st.drain()
		st.settle()
	case ok && q.state == StreamRestoring:
		// The engine has nothing to repeat: what was applied stands.
		st.buf.drop()
		st.setState(StreamLive)
	case ok:
		// The engine does not know the messages that it was seen to have sent.
		st.giveUp()
	case q.state == StreamRestoring && !q.got && q.attempts < st.cfg.MaxReplays:
		st.ask(0)
	case q.state == StreamRestoring && !q.got:
		st.buf.drop()
		st.setState(StreamLive)
	default:
		st.drain()
		st.settle()
	}
	return st.end()
}

// drain applies what the buffer holds in order, up to a gap.
func (st *Stream) drain() {
	n := 0
	for _, b := range st.buf.list {
		if b.Seq > st.seq.next {
			break
		}
		if b.Seq == st.seq.next {
			st.advance(b)
		}
		n++
	}
	st.buf.shift(n)
}

// settle ends a gap if nothing is missing any more, or asks for the rest.
func (st *Stream) settle() {
	q := &st.seq
	switch {
	case len(st.buf.list) == 0 && q.seen <= q.next:
		q.attempts, q.asking = 0, false
		st.setState(StreamLive)
	case q.asking:
		// The reply is still coming in.
	case q.attempts >= st.cfg.MaxReplays || st.cfg.NoReplay:
		st.giveUp()
	default:
		st.setState(StreamGap)
		st.ask(q.next)
	}
}

// giveUp goes on behind the missing messages.
func (st *Stream) giveUp() {
	q := &st.seq
	st.drainAll()
	if q.seen > q.next {
		st.hole()
		q.next = q.seen
	}
	q.attempts, q.asking = 0, false
	st.setState(StreamLive)
}

// A ResetReason says what is known of an engine besides its messages.
type ResetReason uint8

// Reasons of a Reset.
const (
	// ResetCache: the engine dropped its cache (a reset call, sleep). The
	// sequence goes on. Engines may announce it much later or never.
	ResetCache ResetReason = iota
	// ResetEngine: the engine process was replaced. The sequence starts anew.
	ResetEngine
)

// Reset takes news of the engine that did not come as a message: the slot is
// cleared.
func (st *Stream) Reset(why ResetReason) Result {
	q := &st.seq
	if !st.begin() {
		return st.end()
	}
	if why == ResetEngine {
		st.restart()
		return st.end()
	}
	st.cancel()
	st.forget()
	q.next = max(q.next, q.seen)
	if q.state != StreamInitial {
		st.setState(StreamLive)
	}
	return st.end()
}

// Tick lets time pass: orphans that waited OrphanTTL are given up, and then a
// replay from the beginning may be wanted. now must not go back.
func (st *Stream) Tick(now time.Time) Result {
	q := &st.seq
	if !st.begin() {
		return st.end()
	}
	expired := st.orph.expire(now, st.cfg.OrphanTTL)
	st.res.Counts.Expired += uint64(expired)
	if expired > 0 && q.state == StreamLive && !st.cfg.NoReplay &&
		(q.lastResync.IsZero() || now.Sub(q.lastResync) >= st.cfg.ResyncEvery) {
		q.lastResync = now
		st.resync()
	}
	return st.end()
}
