package block

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// tagMedia is the first byte of a media record.
const tagMedia = 0x4d

// Reasons for which a media item is refused. Each wraps [ErrMedia].
var (
	// ErrMediaID means that an item has no ID or one of more than MaxField bytes.
	ErrMediaID = fmt.Errorf("%w: bad ID", ErrMedia)
	// ErrMediaLength means that an item's Length is not from 1 to MaxOffset.
	ErrMediaLength = fmt.Errorf("%w: bad Length", ErrMedia)
	// ErrMediaOffset means that an item's Offset is not from -MaxOffset to MaxOffset.
	ErrMediaOffset = fmt.Errorf("%w: bad Offset", ErrMedia)
	// ErrMediaCount means that there are more than MaxMedia items.
	ErrMediaCount = fmt.Errorf("%w: too many items", ErrMedia)
	// ErrMediaScheme means that the scheme has no form for media, so the hashes of
	// touched blocks will match no other program's.
	ErrMediaScheme = fmt.Errorf("%w: scheme has no media", ErrMedia)
)

// maxFaults bounds how many faults of one list are told.
const maxFaults = 100

// CheckMedia reports the faults of a media list, at most about 100, each error
// naming the item. Call it where a list comes from outside: the hashing methods return no error,
// and take a bad item as far as it makes sense rather than leave it out.
func (h *Hasher) CheckMedia(media []Media) error {
	var errs []error
	if h.scheme == SchemeDynamo && len(media) > 0 {
		errs = append(errs, fmt.Errorf("%w: %s", ErrMediaScheme, h.scheme))
	}
	if len(media) > MaxMedia {
		return errors.Join(append(errs, fmt.Errorf("%w: %d, at most %d", ErrMediaCount, len(media), MaxMedia))...)
	}
	for i := range media {
		m := &media[i]
		if len(errs) >= maxFaults {
			break
		}
		if m.ID == "" || len(m.ID) > MaxField {
			errs = append(errs, fmt.Errorf("%w of item %d: %d bytes, from 1 to %d", ErrMediaID, i, len(m.ID), MaxField))
		}
		if m.Length < 1 || m.Length > MaxOffset {
			errs = append(errs, fmt.Errorf("%w of item %d: %d, from 1 to %d", ErrMediaLength, i, m.Length, MaxOffset))
		}
		if m.Offset < -MaxOffset || m.Offset > MaxOffset {
			errs = append(errs, fmt.Errorf("%w of item %d: %d, from %d to %d", ErrMediaOffset, i, m.Offset, -MaxOffset, MaxOffset))
		}
	}
	return errors.Join(errs...)
}

// MediaInBlock is the item that an engine's event names for one block: id, and
// the item's begin relative to the block's first token, which stands at index
// start of the event's tokens. The item reaches at least one token of that
// block; how far beyond is not known, nor needed: the engine names it again for
// each further block.
func MediaInBlock(id string, start, offset int) Media {
	return Media{ID: id, Offset: start + offset, Length: max(1, 1-offset)}
}

// end is the index after the item's last token.
func (m *Media) end() int {
	if m.Offset > math.MaxInt-max(m.Length, 0) {
		return math.MaxInt
	}
	return m.Offset + max(m.Length, 0)
}

// mediaWalk goes over blocks in order and gives each its media record.
type mediaWalk struct {
	media []Media
	next  int // index in scratch.order of the first item not yet met
}

// start sorts the items by (offset, id), each once: engines name an item again for
// every block that it touches, and the longest of those covers the others.
func (w *mediaWalk) start(media []Media, s *scratch) {
	w.media, w.next = media, 0
	s.order, s.active = s.order[:0], s.active[:0]
	for i := range media {
		if media[i].Length > 0 {
			s.order = append(s.order, int32(i))
		}
	}
	slices.SortFunc(s.order, func(a, b int32) int {
		x, y := &media[a], &media[b]
		return cmp.Or(cmp.Compare(x.Offset, y.Offset), cmp.Compare(x.ID, y.ID), cmp.Compare(y.Length, x.Length))
	})
	s.order = slices.CompactFunc(s.order, func(a, b int32) bool {
		return media[a].Offset == media[b].Offset && media[a].ID == media[b].ID
	})
}

// record returns the media record of the block of tokens from lo up to hi, or
// nil when no item touches it. Calls must come in ascending order.
func (w *mediaWalk) record(lo, hi int, s *scratch) []byte {
	s.active = slices.DeleteFunc(s.active, func(i int32) bool { return w.media[i].end() <= lo })
	for ; w.next < len(s.order); w.next++ {
		i := s.order[w.next]
		if w.media[i].Offset >= hi {
			break
		}
		if w.media[i].end() > lo {
			s.active = append(s.active, i)
		}
	}
	if len(s.active) == 0 {
		return nil
	}
	rec, n := append(s.rec[:0], tagMedia, 0, 0, 0, 0), uint32(0)
	for _, i := range s.active {
		m := &w.media[i]
		rec = binary.LittleEndian.AppendUint32(rec, uint32(len(m.ID)))
		rec = append(rec, m.ID...)
		rec = append(rec, 0, 0, 0)[:len(rec)+(-len(m.ID)&3)]
		rec = binary.LittleEndian.AppendUint64(rec, uint64(int64(m.Offset)-int64(lo)))
		n++
	}
	binary.LittleEndian.PutUint32(rec[1:], n)
	s.rec = rec
	return rec
}
