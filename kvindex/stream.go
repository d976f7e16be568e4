package kvindex

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-go/stator/kvindex/block"
)

// StreamConfig tunes a [Stream]. The zero value of each field is a good
// default.
type StreamConfig struct {
	// Scope is the base of the identity of every block: Model, Revision and
	// Group. Adapter and Tenant must be empty: each event brings its own.
	Scope block.Scope
	// EngineBlock is the number of tokens per engine block, for events that do
	// not say. 0 learns it from the events.
	EngineBlock int
	// NoReplay says that old messages cannot be fetched. A gap then clears the
	// slot at once.
	NoReplay bool

	// MaxBuffered and MaxBufferedBytes bound the messages that wait behind a gap.
	// 0 means 1,024 messages and 8 MiB.
	MaxBuffered      int
	MaxBufferedBytes int
	// MaxReplays is how often in a row a replay is asked for again before the
	// missing messages are given up; 0 means 8. The waits between start at
	// ReplayBackoff, 0 meaning 200 ms, and double.
	MaxReplays    int
	ReplayBackoff time.Duration
	// ResyncEvery is the least time between two replays from the beginning that
	// orphans ask for; 0 means 30 s.
	ResyncEvery time.Duration

	// MaxOrphanBlocks and MaxOrphanBytes bound the blocks that wait for their
	// parent, the oldest giving way; 0 means 16,384 blocks and 4 MiB. After
	// OrphanTTL, 0 meaning 30 s, they are given up and a resync is asked for.
	MaxOrphanBlocks int
	MaxOrphanBytes  int
	OrphanTTL       time.Duration

	// MaxHashers bounds the prepared hashers, one for each adapter and salt in
	// use; 0 means 64.
	MaxHashers int
	// MaxUnits bounds the engine blocks kept while their size differs from the
	// index's; 0 means 1,048,576. More are refused and counted.
	MaxUnits int
	// MaxCopies bounds the blocks for which more than one copy is counted, in
	// each tier; 0 means 262,144. Copies beyond it are not counted, so that such
	// a block is dropped at its first remove.
	MaxCopies int

	// Hooks observes the stream.
	Hooks StreamHooks
}

// StreamHooks are called by the goroutine that feeds the stream. Each may be nil
// and must neither block nor call the stream.
type StreamHooks struct {
	// State is called when the state changes.
	State func(s Slot, from, to StreamState)
}

func (c StreamConfig) withDefaults() StreamConfig {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	defTime := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxBuffered, 1024)
	def(&c.MaxBufferedBytes, 8<<20)
	def(&c.MaxReplays, 8)
	def(&c.MaxOrphanBlocks, 16384)
	def(&c.MaxOrphanBytes, 4<<20)
	def(&c.MaxHashers, 64)
	def(&c.MaxUnits, 1<<20)
	def(&c.MaxCopies, 1<<18)
	defTime(&c.ReplayBackoff, 200*time.Millisecond)
	defTime(&c.ResyncEvery, 30*time.Second)
	defTime(&c.OrphanTTL, 30*time.Second)
	return c
}

func (c *StreamConfig) validate() error {
	var errs []error
	if c.Scope.Adapter != "" || c.Scope.Tenant != "" {
		errs = append(errs, errors.New("kvindex: StreamConfig.Scope: Adapter and Tenant must be empty, events bring them"))
	}
	positive := func(name string, v int64) {
		if v < 0 {
			errs = append(errs, fmt.Errorf("kvindex: StreamConfig.%s is %d, must not be negative", name, v))
		}
	}
	positive("EngineBlock", int64(c.EngineBlock))
	positive("MaxBuffered", int64(c.MaxBuffered))
	positive("MaxBufferedBytes", int64(c.MaxBufferedBytes))
	positive("MaxReplays", int64(c.MaxReplays))
	positive("MaxOrphanBlocks", int64(c.MaxOrphanBlocks))
	positive("MaxOrphanBytes", int64(c.MaxOrphanBytes))
	positive("MaxHashers", int64(c.MaxHashers))
	positive("MaxUnits", int64(c.MaxUnits))
	positive("MaxCopies", int64(c.MaxCopies))
	positive("ReplayBackoff", int64(c.ReplayBackoff))
	positive("ResyncEvery", int64(c.ResyncEvery))
	positive("OrphanTTL", int64(c.OrphanTTL))
	return errors.Join(errs...)
}

// ledger is the part of an [Index] that a stream writes to.
type ledger interface {
	resolve(s Slot, name uint64) (h block.Hash, scope uint32, at place, ok bool)
	storeNamed(s Slot, t Tier, parent parentRef, scope uint32, names []uint64, chain []block.Hash, dup []uint64) ([]uint64, error)
	storeKnown(s Slot, t Tier, names []uint64, dup []uint64) (_ []uint64, unknown int, err error)
	removeNamed(s Slot, t Tier, names []uint64) (unknown int)
	holdsNamed(s Slot, t Tier, name uint64) bool
	internScope(adapter, tenant string) uint32
	pinScope(id uint32)
	unpinScope(id uint32)
	scopeOf(id uint32) (adapter, tenant string)
	alive(s Slot) bool
	Clear(s Slot, tiers ...Tier)
	BlockTokens() int
	Scheme() block.Scheme
}

// A Stream applies one engine's events to one slot of an [Index]: it keeps the
// sequence, fills gaps by replay, counts physical copies, parks blocks whose
// parent has not come, turns engine blocks into the index's blocks, and tells by
// counters what it left out.
//
// # Use
//
// Pass each live message to [Stream.Apply] in the order of arrival. When a
// Result wants a replay, fetch it, pass its messages to [Stream.Replay] and
// finish with [Stream.ReplayEnd]; live messages go on meanwhile. Call
// [Stream.Tick] now and then, and [Stream.Reset] for news that come another way.
// A driver that subscribes before the engine is up may replay from 0 without
// being asked. One that cannot replay must say so (NoReplay, or ReplayEnd(false)
// each time): the stream keeps what comes for after the reply, within bounds.
//
// # Restarts
//
// An engine that restarts counts from 0 again and says nothing else. A live
// message that goes back in the sequence is a restart when its time is later
// than that of the last message (or earlier than the first one's, or it is
// another message 0), and a duplicate otherwise. Without times, going back is a
// restart, except that a message which a replay had already brought, or an exact
// repetition of the last number, is a duplicate. When in doubt the slot is
// cleared: that costs hits, never a hit that is not there.
//
// Some restarts cannot be seen: one whose first message seen has by chance a
// number above the last one (or, without times, just the last one), and one after
// which the clock was set back into the life of the former process. Whoever
// learns of a restart another way calls Reset.
//
// # Events that cannot be read
//
// An event of an unknown kind, or one whose kind cannot be read, is counted and
// passed over. A store that cannot be read is too: its blocks are not indexed. A
// removal or a clear that cannot be read (EventLost) clears the slot, at its place
// in the order of events, for what it took may be anything. It asks for no replay,
// which would bring the same bytes; the slot fills again with what is stored from
// then on. An engine none of whose removals can be read is thus never overcounted,
// and looks nearly empty: StreamCounts.Lost tells.
//
// # Limits
//
// An answer may fall short of what the engine holds, never above it, where the
// engine's news leave room for doubt:
//
//   - Of a hybrid model one group of full attention is indexed.
//   - A name that stands for blocks of two scopes loses both at its remove.
//   - Two names for one block (an engine that hashes what its events do not tell,
//     say a salt) count as a copy each. The block goes at the first remove by a name
//     of which no further copy is counted; its other names mean nothing from then on
//     until it is stored again, and their removes take no block. An engine that
//     makes ever new names for the blocks that it holds is refused at four a block.
//   - Names are taken for hashes of what they name: two blocks of one scope with one
//     name, a chance of 2^-64, are not told apart.
//   - Where engine blocks are bigger than the index's, an image is known to touch
//     the part of the engine block up to its first token told, not how far it goes.
//
// # Concurrency
//
// A Stream is not safe for concurrent use. Streams of different slots run in
// parallel. After Detach of its slot a stream applies nothing and lets go of its
// memory at the next call.
type Stream struct {
	ix   ledger
	slot Slot
	cfg  StreamConfig
	c    int // tokens per block of the index

	seq    sequence
	buf    gapBuffer
	orph   orphanage
	copies copyCounts
	alias  aliases
	hash   hashers
	units  regrouper
	spread []block.Media // of the event at hand, see spreadMedia
	groups groupKinds

	engineBlock   int  // tokens per engine block, configured or learned
	ignoreRepeats bool // see IgnoreRepeats

	// Working memory of one call.
	res     Result
	chain   []block.Hash
	dup     []uint64
	names   []uint64
	arrived []uint64 // names stored in this event below which orphans may hang
	seen    []uint64 // hash table of the names of one event

	total StreamCounts
}

// NewStream returns a stream that feeds the slot, which must be attached. A slot
// must have one stream at a time and no other writer.
func (x *Index) NewStream(s Slot, cfg StreamConfig) (*Stream, error) {
	return newStream(x, s, cfg, nil)
}

func newStream(ix ledger, s Slot, cfg StreamConfig, make hasherMaker) (*Stream, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if !ix.alive(s) {
		return nil, ErrSlot
	}
	cfg = cfg.withDefaults()
	st := &Stream{ix: ix, slot: s, cfg: cfg, c: ix.BlockTokens(), engineBlock: cfg.EngineBlock}
	st.buf.maxMessages, st.buf.maxBytes = cfg.MaxBuffered, cfg.MaxBufferedBytes
	st.orph.maxBlocks, st.orph.maxBytes = cfg.MaxOrphanBlocks, cfg.MaxOrphanBytes
	st.copies.max = cfg.MaxCopies
	st.groups.reset()
	if make == nil {
		make = defaultHashers(st.c, ix.Scheme())
	}
	if err := st.hash.open(ix, cfg.Scope, cfg.MaxHashers, make); err != nil {
		return nil, err
	}
	return st, nil
}

// Slot is the slot that the stream feeds.
func (st *Stream) Slot() Slot { return st.slot }

// State is the stream's state.
func (st *Stream) State() StreamState { return st.seq.state }

// IgnoreRepeats says whether blocks that are stored while they are held count as
// further copies (off, the default) or as mere repetitions. Switch it on while a
// request makes the engine announce its cached prefix again: such news look like
// copies and would keep blocks in the index for ever.
func (st *Stream) IgnoreRepeats(on bool) { st.ignoreRepeats = on }

// Stats is a picture of the stream.
func (st *Stream) Stats() StreamStats {
	q := &st.seq
	s := StreamStats{
		StreamCounts: st.total,
		State:        q.state,
		LastTime:     q.newest,
		Buffered:     len(st.buf.list), BufferedBytes: st.buf.bytes,
		OrphanBlocks: st.orph.blocks, OrphanBytes: st.orph.bytes,
		CopyNames: st.copies.len(), AliasNames: st.alias.n,
		Units: len(st.units.byName), Hashers: st.hash.len(),
		BlockTokens: st.engineBlock,
	}
	if q.next > 0 {
		s.Last, s.Started = q.next-1, true
	}
	if q.seen > q.next {
		s.Lag = q.seen - q.next
	}
	return s
}

// begin starts a call; it reports false when the slot is gone.
func (st *Stream) begin() bool {
	st.res = Result{}
	if st.ix.alive(st.slot) {
		return true
	}
	if st.seq.state != StreamDead {
		st.forget()
		st.setState(StreamDead)
		st.buf.drop()
		st.hash.close()
		st.seq.asking = false
	}
	return false
}

// end finishes a call.
func (st *Stream) end() Result {
	st.res.State = st.seq.state
	st.total.add(&st.res.Counts)
	return st.res
}

func (st *Stream) setState(to StreamState) {
	from := st.seq.state
	if from == to {
		return
	}
	st.seq.state = to
	if f := st.cfg.Hooks.State; f != nil {
		f(st.slot, from, to)
	}
}

// forget drops everything that the engine was known to hold, in the index and
// here.
func (st *Stream) forget() {
	st.ix.Clear(st.slot)
	st.res.Counts.Dropped += uint64(st.orph.clear())
	st.copies.clear()
	st.alias.clear()
	st.units.clear(st.ix)
	st.arrived = st.arrived[:0]
}
