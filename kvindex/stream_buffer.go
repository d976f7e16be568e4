package kvindex

import (
	"slices"
	"unsafe"

	"github.com/stator-go/stator/kvindex/block"
)

// gapBuffer keeps copies of the live messages behind a gap, in order.
type gapBuffer struct {
	list                  []*Batch
	bytes                 int
	maxMessages, maxBytes int
}

// push copies a message into its place. It reports false, and keeps nothing,
// when there is no room. A message of a number that is there already is left
// out.
func (g *gapBuffer) push(b *Batch) bool {
	i, found := g.find(b.Seq)
	if found {
		return true
	}
	n := batchBytes(b)
	if len(g.list) >= g.maxMessages || g.bytes+n > g.maxBytes {
		return false
	}
	g.list = slices.Insert(g.list, i, cloneBatch(b))
	g.bytes += n
	return true
}

func (g *gapBuffer) has(seq uint64) bool {
	_, found := g.find(seq)
	return found
}

func (g *gapBuffer) find(seq uint64) (int, bool) {
	if n := len(g.list); n == 0 || g.list[n-1].Seq < seq {
		return n, false
	}
	return slices.BinarySearchFunc(g.list, seq, func(b *Batch, seq uint64) int {
		switch {
		case b.Seq < seq:
			return -1
		case b.Seq > seq:
			return 1
		}
		return 0
	})
}

// shift drops the first n messages.
func (g *gapBuffer) shift(n int) {
	for _, b := range g.list[:n] {
		g.bytes -= batchBytes(b)
	}
	g.list = slices.Delete(g.list, 0, n)
	if len(g.list) == 0 {
		g.drop()
	}
}

// drop empties the buffer and gives its memory back: gaps are rare.
func (g *gapBuffer) drop() { g.list, g.bytes = nil, 0 }

func batchBytes(b *Batch) int {
	n := int(unsafe.Sizeof(*b))
	for i := range b.Events {
		n += eventBytes(&b.Events[i])
	}
	return n
}

func eventBytes(e *Event) int {
	n := int(unsafe.Sizeof(*e)) + 8*len(e.Hashes) + 4*len(e.Tokens) + 8*len(e.Remaining) + len(e.Adapter) + len(e.Salt)
	for i := range e.Media {
		n += int(unsafe.Sizeof(block.Media{})) + len(e.Media[i].ID)
	}
	return n
}

func cloneBatch(b *Batch) *Batch {
	c := *b
	c.Events = make([]Event, len(b.Events))
	for i := range b.Events {
		c.Events[i] = cloneEvent(&b.Events[i])
	}
	return &c
}

func cloneEvent(e *Event) Event {
	c := *e
	c.Hashes = slices.Clone(e.Hashes)
	c.Tokens = slices.Clone(e.Tokens)
	c.Media = slices.Clone(e.Media)
	c.Remaining = slices.Clone(e.Remaining)
	return c
}
