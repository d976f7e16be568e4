package sim

import "maps"

// A pool is the engine's paged KV memory with its prefix cache: blocks with
// reference counts, a map from names to the blocks that bear them, and one queue
// of blocks nobody uses, in the order in which they are given out again.
//
// Blocks that carry a name go to the back of the queue when they are released,
// a sequence's last block first; nameless ones go to the front. So the block
// that goes first is a nameless one, or the deepest block of the chain that
// rested longest.
type pool struct {
	blocks []poolBlock // [0] is the queue's anchor, as vLLM's null block
	max    int         // blocks, without the anchor
	used   int         // blocks with references
	named  int         // blocks with a name
	byName map[uint64]int32
}

type poolBlock struct {
	name       uint64
	prev, next int32 // in the queue, while ref is 0
	twin       int32 // another block of the same name, 0 for none
	ref        int32
	hasName    bool
}

func newPool(max int) pool {
	return pool{blocks: make([]poolBlock, 1, min(max+1, 1024)), max: max, byName: map[uint64]int32{}}
}

func (p *pool) clone() pool {
	c := *p
	c.blocks = append([]poolBlock(nil), p.blocks...)
	c.byName = maps.Clone(p.byName)
	return c
}

// match counts the leading names that are held, and of the blocks found those
// that nobody uses.
func (p *pool) match(names []uint64) (n, idle int) {
	for _, h := range names {
		b, ok := p.byName[h]
		if !ok {
			break
		}
		if p.blocks[b].ref == 0 {
			idle++
		}
		n++
	}
	return n, idle
}

// pin takes a reference on the block that bears name, which must be held.
func (p *pool) pin(name uint64) int32 {
	b := p.byName[name]
	if p.blocks[b].ref == 0 {
		p.unlink(b)
		p.used++
	}
	p.blocks[b].ref++
	return b
}

// alloc gives out a block with one reference. It says which name was evicted.
// The caller has made sure that fewer than max blocks are in use.
func (p *pool) alloc() (b int32, evicted uint64, was bool) {
	b = p.blocks[0].next
	if (b == 0 || p.blocks[b].hasName) && len(p.blocks) <= p.max {
		b = int32(len(p.blocks))
		p.blocks = append(p.blocks, poolBlock{})
	} else {
		p.unlink(b)
		if p.blocks[b].hasName {
			evicted, was = p.blocks[b].name, true
			p.forget(b)
		}
	}
	p.blocks[b].ref = 1
	p.used++
	return b, evicted, was
}

// name gives a block its name. Several blocks may bear one.
func (p *pool) name(b int32, name uint64) {
	x := &p.blocks[b]
	x.name, x.hasName, x.twin = name, true, 0
	p.named++
	if first, ok := p.byName[name]; ok {
		x.twin = p.blocks[first].twin
		p.blocks[first].twin = b
		return
	}
	p.byName[name] = b
}

// forget takes a block's name away.
func (p *pool) forget(b int32) {
	x := &p.blocks[b]
	first := p.byName[x.name]
	if first == b {
		if x.twin != 0 {
			p.byName[x.name] = x.twin
		} else {
			delete(p.byName, x.name)
		}
	} else {
		for p.blocks[first].twin != b {
			first = p.blocks[first].twin
		}
		p.blocks[first].twin = x.twin
	}
	x.hasName, x.twin = false, 0
	p.named--
}

// release gives a reference back.
func (p *pool) release(b int32) {
	x := &p.blocks[b]
	if x.ref--; x.ref > 0 {
		return
	}
	p.used--
	at := p.blocks[0].next // before the first
	if x.hasName {
		at = 0 // behind the last
	}
	x = &p.blocks[b]
	x.next, x.prev = at, p.blocks[at].prev
	p.blocks[x.prev].next = b
	p.blocks[at].prev = b
}

func (p *pool) unlink(b int32) {
	x := &p.blocks[b]
	p.blocks[x.prev].next = x.next
	p.blocks[x.next].prev = x.prev
}

// clear takes every name away. Nothing may be in use.
func (p *pool) clear() {
	for i := range p.blocks {
		p.blocks[i].hasName, p.blocks[i].twin = false, 0
	}
	clear(p.byName)
	p.named = 0
}
