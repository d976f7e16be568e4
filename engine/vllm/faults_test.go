package vllm

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// Cases that readers of engines' events get wrong, from the bytes of a message to
// what the index then says. docs/faults.md lists them.

// pageTokens is the block size of engines and index in these tests.
const pageTokens = 4

// feed is an index with one stream for each worker.
type feed struct {
	t       *testing.T
	x       *kvindex.Index
	streams map[string]*kvindex.Stream
	next    map[string]uint64
}

func newFeed(t *testing.T, workers ...string) *feed {
	x, err := kvindex.New(&kvindex.Options{BlockTokens: pageTokens})
	require.NoError(t, err)
	f := &feed{t: t, x: x, streams: map[string]*kvindex.Stream{}, next: map[string]uint64{}}
	for _, w := range workers {
		f.streams[w], err = x.NewStream(x.Attach(w, 0), kvindex.StreamConfig{Scope: block.Scope{Model: "m"}})
		require.NoError(t, err)
	}
	return f
}

// send hands over a message with these events; each is applied.
func (f *feed) send(worker string, events ...any) kvindex.StreamCounts {
	return f.payload(worker, batchOf(events...))
}

func (f *feed) payload(worker string, p []byte) kvindex.StreamCounts {
	f.t.Helper()
	var b kvindex.Batch
	require.NoError(f.t, NewDecoder().Decode(&b, f.next[worker], p))
	f.next[worker]++
	r := f.streams[worker].Apply(&b)
	require.NoError(f.t, r.Err)
	require.EqualValues(f.t, 1, r.Counts.Messages)
	return r.Counts
}

// depth is the number of leading blocks of a chain that the worker holds in a
// tier or a faster one.
func (f *feed) depth(worker string, tier kvindex.Tier, adapter, tenant string, chain, blocks int) int {
	h, err := block.NewHasher(block.Scope{Model: "m", Adapter: adapter, Tenant: tenant}, pageTokens, nil)
	require.NoError(f.t, err)
	var tokens []uint32
	for _, v := range ids(chain, 0, blocks) {
		tokens = append(tokens, uint32(v.(int)))
	}
	var o kvindex.Overlap
	f.x.Lookup(&o, h.AppendHashes(nil, tokens, nil))
	return o.Depth(f.streams[worker].Slot(), tier)
}

// gpu is depth for the base model on the device.
func (f *feed) gpu(worker string, chain, blocks int) int {
	return f.depth(worker, kvindex.TierGPU, "", "", chain, blocks)
}

// ids are the tokens of blocks lo to hi of a chain, names the engine's hashes of
// them.
func ids(chain, lo, hi int) (out list) {
	for i := lo * pageTokens; i < hi*pageTokens; i++ {
		out = append(out, chain<<12+i)
	}
	return out
}

func name(chain, i int) int { return chain<<16 + i + 1 }

func names(chain, lo, hi int) (out list) {
	for i := lo; i < hi; i++ {
		out = append(out, name(chain, i))
	}
	return out
}

func parentOf(chain, lo int) any {
	if lo == 0 {
		return nil
	}
	return name(chain, lo-1)
}

// asArray is a store of blocks lo to hi in the array form, rest being what stands
// from lora_id on; asMap the same in the map form.
func asArray(chain, lo, hi int, rest ...any) list {
	return append(list{"BlockStored", names(chain, lo, hi), parentOf(chain, lo), ids(chain, lo, hi), pageTokens}, rest...)
}

func asMap(chain, lo, hi int, rest ...any) pairs {
	return append(pairs{"type", "BlockStored", "block_hashes", names(chain, lo, hi), "parent_block_hash", parentOf(chain, lo),
		"token_ids", ids(chain, lo, hi), "block_size", pageTokens}, rest...)
}

// A fleet in the middle of an upgrade: both forms in one message and one after
// the other, without anybody saying which.
func TestBothFormsFillTheIndex(t *testing.T) {
	f := newFeed(t, "w")
	c := f.send("w", asArray(1, 0, 2), asMap(1, 2, 4))
	require.EqualValues(t, 4, c.Stored)
	require.Equal(t, 4, f.gpu("w", 1, 8))
	f.send("w", asMap(1, 4, 6))
	f.send("w", asArray(1, 6, 8))
	require.Equal(t, 8, f.gpu("w", 1, 8))
	f.send("w", pairs{"type", "BlockRemoved", "block_hashes", names(1, 7, 8)}, list{"BlockRemoved", names(1, 6, 7)})
	require.Equal(t, 6, f.gpu("w", 1, 8))
}

// Fields and events of releases to come change nothing about those known.
func TestFieldsToCome(t *testing.T) {
	f := newFeed(t, "w")
	c := f.send("w",
		asArray(1, 0, 1, nil, "GPU", nil, nil, nil, nil, nil, "new", pairs{"newer", list{1}}),
		asMap(1, 1, 2, "medium", "GPU", "new", pairs{"newer", list{1, nil}}),
		list{"BlockDreamed", names(1, 0, 2), 7}, pairs{"type", "BlockDreamed", "block_hashes", names(1, 0, 2)},
		append(list{"BlockRemoved", names(1, 1, 2), "GPU", nil}, "new"),
		asMap(1, 1, 3))
	require.Equal(t, 3, f.gpu("w", 1, 4))
	require.EqualValues(t, 2, c.UnknownEvent)
	require.Zero(t, c.Malformed)
}

// A salted request of an SGLang: a map where other engines have the adapter's
// name. Its block is the tenant's, and the message's other events live.
func TestSaltedEventAmongOthers(t *testing.T) {
	f := newFeed(t, "w")
	c := f.send("w", asArray(1, 0, 2, nil, "GPU"), asArray(2, 0, 2, nil, "GPU", pairs{"cache_salt", "tenant"}), asArray(3, 0, 2, nil, "GPU"))
	require.Zero(t, c.Malformed)
	require.Equal(t, 2, f.gpu("w", 1, 2))
	require.Equal(t, 2, f.gpu("w", 3, 2))
	require.Zero(t, f.gpu("w", 2, 2))
	require.Equal(t, 2, f.depth("w", kvindex.TierGPU, "", "tenant", 2, 2))
	require.Zero(t, f.depth("w", kvindex.TierGPU, "", "other", 2, 2))
}

// Messages of two elements, without a rank, belong to the rank of their channel.
func TestMessagesWithoutRank(t *testing.T) {
	f := newFeed(t, "w")
	f.payload("w", value(nil, list{1.5, list{asArray(1, 0, 1)}}))
	f.payload("w", value(nil, list{1.5, list{asMap(1, 1, 2)}}))
	f.payload("w", value(nil, list{1.5, list{asArray(1, 2, 3)}, nil}))
	require.Equal(t, 3, f.gpu("w", 1, 4))
}

// Blocks of another attention group, medium or adapter are no hit.
func TestGroupMediumAndAdapterSeparate(t *testing.T) {
	f := newFeed(t, "w")
	const full, window = "full_attention", "sliding_window"
	f.send("w", asMap(1, 0, 2, "group_idx", 0, "kv_cache_spec_kind", full),
		asMap(2, 0, 2, "group_idx", 1, "kv_cache_spec_kind", window),
		asMap(3, 0, 2, "group_idx", 0, "kv_cache_spec_kind", full, "medium", "CPU"),
		asMap(4, 0, 2, "group_idx", 0, "kv_cache_spec_kind", full, "lora_name", "sql"))
	require.Equal(t, 2, f.gpu("w", 1, 2))
	require.Zero(t, f.depth("w", kvindex.TierObject, "", "", 2, 2), "a window is no prefix")
	require.Zero(t, f.gpu("w", 3, 2))
	require.Equal(t, 2, f.depth("w", kvindex.TierCPU, "", "", 3, 2))
	require.Zero(t, f.gpu("w", 4, 2))
	require.Equal(t, 2, f.depth("w", kvindex.TierGPU, "sql", "", 4, 2))
	// Nor does the remove of one group take from the other.
	f.send("w", pairs{"type", "BlockRemoved", "block_hashes", names(1, 1, 2), "group_idx", 1})
	require.Equal(t, 2, f.gpu("w", 1, 2))
}

// An offload without tokens: known blocks are in the second tier, an unknown one
// is skipped and counted, and the message's other events live.
func TestOffloadNamesKnownBlocks(t *testing.T) {
	f := newFeed(t, "w")
	f.send("w", asMap(1, 0, 2))
	c := f.send("w",
		pairs{"type", "BlockStored", "block_hashes", append(names(1, 0, 2), name(9, 9)), "parent_block_hash", nil,
			"token_ids", list{}, "block_size", pageTokens, "medium", "CPU"},
		asMap(2, 0, 1))
	require.EqualValues(t, 1, c.UnknownBlock)
	require.Zero(t, c.Malformed)
	require.Equal(t, 1, f.gpu("w", 2, 1))
	f.send("w", list{"BlockRemoved", names(1, 0, 2), "GPU"})
	require.Zero(t, f.gpu("w", 1, 2))
	require.Equal(t, 2, f.depth("w", kvindex.TierCPU, "", "", 1, 2))
}

// Fields that a producer left out are absent, not faults: the base model, the
// device, no group.
func TestFieldsLeftOut(t *testing.T) {
	f := newFeed(t, "w")
	c := f.send("w", asArray(1, 0, 1), asMap(1, 1, 2), asArray(1, 2, 3, nil), asArray(1, 3, 4, nil, nil, nil, nil))
	require.Zero(t, c.Malformed)
	require.Equal(t, 4, f.gpu("w", 1, 4))
	f.send("w", list{"BlockRemoved", names(1, 3, 4)}, pairs{"type", "BlockRemoved", "block_hashes", names(1, 2, 3)})
	require.Equal(t, 2, f.gpu("w", 1, 4))
}

// A remove names one medium and takes nothing from the others.
func TestRemoveNamesOneMedium(t *testing.T) {
	f := newFeed(t, "w")
	f.send("w", asMap(1, 0, 3), asMap(1, 0, 3, "medium", "CPU"), asMap(1, 0, 3, "medium", "DISK"))
	f.send("w", list{"BlockRemoved", names(1, 1, 3), "GPU"})
	require.Equal(t, 1, f.gpu("w", 1, 3))
	require.Equal(t, 3, f.depth("w", kvindex.TierCPU, "", "", 1, 3))
	f.send("w", list{"BlockRemoved", names(1, 2, 3), "CPU"})
	require.Equal(t, 2, f.depth("w", kvindex.TierCPU, "", "", 1, 3))
	require.Equal(t, 3, f.depth("w", kvindex.TierDisk, "", "", 1, 3))
	f.send("w", list{"BlockRemoved", names(1, 2, 3), "DISK"})
	require.Equal(t, 2, f.depth("w", kvindex.TierObject, "", "", 1, 3))
}

// The entry stays until the last physical copy is gone, by our count or, where
// the engine says how many are left, by its own.
func TestLastCopyEndsTheEntry(t *testing.T) {
	f := newFeed(t, "w")
	f.send("w", asMap(1, 0, 1), asArray(1, 0, 1))
	f.send("w", list{"BlockRemoved", names(1, 0, 1)})
	require.Equal(t, 1, f.gpu("w", 1, 1))
	f.send("w", list{"BlockRemoved", names(1, 0, 1)})
	require.Zero(t, f.gpu("w", 1, 1))

	left := func(n int) pairs {
		return pairs{"type", "BlockRemoved", "block_hashes", names(2, 0, 1), "remaining_copy_counts", list{n}}
	}
	f.send("w", asMap(2, 0, 1)) // one store for several copies
	f.send("w", left(2))
	f.send("w", left(1))
	require.Equal(t, 1, f.gpu("w", 2, 1))
	f.send("w", left(0))
	require.Zero(t, f.gpu("w", 2, 1))
}

// Two processes with other seeds and digests call the same tokens otherwise.
func TestHashesOfTwoProcesses(t *testing.T) {
	f := newFeed(t, "a", "b")
	digest := func(i int) []byte {
		d := make([]byte, 32)
		binary.BigEndian.PutUint64(d[24:], uint64(i)*0x9e3779b97f4a7c15)
		return d
	}
	f.send("a", asArray(1, 0, 2))
	f.send("b", list{"BlockStored", list{digest(1), digest(2)}, nil, ids(1, 0, 2), pageTokens},
		list{"BlockStored", list{digest(3)}, digest(2), ids(1, 2, 3), pageTokens})
	require.Equal(t, 2, f.gpu("a", 1, 3))
	require.Equal(t, 3, f.gpu("b", 1, 3))
	require.Equal(t, 3, f.x.Stats().Blocks, "one key for both")
}

// Tenants and adapters with equal tokens share nothing, although the engine gives
// one hash to all.
func TestTenantsAndAdaptersShareNothing(t *testing.T) {
	f := newFeed(t, "w")
	f.send("w", asMap(1, 0, 2, "lora_name", "sql", "extra_keys", list{list{"sql", "a"}, list{"sql"}}))
	for _, s := range [][2]string{{"", ""}, {"sql", ""}, {"", "a"}, {"sql", "b"}, {"a", "sql"}, {"other", "a"}} {
		require.Zero(t, f.depth("w", kvindex.TierObject, s[0], s[1], 1, 2), "%q", s)
	}
	require.Equal(t, 2, f.depth("w", kvindex.TierGPU, "sql", "a", 1, 2))
	f.send("w", asMap(1, 0, 2))
	require.Equal(t, 2, f.gpu("w", 1, 2))
	require.Equal(t, 2, f.depth("w", kvindex.TierGPU, "sql", "a", 1, 2))
	require.Zero(t, f.depth("w", kvindex.TierObject, "", "a", 1, 2))
}

// A medium of a name that nobody knows ranks nowhere, least of all as the device.
func TestUnknownMediumIsNoHit(t *testing.T) {
	f := newFeed(t, "w", "u")
	c := f.send("w", asMap(1, 0, 4, "medium", "disk2"), asArray(2, 0, 1, nil, "disk2"), asMap(3, 0, 1))
	f.send("u", asMap(1, 0, 4, "medium", "GPU"))
	require.EqualValues(t, 5, c.UnknownTier)
	require.Zero(t, f.depth("w", kvindex.TierObject, "", "", 1, 4))
	require.Zero(t, f.depth("w", kvindex.TierObject, "", "", 2, 1))
	require.Equal(t, 1, f.gpu("w", 3, 1), "the message's other events live")
	require.Equal(t, 4, f.gpu("u", 1, 4))
}

// subscribe runs a subscriber of the worker's stream to an engine until ctx ends.
func (f *feed) subscribe(ctx context.Context, wg *sync.WaitGroup, worker string, e *fakeEngine, gate chan struct{}) *Subscriber {
	s, err := NewSubscriber("tcp://engine:5557", &SubscriberOptions{Dial: e.dial, Replay: "tcp://engine:5558", Gate: gate})
	require.NoError(f.t, err)
	wg.Go(func() { _ = s.Run(ctx, f.streams[worker]) })
	return s
}

// statsOf asks between two messages.
func statsOf(t *testing.T, s *Subscriber) (out kvindex.StreamStats) {
	t.Helper()
	require.NoError(t, s.Do(t.Context(), func(k Sink) kvindex.Result {
		out = k.(*kvindex.Stream).Stats()
		return kvindex.Result{}
	}))
	return out
}

// Several engines answer replays at the same time, one with its topic and one
// without: each answer goes to the engine that gave it.
func TestReplaysAreAttributed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(t, "old", "new")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var engines []*fakeEngine
		for i, w := range []string{"old", "new"} {
			e := newFakeEngine(t)
			e.router = func(c *zmtp.Conn, _ uint64) {
				for seq := range 3 {
					frames := [][]byte{nil, number(uint64(seq)), batchOf(asMap(i+1, seq, seq+1))}
					if w == "new" {
						frames = [][]byte{nil, []byte("kv@" + w), frames[1], frames[2]}
					}
					_ = c.WriteMessage(frames...)
					time.Sleep(time.Millisecond) // so that they interleave
				}
				_ = c.WriteMessage(nil, number(math.MaxUint64), nil)
			}
			engines = append(engines, e)
			f.subscribe(ctx, &wg, w, e, nil)
		}
		time.Sleep(time.Second)
		for chain, want := range map[int][2]int{1: {3, 0}, 2: {0, 3}} {
			require.Equal(t, want, [2]int{f.gpu("old", chain, 3), f.gpu("new", chain, 3)})
		}
		cancel()
		wg.Wait()
		for _, e := range engines {
			e.wg.Wait()
		}
	})
}

// A replay that brings numbers below what was asked for, as a dump with numbers
// of its own would: the cursor never goes back, the asking ends, and the live
// channel goes on.
func TestReplayBelowTheCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(t, "w")
		e := newFakeEngine(t)
		e.router = func(c *zmtp.Conn, from uint64) {
			first, last := uint64(498), uint64(500)
			if from > 0 {
				first, last = 1, 3
			}
			for seq := first; seq <= last; seq++ {
				_ = c.WriteMessage(nil, number(seq), batchOf(asMap(1, int(seq-first), int(seq-first)+1)))
			}
			_ = c.WriteMessage(nil, number(math.MaxUint64), nil)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		s := f.subscribe(ctx, &wg, "w", e, nil)
		time.Sleep(time.Second)
		require.EqualValues(t, 500, statsOf(t, s).Last)
		require.Equal(t, 3, f.gpu("w", 1, 3))

		e.publish(nil, number(502), batchOf(asMap(2, 0, 1)))
		for range 10 * 60 {
			time.Sleep(time.Second)
			require.GreaterOrEqual(t, statsOf(t, s).Last, uint64(500))
		}
		require.LessOrEqual(t, e.requests(), 1+8, "the asking has an end")
		st := statsOf(t, s)
		require.Equal(t, kvindex.StreamLive, st.State)
		require.EqualValues(t, 502, st.Last)
		require.EqualValues(t, 2, st.Holes, "before 498, and 501")
		e.publish(nil, number(503), batchOf(asMap(2, 1, 2)))
		synctest.Wait()
		require.EqualValues(t, 503, statsOf(t, s).Last)
		require.Equal(t, 2, f.gpu("w", 2, 2))
		require.Zero(t, f.gpu("w", 1, 3), "what the lost message may have removed does not count")
		cancel()
		wg.Wait()
		e.wg.Wait()
	})
}

// Eight warm engines at work when a gateway starts: each is asked for its
// messages once, two at a time, although live messages want the same meanwhile.
func TestColdStartAsksEachEngineOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var workers []string
		for i := range 8 {
			workers = append(workers, string(rune('a'+i)))
		}
		f := newFeed(t, workers...)
		gate := make(chan struct{}, 2)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var mu sync.Mutex
		running, most := 0, 0
		var engines []*fakeEngine
		var subs []*Subscriber
		for i, w := range workers {
			e := newFakeEngine(t)
			newest := uint64(20)
			e.router = func(c *zmtp.Conn, from uint64) {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				e.mu.Lock()
				last := newest
				e.mu.Unlock()
				for seq := from; seq <= last; seq++ {
					_ = c.WriteMessage(nil, number(seq), batchOf(asMap(i+1, int(seq), int(seq)+1)))
				}
				mu.Lock()
				running--
				mu.Unlock()
				_ = c.WriteMessage(nil, number(math.MaxUint64), nil)
			}
			engines = append(engines, e)
			subs = append(subs, f.subscribe(ctx, &wg, w, e, gate))
			synctest.Wait()
			wg.Go(func() {
				for seq := uint64(21); seq <= 40; seq++ {
					e.mu.Lock()
					newest = seq
					e.mu.Unlock()
					e.publish(nil, number(seq), batchOf(asMap(i+1, int(seq), int(seq)+1)))
					time.Sleep(150 * time.Millisecond)
				}
			})
		}
		restoring := 0
		time.Sleep(500 * time.Millisecond)
		for i, s := range subs {
			if statsOf(t, s).State == kvindex.StreamRestoring {
				restoring++
				require.Zero(t, f.gpu(workers[i], i+1, 21), "a lower bound meanwhile")
			}
		}
		require.Equal(t, 8, restoring, "nobody is taken for restored before it is")
		time.Sleep(20 * time.Second)
		for i, s := range subs {
			require.Equal(t, []uint64{0}, engines[i].asked)
			require.Equal(t, kvindex.StreamLive, statsOf(t, s).State)
			require.Equal(t, 41, f.gpu(workers[i], i+1, 41))
		}
		require.Equal(t, 2, most)
		cancel()
		wg.Wait()
		for _, e := range engines {
			e.wg.Wait()
		}
	})
}

// A publisher that cannot be reached, or says nothing, or says what no request
// ever asks for: each can be told from the figures.
func TestSilenceCanBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(t, "missing", "silent", "mismatched")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		engines := map[string]*fakeEngine{}
		subs := map[string]*Subscriber{}
		for w := range f.streams {
			e := newFakeEngine(t)
			if w == "missing" {
				e.refuse = math.MaxInt
			}
			engines[w] = e
			subs[w] = f.subscribe(ctx, &wg, w, e, nil)
		}
		time.Sleep(time.Second)
		engines["mismatched"].publish(nil, number(0), batchOf(asMap(1, 0, 4, "lora_name", "what nobody asks for")))
		time.Sleep(time.Minute)

		st := subs["missing"].Stats()
		require.False(t, st.Connected)
		require.Zero(t, st.Connects)
		require.Equal(t, "refused", st.LastError)

		st = subs["silent"].Stats()
		require.True(t, st.Connected)
		require.Zero(t, st.Messages)
		require.True(t, st.LastMessage.IsZero())
		require.Equal(t, kvindex.StreamInitial, statsOf(t, subs["silent"]).State)

		st = subs["mismatched"].Stats()
		require.EqualValues(t, 1, st.Messages)
		require.EqualValues(t, 4, statsOf(t, subs["mismatched"]).Stored)
		require.Zero(t, f.gpu("mismatched", 1, 4))
		cancel()
		wg.Wait()
		for _, e := range engines {
			e.wg.Wait()
		}
	})
}
