package kvindex

import (
	"errors"
	"math/bits"

	"github.com/stator-go/stator/kvindex/block"
)

// apply applies the events of a message from the one numbered from on.
func (st *Stream) apply(b *Batch, from int) {
	c := &st.res.Counts
	c.Messages++
	c.Malformed += uint64(b.Malformed)
	c.Events += uint64(len(b.Events) - from)
	for i := from; i < len(b.Events); i++ {
		e := &b.Events[i]
		switch e.Kind {
		case EventStored:
			if st.wanted(e) {
				st.stored(e)
			}
		case EventRemoved:
			if st.wanted(e) {
				st.removed(e)
			}
		case EventCleared:
			c.Cleared++
			st.forget()
		case EventLost:
			c.Lost++
			st.forget()
		default:
			c.UnknownEvent++
		}
	}
}

// wanted says whether the blocks of an event can be indexed at all, and counts
// them when not.
func (st *Stream) wanted(e *Event) bool {
	n := uint64(len(e.Hashes))
	switch {
	case e.Remote:
		st.res.Counts.Remote += n
	case int(e.Tier) >= Tiers:
		st.res.Counts.UnknownTier += n
	default:
		return st.usable(e)
	}
	return false
}

// stored handles a store event, and then what was parked for its blocks.
func (st *Stream) stored(e *Event) {
	c, n := &st.res.Counts, len(e.Hashes)
	if len(e.Tokens) == 0 {
		st.storedKnown(e)
		return
	}
	size := st.blockSize(e)
	if n == 0 || size <= 0 || size > len(e.Tokens) || len(e.Tokens) != n*size {
		c.WrongLength += uint64(max(n, 1))
		return
	}
	if e.Tier == TierGPU && st.cfg.EngineBlock == 0 { // the last of a chain may be shorter
		st.engineBlock = max(st.engineBlock, size)
	}
	if st.repeated(e) {
		c.Repeated += uint64(n)
		return
	}
	if st.store(e, size) == outNoParent {
		c.Parked += uint64(n)
		c.Dropped += uint64(st.orph.park(e, size))
	}
	st.attach()
}

// attach stores what was parked for blocks that have come, and what was parked
// for that in turn.
func (st *Stream) attach() {
	for len(st.arrived) > 0 {
		last := len(st.arrived) - 1
		name := st.arrived[last]
		st.arrived = st.arrived[:last]
		for p := st.orph.take(name); p != nil; p = st.orph.take(name) {
			if !st.adopt(p) {
				break
			}
		}
	}
}

// adopt stores an orphan. It reports false, and parks it again, when its parent
// is not the block that has come but another of that name. Blocks that were
// removed while parked are needed for the hashes of those after them: they are
// stored and removed again.
func (st *Stream) adopt(p *orphan) bool {
	t, again := p.ev.Tier, 0 // gone[:again] are held already, by another store
	for i, name := range p.gone {
		if st.holds(t, name) {
			p.gone[i], p.gone[again] = p.gone[again], name
			again++
		}
	}
	switch st.store(&p.ev, p.ev.BlockSize) {
	case outNoParent:
		st.orph.link(p)
		return false
	case outStored:
		st.res.Counts.Attached += uint64(st.orph.live(p))
	}
	if !st.ignoreRepeats {
		for _, name := range p.gone[:again] {
			st.copies.release(t, name)
		}
	}
	// The others were stored just now, as a copy where the block is held under
	// another name: then that copy is what goes.
	st.names = st.names[:0]
	for _, name := range p.gone[again:] {
		if st.ignoreRepeats || !st.copies.release(t, name) {
			st.names = append(st.names, name)
		}
	}
	if len(st.names) > 0 {
		st.drop(t, st.names)
	}
	return true
}

// An outcome says what became of a store event.
type outcome uint8

const (
	outStored outcome = iota
	outNoParent
	outRefused
)

// blockSize is the number of tokens per block of a store event, or 0 if it
// cannot be told. Offload events may leave it out and name bigger blocks.
func (st *Stream) blockSize(e *Event) int {
	switch {
	case e.BlockSize > 0:
		return e.BlockSize
	case e.Tier == TierGPU && st.engineBlock > 0:
		return st.engineBlock
	case len(e.Hashes) > 0 && len(e.Tokens)%len(e.Hashes) == 0:
		return len(e.Tokens) / len(e.Hashes)
	}
	return 0
}

// repeated says whether an event names a hash twice, its parent included. No
// chain does: such an event is garbage.
func (st *Stream) repeated(e *Event) bool {
	n := len(e.Hashes) + 1
	shift := 64 - bits.Len(uint(2*n))
	if size := 1 << (64 - shift); cap(st.seen) < size {
		st.seen = make([]uint64, size)
	} else {
		st.seen = st.seen[:size]
		clear(st.seen)
	}
	zero := false
	if e.HasParent && st.insertSeen(e.Parent, shift, &zero) {
		return true
	}
	for _, name := range e.Hashes {
		if st.insertSeen(name, shift, &zero) {
			return true
		}
	}
	return false
}

// insertSeen puts a name into the table of seen ones, at most half full, and
// reports whether it was there. 0 marks an empty place, so the name 0 is kept
// apart.
func (st *Stream) insertSeen(name uint64, shift int, zero *bool) bool {
	if name == 0 {
		was := *zero
		*zero = true
		return was
	}
	mask := len(st.seen) - 1
	for i := int(name * 0x9e3779b97f4a7c15 >> shift); ; i = (i + 1) & mask {
		switch st.seen[i] {
		case 0:
			st.seen[i] = name
			return false
		case name:
			return true
		}
	}
}

// store stores the blocks of a checked event.
func (st *Stream) store(e *Event, size int) outcome {
	var on storeBase
	if !st.findBase(e, &on) {
		return outNoParent
	}
	var hasher *block.Hasher
	var err error
	if on.known {
		hasher, err = st.hash.numbered(on.id)
	} else {
		hasher, on.id, err = st.hash.named(on.scope.adapter, on.scope.tenant)
	}
	if err != nil {
		st.refuse(len(e.Hashes), err)
		return outRefused
	}
	if st.spread = st.spread[:0]; len(e.Media) > 0 && !st.spreadMedia(e, size) {
		st.refuse(len(e.Hashes), nil)
		return outRefused
	}
	if size != st.c || on.unit != nil {
		return st.storeUnits(e, size, &on, hasher)
	}
	st.chain = hasher.Extend(st.chain[:0], on.hash, on.has, e.Tokens, e.Media)
	names := e.Hashes
	if on.id != 0 || st.alias.scopes {
		st.alias.scopes = true
		if names = st.distinct(e.Tier, names, st.chain); names == nil {
			return outRefused
		}
	}
	st.dup, err = st.ix.storeNamed(st.slot, e.Tier, on.ref, on.id, names, st.chain, st.dup[:0])
	if err != nil {
		if errors.Is(err, ErrParent) && e.HasParent { // gone since it was found
			return outNoParent
		}
		st.refuse(len(names), err)
		return outRefused
	}
	st.res.Counts.Stored += uint64(len(names) - len(st.dup))
	if len(st.dup) > 0 {
		st.copied(e.Tier, st.dup)
	}
	if len(st.units.pending) > 0 {
		for i, h := range st.chain {
			st.wake(h, names[i])
		}
		st.flushUnits()
	}
	if st.orph.first != nil {
		st.arrived = append(st.arrived, e.Hashes...)
	}
	return outStored
}

// refuse counts blocks that cannot be stored and keeps the first reason.
func (st *Stream) refuse(blocks int, err error) {
	st.res.Counts.Refused += uint64(blocks)
	if st.res.Err == nil {
		st.res.Err = err
	}
}

// copied counts further copies of blocks that are held.
func (st *Stream) copied(t Tier, names []uint64) {
	if st.ignoreRepeats {
		st.res.Counts.Repeats += uint64(len(names))
		return
	}
	st.res.Counts.Copies += uint64(len(names))
	for _, name := range names {
		st.copies.add(t, name)
	}
}

// storedKnown handles a store without tokens: blocks known from elsewhere are in
// this tier too.
func (st *Stream) storedKnown(e *Event) {
	c := &st.res.Counts
	names := e.Hashes
	if len(st.units.byName) > 0 || st.alias.n > 0 {
		st.names = st.names[:0]
		for _, name := range names {
			switch u := st.units.byName[name]; {
			case u != nil && u.held != 0:
				st.holdUnit(u, e.Tier)
			case st.alias.n > 0 && len(st.alias.of[name]) > 0:
				c.UnknownBlock++ // which of them is not said
			default:
				st.names = append(st.names, name)
			}
		}
		st.flushUnits()
		names = st.names
	}
	if len(names) == 0 {
		return
	}
	var unknown int
	var err error
	st.dup, unknown, err = st.ix.storeKnown(st.slot, e.Tier, names, st.dup[:0])
	c.UnknownBlock += uint64(unknown)
	if err != nil {
		st.refuse(len(names)-unknown, err)
		return
	}
	c.Stored += uint64(len(names) - unknown - len(st.dup))
	if len(st.dup) > 0 {
		st.copied(e.Tier, st.dup)
	}
}

// removed handles a remove event: one copy of each block is gone.
func (st *Stream) removed(e *Event) {
	remaining := e.Remaining
	if remaining != nil && len(remaining) != len(e.Hashes) {
		st.res.Counts.WrongLength += uint64(len(e.Hashes))
		remaining = nil
	}
	if remaining == nil && st.plain(e.Tier) {
		st.dropHeld(e.Tier, e.Hashes)
		return
	}
	st.names = st.names[:0]
	for i, name := range e.Hashes {
		switch {
		case remaining != nil && remaining[i] > 0:
			if !st.holds(e.Tier, name) {
				st.res.Counts.UnknownRemoved++
				continue
			}
			st.copies.set(e.Tier, name, uint32(min(remaining[i], 1<<30)))
			st.res.Counts.Released++
		case remaining == nil && len(st.alias.of[name]) == 0 && st.copies.release(e.Tier, name):
			st.res.Counts.Released++
		default:
			st.copies.drop(e.Tier, name)
			st.names = append(st.names, name)
		}
	}
	st.drop(e.Tier, st.names)
}

// plain says that nothing but the index knows of the slot's blocks, so that a
// remove can pass straight through.
func (st *Stream) plain(t Tier) bool {
	return len(st.copies.n[t]) == 0 && st.alias.n == 0 && len(st.units.byName) == 0 && st.orph.first == nil
}

func (st *Stream) holds(t Tier, name uint64) bool {
	if u := st.units.byName[name]; u != nil && u.held&(1<<t) != 0 {
		return true
	}
	return st.ix.holdsNamed(st.slot, t, name)
}

// drop takes blocks out of a tier, wherever they are kept. A name that stands
// for several blocks loses them all: which one the engine dropped is not said.
func (st *Stream) drop(t Tier, names []uint64) {
	if st.plain(t) {
		st.dropHeld(t, names)
		return
	}
	keep := names[:0]
	for _, name := range names {
		if u := st.units.byName[name]; u != nil && u.held&(1<<t) != 0 {
			st.dropUnit(u, t)
			continue
		}
		if st.alias.n > 0 && st.dropAliases(t, name) && !st.ix.holdsNamed(st.slot, t, name) {
			continue
		}
		if st.orph.first != nil && !st.ix.holdsNamed(st.slot, t, name) && st.orph.remove(t, name) {
			st.res.Counts.Unparked++
			continue
		}
		keep = append(keep, name)
	}
	st.flushUnits()
	st.dropHeld(t, keep)
}

func (st *Stream) dropHeld(t Tier, names []uint64) {
	if len(names) == 0 {
		return
	}
	unknown := st.ix.removeNamed(st.slot, t, names)
	st.res.Counts.Removed += uint64(len(names) - unknown)
	st.res.Counts.UnknownRemoved += uint64(unknown)
}
