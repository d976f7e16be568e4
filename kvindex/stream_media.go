package kvindex

import (
	"cmp"
	"slices"

	"github.com/stator-go/stator/kvindex/block"
)

// maxSpread bounds how many blocks the media of an event touch, summed over the
// media, by that many times the blocks and the media. Real media do not overlap,
// so theirs touch at most one more each than there are blocks.
const maxSpread = 8

// spreadMedia leaves the media of an event in st.spread, sorted by where they
// begin, without those that are nowhere, and each once: an engine names one again
// for every block that it touches, which of many blocks would be a number to the
// square. It reports false when they overlap beyond what media do.
func (st *Stream) spreadMedia(e *Event, size int) bool {
	list := st.spread[:0]
	for _, m := range e.Media {
		if m.Length > 0 && m.Length <= block.MaxOffset && m.Offset >= -block.MaxOffset && m.Offset <= block.MaxOffset {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b block.Media) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.ID, b.ID), cmp.Compare(b.Length, a.Length))
	})
	list = slices.CompactFunc(list, func(a, b block.Media) bool { return a.Offset == b.Offset && a.ID == b.ID })
	st.spread = list
	touched, end := 0, len(e.Hashes)*size
	for _, m := range list {
		if lo, hi := max(m.Offset, 0), min(m.Offset+m.Length, end); lo < hi {
			touched += (hi-1)/size - lo/size + 1
		}
	}
	return touched <= maxSpread*(len(e.Hashes)+len(list))
}

// mediaSpans walks over sorted media along the blocks of an event.
type mediaSpans struct {
	rest   []block.Media // not met yet
	active []block.Media
}

func (w *mediaSpans) start(sorted []block.Media) { w.rest, w.active = sorted, w.active[:0] }

// at is the media that touch the tokens from lo up to hi, valid until the next
// call. Calls must come in ascending order.
func (w *mediaSpans) at(lo, hi int) []block.Media {
	w.active = slices.DeleteFunc(w.active, func(m block.Media) bool { return m.Offset+m.Length <= lo })
	for len(w.rest) > 0 && w.rest[0].Offset < hi {
		if m := w.rest[0]; m.Offset+m.Length > lo {
			w.active = append(w.active, m)
		}
		w.rest = w.rest[1:]
	}
	return w.active
}
