package kvindex

import "github.com/stator-go/stator/kvindex/block"

// An EventKind says what an [Event] tells.
type EventKind uint8

// Kinds of events.
const (
	EventUnknown EventKind = iota // a tag that is not known: skipped and counted
	EventStored                   // the engine holds these blocks
	EventRemoved                  // one copy of each of these blocks is gone
	EventCleared                  // the engine holds nothing
	EventLost                     // a removal or clear that cannot be read: what went is not known
)

// An Event is one piece of news about an engine's cache, as a decoder of an
// engine's wire form makes it. Hashes are the engine's own, opaque names: a
// signed number is taken bit by bit, of a longer digest the last 8 bytes
// big-endian (vLLM) or what the engine's adapter documents.
//
// The slices belong to the Batch and are valid until it is reused; a Stream
// copies what it keeps. Strings are kept.
type Event struct {
	Kind EventKind
	Tier Tier // TierUnknown: counted, not indexed

	Hashes []uint64

	// Of EventStored.
	Parent    uint64
	HasParent bool
	Tokens    []uint32      // of all blocks; empty: only says that known blocks are also in Tier
	BlockSize int           // tokens per engine block; 0 if the event does not say
	Adapter   string        // LoRA name; a child inherits it if its event leaves it out
	Salt      string        // cache salt; engines tell it with the first block of a sequence only
	Media     []block.Media // offsets count from the first of Tokens

	// Group is the attention group, -1 if the event does not say. Prefix tells
	// whether blocks of that group can be used as a prefix (full attention);
	// GroupSaid whether the event said so.
	Group     int
	Prefix    bool
	GroupSaid bool

	// Remote marks blocks that do not lie with this engine (locality REMOTE).
	Remote bool

	// Remaining, of EventRemoved, is the number of copies left of each block, or
	// nil when the engine does not tell.
	Remaining []int
}

// A Batch is one decoded message of an engine's event channel. It is reused:
// Reset keeps the memory.
type Batch struct {
	Seq    uint64  // sequence number of the message, from 0
	Time   float64 // engine's clock, Unix seconds; not above 0, no number and infinity mean unknown
	Rank   int     // data-parallel rank, -1 if the message does not say
	Events []Event

	// Malformed counts events that could not be decoded. One that is known to be a
	// removal or a clear stands in Events all the same, as EventLost and with
	// nothing else in it, where it stood in the message: no block may count that it
	// may have taken. All others are left out: a store that is not read loses hits
	// and no more.
	Malformed int
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.Seq, b.Time, b.Rank, b.Malformed = 0, 0, -1, 0
	b.Events = b.Events[:0]
}
