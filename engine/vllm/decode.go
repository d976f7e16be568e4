package vllm

import (
	"errors"
	"fmt"

	"github.com/stator-go/stator/internal/msgpack"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// ErrPayload says that an event message cannot be read at all: it is cut, is no
// batch, or has more events than a batch may have. What single events have wrong
// is counted in the batch and is no error.
var ErrPayload = errors.New("vllm: bad event payload")

const (
	// maxTime is the first time stamp that makes no sense, in Unix seconds: the
	// year 5138.
	maxTime = 1e11
	// maxEvents bounds a batch. A busy engine sends some tens in one message.
	maxEvents = 1 << 16
	// arenaKeep is the number of elements of an arena that is kept although the
	// last batch needed less than a quarter of it.
	arenaKeep = 1 << 18
)

// A Decoder reads the payloads of KV event messages, of every release of vLLM
// since 0.8.5 and of SGLang: events as arrays or as maps (told apart event by
// event, since rolling upgrades mix both), batches of two or three elements,
// block hashes as integers of either sign or as digests.
//
// A Decoder is reused and belongs to one goroutine. Warm, it allocates nothing
// but strings it has not met before.
type Decoder struct {
	r      msgpack.Reader
	hashes []uint64
	tokens []uint32
	media  []block.Media
	names  interner

	touches int64 // what is left of touchCost x the message
	// Items of the event's list that this block and the one before it named.
	named, before []int32
}

// NewDecoder returns a Decoder. It knows no options: the form of each event is
// read from the event.
func NewDecoder() *Decoder { return &Decoder{} }

// Decode reads one payload into b, which it resets. The slices of b's events lie
// in the Decoder's memory and are valid until its next Decode, whatever batch
// that fills. After an error, which wraps [ErrPayload], b has no events.
//
// An event whose tag is not known becomes one of kind EventUnknown. One that is
// broken is counted in b.Malformed; it is left out, or becomes one of kind
// EventLost where its tag says that it takes blocks away. A rank that is absent, nil or
// negative is -1: that of the stream.
func (d *Decoder) Decode(b *kvindex.Batch, seq uint64, payload []byte) error {
	b.Reset()
	b.Seq = seq
	d.hashes = recycle(d.hashes)
	d.tokens = recycle(d.tokens)
	d.media = recycle(d.media)
	d.named, d.before = recycle(d.named), recycle(d.before)
	d.touches = touchCost * int64(len(payload))
	d.r.Reset(payload)
	if err := d.batch(b); err != nil {
		b.Events, b.Malformed = b.Events[:0], 0
		return err
	}
	return nil
}

// recycle empties an arena, and gives it up when it has become much larger than
// what the last batch needed.
func recycle[T any](s []T) []T {
	if cap(s) > arenaKeep && len(s) < cap(s)/4 {
		return nil
	}
	return s[:0]
}

// reserve returns s with room for n more elements. It never moves elements:
// events hold pieces of the old memory.
func reserve[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	return make([]T, 0, max(2*cap(s), n, 64))
}

func (d *Decoder) batch(b *kvindex.Batch) error {
	r := &d.r
	n, err := r.Array()
	if err != nil {
		return bad("batch", err)
	}
	if n < 2 {
		return fmt.Errorf("%w: batch of %d elements", ErrPayload, n)
	}
	if !r.Nil() {
		if b.Time, err = r.Float(); err != nil {
			return bad("time stamp", err)
		}
		if !(b.Time > 0 && b.Time < maxTime) {
			b.Time = 0 // none: one that makes no sense would hide restarts
		}
	}
	events, err := r.Array()
	if err != nil {
		return bad("event list", err)
	}
	for range events {
		start := r.Offset()
		if len(b.Events) == maxEvents {
			return fmt.Errorf("%w: over %d events", ErrPayload, maxEvents)
		}
		ev := grow(b)
		if d.event(ev) {
			continue
		}
		// The event is broken in itself or cut: skipping tells which.
		switch ev.Kind {
		case kvindex.EventRemoved, kvindex.EventCleared:
			*ev = kvindex.Event{Kind: kvindex.EventLost, Group: -1}
		default:
			b.Events = b.Events[:len(b.Events)-1]
		}
		b.Malformed++
		r.Seek(start)
		if err := r.Skip(); err != nil {
			return bad("event", err)
		}
	}
	if n == 2 {
		return nil
	}
	if r.Kind() == msgpack.Int {
		rank, err := r.Int()
		if errors.Is(err, msgpack.ErrTruncated) {
			return bad("rank", err)
		}
		if err == nil && rank >= 0 && rank < 1<<31 {
			b.Rank = int(rank)
		}
		n--
	}
	for range n - 2 { // elements of later releases
		if err := r.Skip(); err != nil {
			return bad("batch", err)
		}
	}
	return nil
}

func bad(what string, err error) error { return fmt.Errorf("%w: %s: %v", ErrPayload, what, err) }

// grow adds an empty event to b.
func grow(b *kvindex.Batch) *kvindex.Event {
	b.Events = append(b.Events, kvindex.Event{Group: -1})
	return &b.Events[len(b.Events)-1]
}

// An interner gives equal names one string. It is bounded: when it is full it
// starts over.
type interner struct {
	m     map[string]string
	bytes int
}

const (
	internNames = 4096
	internBytes = 1 << 20
	internLong  = 512 // longer names are not kept
)

func (in *interner) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := in.m[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) > internLong {
		return s
	}
	if in.m == nil || len(in.m) >= internNames || in.bytes+len(s) > internBytes {
		in.m, in.bytes = make(map[string]string), 0
	}
	in.m[s] = s
	in.bytes += len(s)
	return s
}
