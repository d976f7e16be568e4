package kvindex

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

// More cases that indexes of this kind get wrong, those in which streams,
// lookups and budgets meet. docs/faults.md lists all.

// Blocks of one token, a prompt of 100,000 of them and 50 engines that each call
// them otherwise: what goes beyond the budget is refused and counted, block by
// block, and what was accepted is right.
func TestSmallBlocksBeyondTheBudget(t *testing.T) {
	const long, limit = 100_000, 16 << 20
	x := newIndex(t, &Options{BlockTokens: 1, MaxBytes: limit})
	tokens := make([]uint32, long)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	h, err := block.NewHasher(block.Scope{}, 1, nil)
	require.NoError(t, err)
	chain := h.AppendHashes(nil, tokens, nil)
	var o Overlap
	whole, refused := 0, uint64(0)
	var streams []*Stream
	for w := range 50 {
		st, err := x.NewStream(x.Attach(fmt.Sprint(w), 0), StreamConfig{EngineBlock: 1})
		require.NoError(t, err)
		streams = append(streams, st)
	}
	for w, st := range streams {
		e := Event{Kind: EventStored, Group: -1, BlockSize: 1, Tokens: tokens, Hashes: make([]uint64, long)}
		for i := range e.Hashes {
			e.Hashes[i] = uint64(w)<<32 | uint64(i+1)
		}
		r := st.Apply(&Batch{Events: []Event{e}})
		require.Equal(t, StreamLive, r.State)
		require.EqualValues(t, long, r.Counts.Stored+r.Counts.Refused)
		require.LessOrEqual(t, x.Bytes(), int64(limit))
		x.Lookup(&o, chain)
		require.LessOrEqual(t, o.Depth(st.Slot(), TierGPU), long)
		if r.Counts.Refused == 0 {
			whole++
			require.Equal(t, long, o.Depth(st.Slot(), TierGPU))
			continue
		}
		require.ErrorIs(t, r.Err, ErrBudget)
		require.EqualValues(t, r.Counts.Refused, st.Stats().Refused)
		refused += r.Counts.Refused
	}
	require.Greater(t, whole, 0)
	require.Greater(t, refused, uint64(0))
	require.NotZero(t, x.Stats().Refused)
	require.NoError(t, x.check())
}

// Eight prompts of 32,000 tokens, hashed by their bytes, are all remembered by an
// index with default options.
func TestEightLongPromptsAreRemembered(t *testing.T) {
	x := newIndex(t, nil)
	h, err := block.NewHasher(block.Scope{Model: "m"}, x.BlockTokens(), nil)
	require.NoError(t, err)
	var chains [][]block.Hash
	s := x.Attach("w", 0)
	for i := range uint64(8) {
		r := rand.New(rand.NewPCG(i, 1))
		text := make([]byte, 128_000)
		for k := range text {
			text[k] = byte(' ' + r.IntN(90))
		}
		chains = append(chains, h.AppendBytes(nil, text, nil))
		require.Len(t, chains[i], 2000)
		require.NoError(t, x.Store(s, TierGPU, 0, chains[i]))
	}
	var o Overlap
	for _, c := range chains {
		x.Lookup(&o, c)
		require.Equal(t, 2000, o.Depth(s, TierGPU))
	}
}

// What was looked up, however often and with which Overlap, comes back to nobody:
// a removed block stays removed.
func TestLookupsPutNothingBack(t *testing.T) {
	x := newIndex(t, nil)
	s, u := x.Attach("w", 0), x.Attach("u", 0)
	c := chainOf(1, 40)
	require.NoError(t, x.Store(u, TierGPU, 0, c[:10]))
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var o Overlap
			for !stop.Load() {
				x.Lookup(&o, c)
			}
		})
	}
	var o Overlap
	for range writerRounds / 4 {
		require.NoError(t, x.Store(s, TierGPU, 0, c))
		x.Lookup(&o, c)
		x.Remove(s, TierGPU, reversed(c))
		x.Lookup(&o, c)
		require.Zero(t, o.Depth(s, TierObject))
		require.Equal(t, 10, o.Depth(u, TierGPU))
	}
	stop.Store(true)
	readers.Wait()
	x.Sweep()
	x.Lookup(&o, c)
	require.Zero(t, o.Depth(s, TierObject))
	require.Equal(t, 10, x.Stats().Blocks)
	require.NoError(t, x.check())
}

// A lookup waits for no writer: it ends while another goroutine is in the middle
// of a store, a removal or the sweep of a big worker that left. (If it took a
// lock, this test would not end.)
func TestLookupWaitsForNobody(t *testing.T) {
	x := newIndex(t, nil)
	s, big := x.Attach("w", 0), x.Attach("big", 0)
	c := chainOf(1, 300)
	require.NoError(t, x.Store(s, TierGPU, 0, c))
	for i := range uint64(100) {
		require.NoError(t, x.Store(big, TierGPU, 0, chainOf(i, 300)))
	}
	x.Detach(big)
	k := x.slot(s)
	k.mu.Lock()
	x.mu.Lock()
	var o Overlap
	x.Lookup(&o, c)
	x.mu.Unlock()
	k.mu.Unlock()
	require.Equal(t, 300, o.Depth(s, TierGPU))
	require.Equal(t, 1, o.listed(), "the one that left is not swept yet, and does not show")
	require.NotZero(t, x.Stats().Dying)
}

// Replayed messages with numbers below the cursor change nothing: not their
// number, not what they say, and the asking for the rest comes to an end.
func TestReplayNeverGoesBack(t *testing.T) {
	x, st := newTestStream(t, StreamConfig{})
	events := chainEvents(1, 8, 1)
	clear := Event{Kind: EventCleared, Group: -1}
	for i := range uint64(5) {
		require.Equal(t, StreamLive, st.Apply(&Batch{Seq: i, Events: events[i : i+1]}).State)
	}
	depth := func() int {
		h, err := block.NewHasher(block.Scope{}, 16, nil)
		require.NoError(t, err)
		var tokens []uint32
		for _, e := range events {
			tokens = append(tokens, e.Tokens...)
		}
		var o Overlap
		x.Lookup(&o, h.AppendHashes(nil, tokens, nil))
		return o.Depth(st.Slot(), TierGPU)
	}
	// Nobody asked: a dump with numbers of its own.
	for i := range uint64(4) {
		require.EqualValues(t, 1, st.Replay(&Batch{Seq: i, Events: []Event{clear}}).Counts.Stale)
	}
	require.False(t, st.ReplayEnd(true).Replay.Wanted)
	require.EqualValues(t, 4, st.Stats().Last)
	require.Equal(t, 5, depth())

	// Asked from 5 on, and told 1 to 3, again and again.
	r := st.Apply(&Batch{Seq: 6, Events: events[6:7]})
	asked := 0
	for r.Replay.Wanted {
		asked++
		require.LessOrEqual(t, asked, 8, "no end of asking")
		require.EqualValues(t, 5, r.Replay.From)
		for i := range uint64(3) {
			got := st.Replay(&Batch{Seq: 1 + i, Events: []Event{clear}})
			require.EqualValues(t, 1, got.Counts.Duplicates)
			require.EqualValues(t, 4, st.Stats().Last)
			require.Equal(t, 5, depth())
		}
		r = st.ReplayEnd(true)
	}
	require.Equal(t, StreamLive, r.State)
	require.EqualValues(t, 6, st.Stats().Last)
	require.EqualValues(t, 1, st.Stats().Holes, "5 was never to be had")
	require.EqualValues(t, 1, st.Apply(&Batch{Seq: 7, Events: chainEvents(2, 1, 1)}).Counts.Stored)
	require.EqualValues(t, 7, st.Stats().Last)
}

// Eight gateways with an index each, which started at different times and heard
// of the same engines: all know where every prompt lies.
func TestPrivateIndexesAgree(t *testing.T) {
	const gateways, workers, messages = 8, 4, 12
	h, err := block.NewHasher(block.Scope{}, 16, nil)
	require.NoError(t, err)
	type family struct {
		events []Event
		chain  []block.Hash
	}
	var families []family
	for w := range workers {
		f := family{events: chainEvents(uint64(w+1), messages, 3)}
		var tokens []uint32
		for _, e := range f.events {
			tokens = append(tokens, e.Tokens...)
		}
		f.chain = h.AppendHashes(nil, tokens, nil)
		families = append(families, f)
	}
	for g := range gateways {
		x := newIndex(t, nil)
		var slots []Slot
		for w := range workers {
			st, err := x.NewStream(x.Attach(fmt.Sprint(w), 0), StreamConfig{})
			require.NoError(t, err)
			slots = append(slots, st.Slot())
			message := func(i int) *Batch { return &Batch{Seq: uint64(i), Events: families[w].events[i : i+1]} }
			for i := g; i < messages; i++ { // what came before is only in the engine's memory
				if r := st.Apply(message(i)); r.Replay.Wanted {
					for k := int(r.Replay.From); k <= i; k++ {
						st.Replay(message(k))
					}
					r = st.ReplayEnd(true)
					require.False(t, r.Replay.Wanted)
				}
			}
			require.Equal(t, StreamLive, st.State())
		}
		var o Overlap
		for w := range workers {
			x.Lookup(&o, families[w].chain)
			for v, s := range slots {
				want := 0
				if v == w {
					want = 3 * messages
				}
				require.Equal(t, want, o.Depth(s, TierGPU), "gateway %d, prompt of %d, worker %d", g, w, v)
			}
		}
	}
}

// An index that is full refuses stores and still gives slots: a worker that comes,
// or comes back, can be routed to.
func TestFullIndexGivesSlots(t *testing.T) {
	x := newIndex(t, &Options{MaxBytes: MinBytes})
	s := x.Attach("w", 0)
	for i, full := uint64(0), 0; full < 1000; i++ {
		if x.Store(s, TierGPU, 0, chainOf(i, 1+int(i)%40)) != nil {
			full++
		}
	}
	for i := range 20 {
		require.NotZero(t, x.Attach("new", i), "worker %d", i)
	}
	for range 100 { // flaps
		require.NotZero(t, x.Attach("w", 0))
	}
	require.LessOrEqual(t, x.Bytes(), int64(MinBytes))
	require.NoError(t, x.check())
}
