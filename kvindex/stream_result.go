package kvindex

import "time"

// A StreamState says how far a [Stream]'s picture of its slot can be trusted.
type StreamState uint8

// States of a stream.
const (
	// StreamInitial: no message has been seen. The slot holds nothing.
	StreamInitial StreamState = iota
	// StreamLive: every message up to the last one is applied. What the index
	// says is exact, but for orphans and what was dropped for a removal that could
	// not be read.
	StreamLive
	// StreamGap: messages are missing. Those after the gap wait in a buffer for a
	// replay of the missing ones; the index shows the state before the gap.
	StreamGap
	// StreamRestoring: a replay from the beginning is asked for. Until it starts
	// live messages are applied as they come, so the index shows a lower bound;
	// when it starts the slot is cleared and built anew.
	StreamRestoring
	// StreamDead: the slot was detached. Nothing is applied any more.
	StreamDead
)

var streamStateNames = [...]string{"initial", "live", "gap", "restoring", "dead"}

// String is the state's name.
func (s StreamState) String() string {
	if int(s) < len(streamStateNames) {
		return streamStateNames[s]
	}
	return "invalid"
}

// A ReplayRequest asks the driver to fetch old messages from the engine, pass
// each to [Stream.Replay] and then call [Stream.ReplayEnd]. A later request
// replaces an earlier one: the driver drops what is left of the earlier reply.
type ReplayRequest struct {
	Wanted bool
	From   uint64        // first sequence number wanted
	After  time.Duration // wait that long before asking; 0 means at once
}

// StreamCounts counts what happened to messages and blocks. Stored, parked and
// ignored news are counted in blocks, each block under exactly one reason.
type StreamCounts struct {
	Messages   uint64 // messages applied, live or replayed
	Duplicates uint64 // messages dropped because they were applied before
	Stale      uint64 // replayed messages dropped: not asked for, or of an ended engine process
	Events     uint64 // events in applied messages

	Stored   uint64 // blocks newly held in a tier
	Copies   uint64 // blocks stored again while held: a further physical copy
	Repeats  uint64 // blocks stored again while repeats were announced (see Stream.IgnoreRepeats)
	Removed  uint64 // blocks no longer held in a tier
	Released uint64 // removes that took one of several copies
	Cleared  uint64 // cleared events

	Parked   uint64 // blocks parked because their parent is unknown
	Attached uint64 // parked blocks stored after their parent came
	Expired  uint64 // parked blocks given up after OrphanTTL
	Dropped  uint64 // parked blocks given up for want of room, or by a clear
	Unparked uint64 // parked blocks that the engine removed

	UnknownRemoved uint64 // removes of blocks that were not held
	UnknownBlock   uint64 // stores without tokens of blocks that are not known
	UnknownTier    uint64 // blocks in a medium with an unknown name
	UnknownEvent   uint64 // events with an unknown tag
	Malformed      uint64 // events that could not be decoded
	Lost           uint64 // those of them that may have taken blocks away, so that the slot was cleared
	WrongLength    uint64 // blocks of stores whose hashes, tokens and block size do not fit
	Repeated       uint64 // blocks of stores that name one hash twice
	NonPrefix      uint64 // blocks of attention groups that cannot serve as a prefix
	OtherGroup     uint64 // blocks of usable groups besides the one that is indexed
	Remote         uint64 // blocks that do not lie with this engine
	Conflicts      uint64 // blocks that share their engine hash with another held block
	Refused        uint64 // blocks that the index or a bound of the stream refused

	Gaps     uint64 // times that messages were missing
	Holes    uint64 // times that missing messages could not be had and the slot was cleared
	Restarts uint64 // restarts of the engine seen by its sequence numbers
	Resyncs  uint64 // replays from the beginning asked for
	Replays  uint64 // replays asked for, of both kinds
}

// add adds d to c.
func (c *StreamCounts) add(d *StreamCounts) {
	c.Messages += d.Messages
	c.Duplicates += d.Duplicates
	c.Stale += d.Stale
	c.Events += d.Events
	c.Stored += d.Stored
	c.Copies += d.Copies
	c.Repeats += d.Repeats
	c.Removed += d.Removed
	c.Released += d.Released
	c.Cleared += d.Cleared
	c.Parked += d.Parked
	c.Attached += d.Attached
	c.Expired += d.Expired
	c.Dropped += d.Dropped
	c.Unparked += d.Unparked
	c.UnknownRemoved += d.UnknownRemoved
	c.UnknownBlock += d.UnknownBlock
	c.UnknownTier += d.UnknownTier
	c.UnknownEvent += d.UnknownEvent
	c.Malformed += d.Malformed
	c.Lost += d.Lost
	c.WrongLength += d.WrongLength
	c.Repeated += d.Repeated
	c.NonPrefix += d.NonPrefix
	c.OtherGroup += d.OtherGroup
	c.Remote += d.Remote
	c.Conflicts += d.Conflicts
	c.Refused += d.Refused
	c.Gaps += d.Gaps
	c.Holes += d.Holes
	c.Restarts += d.Restarts
	c.Resyncs += d.Resyncs
	c.Replays += d.Replays
}

// A Result says what one call did to a stream.
type Result struct {
	State  StreamState // after the call
	Counts StreamCounts
	Replay ReplayRequest
	// Err is ErrBudget when the index refused blocks for want of room, or
	// another error of the index; the stream goes on.
	Err error
}

// Ignored is the number of blocks and undecodable or unknown events that were
// left out for one reason or another.
func (r *Result) Ignored() uint64 {
	c := &r.Counts
	return c.UnknownRemoved + c.UnknownBlock + c.UnknownTier + c.UnknownEvent + c.Malformed + c.WrongLength +
		c.Repeated + c.NonPrefix + c.OtherGroup + c.Remote + c.Refused
}

// StreamStats is a picture of a stream: totals since its start and what it
// holds now. A worker whose Messages stay 0 while it answers requests announces
// nothing, or to nobody; one whose Stored grows while no lookup ever meets it has
// another hash scheme, scope or block size than the requests.
type StreamStats struct {
	StreamCounts
	State StreamState

	Last     uint64  // sequence number of the last message applied; valid if Started
	Started  bool    // a message has been applied since the start of the engine
	Lag      uint64  // messages known to exist and not applied
	LastTime float64 // engine's clock at the newest message seen, Unix seconds; 0 if it does not say

	Buffered      int // messages that wait behind a gap
	BufferedBytes int
	OrphanBlocks  int // blocks parked now
	OrphanBytes   int
	CopyNames     int // blocks with more than one copy
	AliasNames    int // blocks kept under another name because of a conflict
	Units         int // engine blocks kept for regrouping
	Hashers       int // scopes with a prepared hasher
	BlockTokens   int // tokens per engine block, as configured or learned; 0 if not known
}
