package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// Slabs of words that the collector never scans. A window of a slab is named by
// the number of its first word; windows are multiples of eight words and never
// cross a chunk.

const (
	chunkBits = 16
	chunkLen  = 1 << chunkBits // words of a chunk, and the longest window
	chunkMask = chunkLen - 1
	unit      = 8 // words

	wordChunkBytes = chunkLen*8 + chunkLen/unit*2 // with its marks
)

type (
	wordChunk [chunkLen]uint64
	markChunk [chunkLen / unit]uint16
)

// Size classes: multiples of eight words up to 128, then eight steps an octave.
const classes = 16 + 8*9 + 1

// classOf is the smallest class whose windows have at least n words.
func classOf(n uint32) uint32 {
	if n <= 128 {
		return (max(n, 1) + 7) / 8
	}
	o := uint32(bits.Len32(n-1)) - 8 // n lies in (128<<o, 256<<o]
	size := uint32(128) << o
	step := size / 8
	return 16 + 8*o + (n-size+step-1)/step
}

func classSize(c uint32) uint32 {
	if c <= 16 {
		return 8 * c
	}
	o := (c - 17) / 8
	return 128<<o + (c-16-8*o)*(16<<o)
}

func roundUnit(n uint32) uint32 { return (max(n, 1) + unit - 1) &^ (unit - 1) }

// spans hands out windows of one slab; only one goroutine may use it at a time.
// Neighbouring free windows merge: mark holds the length of a free window (in
// units, plus one) at its first and last unit. Free windows of a class form a
// list through their own first word (previous<<32 | next, both plus one), so the
// bookkeeping of free memory takes no memory and cannot grow.
type spans struct {
	first [classes]uint32 // window plus one, 0 = none
	some  [2]uint64       // classes with a window
	mark  []*markChunk    // nil: no such chunk
	links []*wordChunk    // parallel to mark: where a free window keeps its link
	inUse int64           // words handed out

	// grow makes the memory of chunk number i (which may be one past the last)
	// and returns the chunk for links, or nil when the budget has no room.
	grow func(i uint32, keep int64) *wordChunk
}

// find is the class of the best free window of at least n words.
func (s *spans) find(n uint32) (c uint32, ok bool) {
	c = classOf(n)
	if c >= classes {
		return 0, false
	}
	for i := c / 64; i < 2; i++ {
		w := s.some[i]
		if i == c/64 {
			w &= ^uint64(0) << (c % 64)
		}
		if w != 0 {
			return i*64 + uint32(bits.TrailingZeros64(w)), true
		}
	}
	return 0, false
}

// ready makes sure that the next alloc of up to n words succeeds. keep is what
// must stay free of the budget.
func (s *spans) ready(n uint32, keep int64) bool {
	n = roundUnit(n)
	if n > chunkLen {
		return false
	}
	if _, ok := s.find(n); ok {
		return true
	}
	i := uint32(0)
	for int(i) < len(s.mark) && s.mark[i] != nil {
		i++
	}
	if i > 1<<(32-chunkBits)-2 { // windows are named by 32 bits, and the last stays free for "plus one"
		return false
	}
	links := s.grow(i, keep)
	if links == nil {
		return false
	}
	if int(i) == len(s.mark) {
		s.mark, s.links = append(s.mark, nil), append(s.links, nil)
	}
	s.mark[i], s.links[i] = new(markChunk), links
	s.give(i<<chunkBits, chunkLen)
	return true
}

// alloc returns a window of at least n words, up to an eighth more. It must
// follow a ready.
func (s *spans) alloc(n uint32) (base, size uint32) {
	n = roundUnit(n)
	c, _ := s.find(n)
	base = s.first[c] - 1
	size = s.freeAt(base)
	s.take(base, size)
	if size-n >= max(unit, n/8) {
		s.give(base+n, size-n)
		size = n
	}
	s.inUse += int64(size)
	return base, size
}

// extend lengthens a window in place if the free window behind it is long enough.
func (s *spans) extend(base, size, n uint32) (uint32, bool) {
	end := base + size
	if end&chunkMask == 0 {
		return size, false
	}
	more := roundUnit(n) - size
	have := s.freeAt(end)
	if have < more {
		return size, false
	}
	s.take(end, have)
	if have > more {
		s.give(end+more, have-more)
	}
	s.inUse += int64(more)
	return size + more, true
}

// shrink gives back the end of a window and returns its new size.
func (s *spans) shrink(base, size, n uint32) uint32 {
	if n = roundUnit(n); n < size {
		s.release(base+n, size-n)
		size = n
	}
	return size
}

func (s *spans) release(base, size uint32) {
	s.inUse -= int64(size)
	if base&chunkMask != 0 {
		if m := *s.markAt(base - unit); m != 0 {
			n := (uint32(m) - 1) * unit
			s.take(base-n, n)
			base, size = base-n, size+n
		}
	}
	if end := base + size; end&chunkMask != 0 {
		if n := s.freeAt(end); n != 0 {
			s.take(end, n)
			size += n
		}
	}
	s.give(base, size)
}

// drop lets go of chunks that are free as a whole; gone is told the number of each.
func (s *spans) drop(gone func(i uint32)) {
	for i := range s.mark {
		base := uint32(i) << chunkBits
		if s.mark[i] == nil || s.freeAt(base) != chunkLen {
			continue
		}
		s.take(base, chunkLen)
		s.mark[i], s.links[i] = nil, nil
		gone(uint32(i))
	}
	n := len(s.mark)
	for n > 0 && s.mark[n-1] == nil {
		n--
	}
	if n < len(s.mark) {
		s.mark = append([]*markChunk(nil), s.mark[:n]...)
		s.links = append([]*wordChunk(nil), s.links[:n]...)
	}
}

func (s *spans) markAt(base uint32) *uint16 {
	return &s.mark[base>>chunkBits][base&chunkMask/unit]
}

// freeAt is the length of the free window that begins at base, or 0.
func (s *spans) freeAt(base uint32) uint32 {
	if m := *s.markAt(base); m != 0 {
		return (uint32(m) - 1) * unit
	}
	return 0
}

// listOf is the class whose list a free window of n words is in: all windows of
// a list are at least as long as its class says.
func listOf(n uint32) uint32 {
	c := classOf(n)
	if classSize(c) > n {
		c--
	}
	return c
}

func (s *spans) link(base uint32) *uint64 { return &s.links[base>>chunkBits][base&chunkMask] }

// take takes a free window out of its list.
func (s *spans) take(base, n uint32) {
	*s.markAt(base), *s.markAt(base + n - unit) = 0, 0
	l := *s.link(base)
	prev, next := uint32(l>>32), uint32(l)
	if prev != 0 {
		p := s.link(prev - 1)
		atomic.StoreUint64(p, *p&^0xffffffff|uint64(next))
	} else {
		c := listOf(n)
		if s.first[c] = next; next == 0 {
			s.some[c/64] &^= 1 << (c % 64)
		}
	}
	if next != 0 {
		p := s.link(next - 1)
		atomic.StoreUint64(p, *p&0xffffffff|uint64(prev)<<32)
	}
}

// give puts a free window into its list.
func (s *spans) give(base, n uint32) {
	m := uint16(n/unit + 1)
	*s.markAt(base), *s.markAt(base + n - unit) = m, m
	c := listOf(n)
	next := s.first[c]
	atomic.StoreUint64(s.link(base), uint64(next))
	if next != 0 {
		p := s.link(next - 1)
		atomic.StoreUint64(p, *p&0xffffffff|uint64(base+1)<<32)
	}
	s.first[c] = base + 1
	s.some[c/64] |= 1 << (c % 64)
}
