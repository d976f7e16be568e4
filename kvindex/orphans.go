package kvindex

import (
	"slices"
	"time"
	"unsafe"
)

// orphanage keeps store events whose parent is not known, until it comes. It is
// bounded in blocks and bytes, and the oldest gives way. Blocks keep their
// tokens, since a chained hash cannot be made before the parent's is known.
type orphanage struct {
	maxBlocks, maxBytes int
	blocks, bytes       int

	byParent    map[uint64]siblings
	names       map[uint64]uint32 // how often a name is parked
	first, last *orphan           // by age, oldest first
}

// siblings is the list of the orphans of one parent, oldest first, so that
// copies attach in order.
type siblings struct{ first, last *orphan }

// An orphan is one parked event. It owns the event's slices.
type orphan struct {
	ev    Event
	gone  []uint64 // names of its blocks that were removed meanwhile
	since time.Time
	bytes int

	next         *orphan // with the same parent
	older, newer *orphan
}

// park keeps a copy of a store event, whose blocks have size tokens. It returns
// the number of blocks that had to give way.
func (o *orphanage) park(e *Event, size int) (dropped int) {
	n, bytes := len(e.Hashes), eventBytes(e)+int(unsafe.Sizeof(orphan{}))+32*len(e.Hashes)
	if n > o.maxBlocks || bytes > o.maxBytes {
		return n
	}
	for o.blocks+n > o.maxBlocks || o.bytes+bytes > o.maxBytes {
		dropped += o.live(o.first)
		o.unlink(o.first)
	}
	p := &orphan{ev: cloneEvent(e), bytes: bytes}
	p.ev.BlockSize = size
	o.link(p)
	return dropped
}

// link puts an orphan at the young end. There must be room.
func (o *orphanage) link(p *orphan) {
	e := &p.ev
	if o.byParent == nil {
		o.byParent, o.names = map[uint64]siblings{}, map[uint64]uint32{}
	}
	if list, ok := o.byParent[e.Parent]; ok {
		list.last.next = p
		o.byParent[e.Parent] = siblings{list.first, p}
	} else {
		o.byParent[e.Parent] = siblings{p, p}
	}
	for _, name := range e.Hashes {
		o.names[name]++
	}
	p.older, p.newer = o.last, nil
	if o.last != nil {
		o.last.newer = p
	} else {
		o.first = p
	}
	o.last = p
	o.blocks += len(e.Hashes)
	o.bytes += p.bytes
}

// live is the number of an orphan's blocks that were not removed.
func (o *orphanage) live(p *orphan) int { return len(p.ev.Hashes) - len(p.gone) }

// unlink takes an orphan out of all tables.
func (o *orphanage) unlink(p *orphan) {
	list := o.byParent[p.ev.Parent]
	switch {
	case list.first == p && list.last == p:
		delete(o.byParent, p.ev.Parent)
	case list.first == p:
		o.byParent[p.ev.Parent] = siblings{p.next, list.last}
	default:
		at := list.first
		for at.next != p {
			at = at.next
		}
		at.next = p.next
		if list.last == p {
			list.last = at
		}
		o.byParent[p.ev.Parent] = list
	}
	p.next = nil
	for _, name := range p.ev.Hashes {
		if n := o.names[name]; n > 1 {
			o.names[name] = n - 1
		} else {
			delete(o.names, name)
		}
	}
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		o.first = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		o.last = p.older
	}
	o.blocks -= len(p.ev.Hashes)
	o.bytes -= p.bytes
	if o.first == nil {
		o.clear()
	}
}

// take takes out the oldest orphan of a parent, or returns nil.
func (o *orphanage) take(parent uint64) *orphan {
	p := o.byParent[parent].first
	if p != nil {
		o.unlink(p)
	}
	return p
}

// remove notes that a parked block is gone. It reports false when none of that
// name is parked in the tier. An orphan without blocks left is dropped.
func (o *orphanage) remove(t Tier, name uint64) bool {
	if o.names[name] == 0 {
		return false
	}
	for p := o.first; p != nil; p = p.newer {
		if p.ev.Tier != t || !slices.Contains(p.ev.Hashes, name) || slices.Contains(p.gone, name) {
			continue
		}
		p.gone = append(p.gone, name)
		if o.live(p) == 0 {
			o.unlink(p)
		}
		return true
	}
	return false
}

// expire drops what is parked for ttl, counted from the first call that sees it,
// and returns the number of blocks.
func (o *orphanage) expire(now time.Time, ttl time.Duration) (expired int) {
	for p := o.first; p != nil; {
		next := p.newer
		if p.since.IsZero() {
			p.since = now
		} else if now.Sub(p.since) >= ttl {
			expired += o.live(p)
			o.unlink(p)
		}
		p = next
	}
	return expired
}

// clear drops everything and gives the memory back. It returns the number of
// blocks.
func (o *orphanage) clear() (dropped int) {
	for p := o.first; p != nil; p = p.newer {
		dropped += o.live(p)
	}
	*o = orphanage{maxBlocks: o.maxBlocks, maxBytes: o.maxBytes}
	return dropped
}
