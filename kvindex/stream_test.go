package kvindex

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stator-go/stator/kvindex/block"
	"github.com/stretchr/testify/require"
)

func newTestStream(tb testing.TB, cfg StreamConfig) (*Index, *Stream) {
	tb.Helper()
	x, err := New(nil)
	require.NoError(tb, err)
	st, err := x.NewStream(x.Attach("w", 0), cfg)
	require.NoError(tb, err)
	return x, st
}

func TestNewStream(t *testing.T) {
	x, err := New(nil)
	require.NoError(t, err)
	s := x.Attach("w", 0)

	_, err = x.NewStream(s, StreamConfig{
		Scope:       block.Scope{Adapter: "a"},
		EngineBlock: -1, MaxBuffered: -1, MaxBufferedBytes: -1, MaxReplays: -1, MaxOrphanBlocks: -1, MaxOrphanBytes: -1,
		MaxHashers: -1, MaxUnits: -1, MaxCopies: -1, ReplayBackoff: -1, ResyncEvery: -1, OrphanTTL: -1,
	})
	require.Error(t, err)
	for _, field := range []string{"Scope", "EngineBlock", "MaxBuffered", "MaxBufferedBytes", "MaxReplays", "MaxOrphanBlocks",
		"MaxOrphanBytes", "MaxHashers", "MaxUnits", "MaxCopies", "ReplayBackoff", "ResyncEvery", "OrphanTTL"} {
		require.ErrorContains(t, err, "StreamConfig."+field)
	}

	st, err := x.NewStream(s, StreamConfig{})
	require.NoError(t, err)
	require.Equal(t, s, st.Slot())
	require.Equal(t, StreamInitial, st.State())

	x.Detach(s)
	_, err = x.NewStream(s, StreamConfig{})
	require.ErrorIs(t, err, ErrSlot)
}

func TestStreamStateNames(t *testing.T) {
	for s, want := range []string{"initial", "live", "gap", "restoring", "dead", "invalid"} {
		require.Equal(t, want, StreamState(s).String())
	}
}

// TestStreamHooks sees every change of state.
func TestStreamHooks(t *testing.T) {
	var seen []string
	x, st := newTestStream(t, StreamConfig{Hooks: StreamHooks{
		State: func(s Slot, from, to StreamState) { seen = append(seen, fmt.Sprint(from, ">", to)) },
	}})
	st.Apply(&Batch{Seq: 0})
	st.Apply(&Batch{Seq: 2})
	st.Replay(&Batch{Seq: 1})
	st.ReplayEnd(true)
	st.Reset(ResetEngine)
	st.Apply(&Batch{Seq: 7})
	x.Detach(st.Slot())
	st.Apply(&Batch{Seq: 8})
	require.Equal(t, []string{"initial>live", "live>gap", "gap>live", "live>initial", "initial>restoring", "restoring>dead"}, seen)
}

// TestStreamEndMarker: the number on the end of a replay is never a message.
func TestStreamEndMarker(t *testing.T) {
	_, st := newTestStream(t, StreamConfig{})
	r := st.Apply(&Batch{Seq: math.MaxUint64})
	require.Equal(t, StreamInitial, r.State)
	require.EqualValues(t, 1, r.Counts.Malformed)
	require.EqualValues(t, 1, r.Ignored())
	r = st.Replay(&Batch{Seq: math.MaxUint64})
	require.EqualValues(t, 1, r.Counts.Malformed)
}

// TestStreamBlockSize: sizes that no memory could hold are refused, also where
// their product wraps around.
func TestStreamBlockSize(t *testing.T) {
	_, st := newTestStream(t, StreamConfig{})
	n := 3
	wraps := math.MaxUint/uint(n) + 1 // times 3 is 3 - MaxUint%3
	for i, size := range []int{-16, math.MinInt, math.MaxInt, int(wraps), 1 << 30} {
		e := chainEvents(1, 1, n)[0]
		e.BlockSize = size
		e.Tokens = e.Tokens[:uint(n)*wraps]
		r := st.Apply(&Batch{Seq: uint64(i), Events: []Event{e}})
		require.Equal(t, uint64(n), r.Counts.WrongLength+r.Counts.Stored+r.Counts.Parked, size)
		require.Zero(t, r.Counts.Stored, size)
	}
	require.Zero(t, st.Stats().BlockTokens)
}

// TestStreamBudget: an index that is full refuses blocks; the stream counts them
// and goes on.
func TestStreamBudget(t *testing.T) {
	x := newNaive(16)
	x.budget = 2
	st, err := newStream(x, x.Attach("w", 0), StreamConfig{}, nil)
	require.NoError(t, err)
	c := chainEvents(1, 4, 1)
	b := &Batch{Events: c}
	r := st.Apply(b)
	require.ErrorIs(t, r.Err, ErrBudget)
	require.EqualValues(t, 2, r.Counts.Stored)
	require.EqualValues(t, 1, r.Counts.Refused)
	require.EqualValues(t, 1, r.Counts.Parked, "the child of a refused block waits")
	require.Equal(t, StreamLive, r.State)
}

// TestStreamScheme: in the Dynamo scheme an adapter cannot be expressed, so its
// blocks are refused with the reason and never confused with the base model's.
func TestStreamScheme(t *testing.T) {
	x, err := New(&Options{Scheme: block.SchemeDynamo})
	require.NoError(t, err)
	st, err := x.NewStream(x.Attach("w", 0), StreamConfig{})
	require.NoError(t, err)
	e := chainEvents(1, 1, 2)
	e[0].Adapter = "sql"
	r := st.Apply(&Batch{Events: e})
	require.ErrorIs(t, r.Err, block.ErrScope)
	require.EqualValues(t, 2, r.Counts.Refused)
	require.Zero(t, r.Counts.Stored)
}

// TestStreamPins: scopes that a stream no longer uses are let go.
func TestStreamPins(t *testing.T) {
	x := newNaive(16)
	st, err := newStream(x, x.Attach("w", 0), StreamConfig{MaxHashers: 2}, nil)
	require.NoError(t, err)
	for i := range 5 {
		e := chainEvents(1, 1, 1)
		e[0].Salt = fmt.Sprint(i)
		e[0].Hashes[0] = uint64(i + 1)
		half := Event{Kind: EventStored, Group: -1, Hashes: []uint64{uint64(100 + i)}, Tokens: make([]uint32, 8), BlockSize: 8, Salt: fmt.Sprint(i)}
		r := st.Apply(&Batch{Seq: uint64(i), Events: append(e, half)})
		require.EqualValues(t, 1, r.Counts.Stored)
	}
	require.Equal(t, 3, st.Stats().Hashers)
	require.Equal(t, 5+2, x.pinned(), "a unit each, two hashers")
	x.Detach(st.Slot())
	st.Tick(time.Unix(1, 0))
	require.Zero(t, x.pinned())
}

// TestStreamKeepsNothing: the batch belongs to the caller again after each call.
func TestStreamKeepsNothing(t *testing.T) {
	_, st := newTestStream(t, StreamConfig{})
	scribble := func(b *Batch) {
		for i := range b.Events {
			e := &b.Events[i]
			for j := range e.Hashes {
				e.Hashes[j] = 0xdead
			}
			for j := range e.Tokens {
				e.Tokens[j] = 0xdead
			}
		}
	}
	send := func(seq uint64, e Event) Result {
		b := &Batch{Seq: seq, Events: []Event{e}}
		r := st.Apply(b)
		scribble(b)
		return r
	}
	e := chainEvents(1, 4, 2)
	send(0, e[0])
	send(1, e[2]) // parked
	r := send(3, e[3])
	require.Equal(t, ReplayRequest{Wanted: true, From: 2}, r.Replay)
	st.Replay(&Batch{Seq: 2, Events: []Event{e[1]}})
	r = st.ReplayEnd(true)
	require.Equal(t, StreamLive, r.State)
	require.EqualValues(t, 8, st.Stats().Stored)
}

// TestGapBufferBytes: the buffer is bounded in bytes, too.
func TestGapBufferBytes(t *testing.T) {
	g := gapBuffer{maxMessages: 100, maxBytes: 10_000}
	n := 0
	for ; n < 100; n++ {
		if !g.push(&Batch{Seq: uint64(n), Events: chainEvents(1, 1, 8)}) {
			break
		}
	}
	require.Greater(t, n, 1)
	require.Less(t, n, 20)
	require.LessOrEqual(t, g.bytes, 10_000)
	g.shift(n)
	require.Zero(t, g.bytes)
	require.True(t, g.push(&Batch{Seq: 9}))
	require.True(t, g.push(&Batch{Seq: 7}))
	require.True(t, g.push(&Batch{Seq: 9}), "once more")
	require.True(t, g.has(7))
	require.False(t, g.has(8))
	require.Len(t, g.list, 2)
	require.EqualValues(t, 7, g.list[0].Seq)
}

// TestOrphanBytes: parked blocks are bounded in bytes, too, and what is parked is
// accounted exactly.
func TestOrphanBytes(t *testing.T) {
	o := orphanage{maxBlocks: 1000, maxBytes: 20_000}
	dropped := 0
	for i := range 100 {
		e := chainEvents(uint64(i), 2, 4)[1]
		dropped += o.park(&e, 16)
		require.LessOrEqual(t, o.bytes, 20_000)
	}
	require.Equal(t, 400, dropped+o.blocks)
	require.Greater(t, dropped, 0)
	for o.first != nil {
		require.NotNil(t, o.take(o.first.ev.Parent))
	}
	require.Zero(t, o.blocks)
	require.Zero(t, o.bytes)
	require.Nil(t, o.names)
}

// TestOrphanSiblings: orphans of one parent come out in the order they came, from
// any place in the list.
func TestOrphanSiblings(t *testing.T) {
	o := orphanage{maxBlocks: 1000, maxBytes: 1 << 20}
	for i := range 5 {
		e := Event{Hashes: []uint64{uint64(i)}, HasParent: true, Parent: 77}
		o.park(&e, 16)
	}
	require.True(t, o.remove(TierGPU, 2))
	require.True(t, o.remove(TierGPU, 4))
	require.False(t, o.remove(TierGPU, 4))
	require.False(t, o.remove(TierCPU, 3))
	var got []uint64
	for p := o.take(77); p != nil; p = o.take(77) {
		got = append(got, p.ev.Hashes[0])
	}
	require.Equal(t, []uint64{0, 1, 3}, got)
}

// TestRepeatedHash finds a hash that stands twice, 0 included.
func TestRepeatedHash(t *testing.T) {
	_, st := newTestStream(t, StreamConfig{})
	for _, n := range []int{1, 2, 7, 16, 100, 1000} {
		e := Event{Hashes: make([]uint64, n)}
		for i := range e.Hashes {
			e.Hashes[i] = uint64(i) << 7
		}
		require.False(t, st.repeated(&e), n)
		e.HasParent, e.Parent = true, e.Hashes[n/2]
		require.True(t, st.repeated(&e), n)
		e.HasParent = false
		e.Hashes = append(e.Hashes, e.Hashes[0])
		require.True(t, st.repeated(&e), n)
	}
}

// chainEvents are store events of n blocks each, one chain, 16 tokens a block.
func chainEvents(seed uint64, events, n int) (out []Event) {
	parent := uint64(0)
	for i := range events {
		e := Event{Kind: EventStored, Group: -1, BlockSize: 16, HasParent: i > 0, Parent: parent}
		for j := range n {
			parent = aliasName(seed<<32|uint64(i*n+j+1), 0x9e37)
			e.Hashes = append(e.Hashes, parent)
			for k := range 16 {
				e.Tokens = append(e.Tokens, uint32(seed)*31+uint32((i*n+j)*16+k))
			}
		}
		out = append(out, e)
	}
	return out
}

// removeEvents take away what the events stored, deepest first, as engines do.
func removeEvents(events []Event) (out []Event) {
	for _, e := range slices.Backward(events) {
		h := slices.Clone(e.Hashes)
		slices.Reverse(h)
		out = append(out, Event{Kind: EventRemoved, Group: -1, Hashes: h})
	}
	return out
}

// TestApplyAllocs: a message of stores and removes allocates nothing when warm,
// whether its blocks are new, held by others, of an adapter, or stored twice.
func TestApplyAllocs(t *testing.T) {
	for _, tc := range []struct {
		name string
		prep func(x *Index, events []Event)
	}{
		{"new", func(*Index, []Event) {}},
		{"shared", func(x *Index, events []Event) {
			st, _ := x.NewStream(x.Attach("other", 0), StreamConfig{})
			st.Apply(&Batch{Events: events})
		}},
		{"adapter", func(x *Index, events []Event) {
			for i := range events {
				events[i].Adapter = "sql"
			}
		}},
	} {
		for _, n := range []int{8, 16} {
			t.Run(fmt.Sprintf("%s/blocks=%d", tc.name, n), func(t *testing.T) {
				x, st := newTestStream(t, StreamConfig{})
				events := chainEvents(1, 8, n)
				tc.prep(x, events)
				store, remove := &Batch{Events: events}, &Batch{Events: removeEvents(events)}
				seq := uint64(0)
				round := func() {
					store.Seq, remove.Seq = seq, seq+1
					seq += 2
					if r := st.Apply(store); r.Counts.Stored != uint64(8*n) {
						t.Fatalf("%+v", r)
					}
					if r := st.Apply(remove); r.Counts.Removed != uint64(8*n) {
						t.Fatalf("%+v", r)
					}
				}
				for range 10 {
					round()
				}
				require.Zero(t, testing.AllocsPerRun(100, round))
			})
		}
	}
	t.Run("copies", func(t *testing.T) {
		_, st := newTestStream(t, StreamConfig{})
		events := chainEvents(1, 1, 16)
		b := &Batch{Events: append(slices.Clone(events), append(events, append(removeEvents(events), removeEvents(events)...)...)...)}
		round := func() {
			if r := st.Apply(b); r.Counts.Copies != 16 || r.Counts.Released != 16 || r.Counts.Removed != 16 {
				t.Fatalf("%+v", r)
			}
			b.Seq++
		}
		for range 10 {
			round()
		}
		require.LessOrEqual(t, testing.AllocsPerRun(100, round), 0.0)
	})
}

// ExampleStream feeds a message of an engine and asks what the worker holds.
func ExampleStream() {
	x, _ := New(nil)
	slot := x.Attach("worker-1", 0)
	st, err := x.NewStream(slot, StreamConfig{Scope: block.Scope{Model: "llama"}})
	if err != nil {
		panic(err)
	}
	prompt := make([]uint32, 48)
	r := st.Apply(&Batch{Seq: 0, Events: []Event{{
		Kind: EventStored, Group: -1, BlockSize: 16, Hashes: []uint64{71, 72}, Tokens: prompt[:32],
	}}})
	fmt.Println(r.State, r.Counts.Stored, r.Replay.Wanted)

	r = st.Apply(&Batch{Seq: 2})
	fmt.Println(r.State, "replay from", r.Replay.From)

	h, _ := block.NewHasher(block.Scope{Model: "llama"}, 16, nil)
	var o Overlap
	x.Lookup(&o, h.AppendHashes(nil, prompt, nil))
	fmt.Println(o.Depth(slot, TierGPU))
	// Output:
	// live 2 false
	// gap replay from 1
	// 2
}

var errNever = errors.New("never")

// TestStreamHasherError: a scope whose hasher cannot be made is refused.
func TestStreamHasherError(t *testing.T) {
	x := newNaive(16)
	_, err := newStream(x, x.Attach("w", 0), StreamConfig{}, func(block.Scope) (*block.Hasher, error) { return nil, errNever })
	require.ErrorIs(t, err, errNever)
}
