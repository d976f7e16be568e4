package pool_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/pool"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// Cases that gateways get wrong between a request's tokens and its worker.

// stamped is an index that overwrites the first hash of the chain that it is
// asked for first and looks for that stamp ever after: a chain that was hashed
// again would have lost it.
type stamped struct {
	*kvindex.Index
	lookups, lost int
}

const stamp = block.Hash(0x5741)

func (x *stamped) Lookup(dst *kvindex.Overlap, chain []block.Hash) {
	if x.lookups++; x.lookups == 1 {
		chain[0] = stamp
	} else if chain[0] != stamp {
		x.lost++
	}
	x.Index.Lookup(dst, chain)
}

// A prompt is hashed once: the pick, the index's walk and the ledger's booking,
// of the first worker and of those tried after it, use one chain.
func TestOneChainForPickLedgerAndIndex(t *testing.T) {
	ix, err := kvindex.New(nil)
	require.NoError(t, err)
	x := &stamped{Index: ix}
	r, err := router.New(x, nil)
	require.NoError(t, err)
	var booked []int // blocks of the chain, at each attempt
	p, err := pool.New(r, &pool.Options{Backoff: time.Nanosecond, Hooks: pool.Hooks{
		Picked: func(_ *engine.Request, _ string, d *router.Decision) {
			for _, w := range r.Stats().Workers {
				if w.Slot == d.Slot {
					booked = append(booked, w.ActiveBlocks)
				}
			}
		},
	}})
	require.NoError(t, err)
	var active atomic.Int32
	var ws []pool.Worker
	for _, name := range []string{"a", "b", "c"} {
		e := &letters{name: name, active: &active}
		if name != "c" {
			e.fault.Store(&engine.ErrUnreachable)
		}
		ws = append(ws, pool.Worker{Worker: router.Worker{Slot: ix.Attach(name, 0), Name: name}, Engine: e})
	}
	require.NoError(t, ix.Store(ws[0].Slot, kvindex.TierGPU, 0, []block.Hash{stamp})) // so that a is first
	require.NoError(t, ix.Store(ws[1].Slot, kvindex.TierGPU, 0, []block.Hash{stamp}))
	require.NoError(t, p.Set(ws))
	req := &engine.Request{ID: "r", Model: "m", N: 1, Prompts: 1, MaxTokens: 1, Rank: -1, Tokens: make([]uint32, 1000), Body: []byte(`{}`)}
	for _, err := range p.Generate(t.Context(), req) {
		require.NoError(t, err)
	}
	require.Equal(t, 3, x.lookups, "one walk a pick")
	require.Zero(t, x.lost, "hashed again")
	require.Equal(t, uint64(1), p.Stats().Hashings)
	require.Equal(t, uint64(2), p.Stats().Retries)
	require.Equal(t, []int{62, 62, 62}, booked)
}

// flaky is an engine whose tokeniser fails as often as it is told.
type flaky struct {
	letters
	mu    sync.Mutex
	fails int
	calls int
}

func (f *flaky) Tokenize(_ context.Context, dst []uint32, _ *engine.Request) ([]uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls++; f.calls <= f.fails {
		return dst, errors.New("not yet")
	}
	return append(dst, make([]uint32, 40)...), nil
}

// What could not be set up for one request is tried afresh for the next, and for
// the one beside it: a failure is not kept.
func TestFailureToTokenizeIsNotKept(t *testing.T) {
	ix, err := kvindex.New(nil)
	require.NoError(t, err)
	r, err := router.New(ix, nil)
	require.NoError(t, err)
	p, err := pool.New(r, nil)
	require.NoError(t, err)
	var active atomic.Int32
	e := &flaky{letters: letters{name: "a", active: &active}, fails: 1}
	require.NoError(t, p.Set([]pool.Worker{{Worker: router.Worker{Slot: ix.Attach("a", 0), Name: "a"}, Engine: e}}))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			req := &engine.Request{ID: "r", API: engine.APICompletions, Model: "m", N: 1, Prompts: 1, MaxTokens: 1, Rank: -1, Body: []byte(`{"prompt":"a"}`)}
			for _, err := range p.Generate(context.Background(), req) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	st := p.Stats()
	require.Equal(t, uint64(1), st.Untokenized)
	require.Equal(t, uint64(7), st.Tokenized)
	require.Equal(t, 8, e.calls)
}

// guessing is a pool that guesses, over one worker with two ranks, and its index.
// at holds the slots that the requests went to.
func guessing(t *testing.T, blocks int) (p *pool.Pool, ix *kvindex.Index, slots [2]kvindex.Slot, at *[]kvindex.Slot) {
	ix, err := kvindex.New(nil)
	require.NoError(t, err)
	r, err := router.New(ix, nil)
	require.NoError(t, err)
	at = new([]kvindex.Slot)
	p, err = pool.New(r, &pool.Options{Guess: ix, GuessBlocks: blocks, Hooks: pool.Hooks{
		Ended: func(_ *engine.Request, o *pool.Outcome) { *at = append(*at, o.Slot) },
	}})
	require.NoError(t, err)
	e := &letters{name: "a", active: new(atomic.Int32)}
	var ws []pool.Worker
	for i := range slots {
		slots[i] = ix.Attach("a", i)
		ws = append(ws, pool.Worker{Worker: router.Worker{Slot: slots[i], Name: "a"}, Engine: e, Rank: i, Ranks: 2})
	}
	require.NoError(t, p.Set(ws))
	return p, ix, slots, at
}

// send runs a request to the end.
func send(t *testing.T, p *pool.Pool, req engine.Request) {
	req.ID, req.API, req.Model, req.N, req.Prompts, req.MaxTokens, req.Rank = "r", engine.APICompletions, "m", 1, 1, 1, -1
	if req.Body == nil {
		req.Body = []byte(`{"prompt":[]}`)
	}
	for _, err := range p.Generate(t.Context(), &req) {
		require.NoError(t, err)
	}
}

// What is guessed of ranks of 100 blocks from 50 prompts of 150 blocks is never
// more than 100 each, is of the rank that had the request, and goes with the
// worker.
func TestGuessesAreBoundedByRank(t *testing.T) {
	p, ix, slots, at := guessing(t, 100)
	h, err := block.NewHasher(block.Scope{Model: "m"}, 16, nil)
	require.NoError(t, err)
	for i := range 50 {
		tokens := make([]uint32, 150*16)
		tokens[0] = uint32(i + 1)
		send(t, p, engine.Request{Tokens: tokens})
		require.LessOrEqual(t, ix.Stats().Holders[kvindex.TierGPU], 200)
		var o kvindex.Overlap
		ix.Lookup(&o, h.AppendHashes(nil, tokens, nil))
		for _, s := range slots {
			want := 0
			if s == (*at)[i] {
				want = 100
			}
			require.Equal(t, want, o.Depth(s, kvindex.TierGPU))
		}
	}
	require.Equal(t, 200, ix.Stats().Holders[kvindex.TierGPU], "both ranks had some")
	require.NoError(t, p.Set(nil))
	ix.Sweep()
	require.Zero(t, ix.Stats().Blocks)
}

// Eight prompts of 128 KB, hashed by bytes, are all remembered with default
// options.
func TestEightLongPromptsAreGuessed(t *testing.T) {
	p, ix, _, at := guessing(t, 0)
	bodies := make([][]byte, 8)
	for i := range bodies {
		text := make([]byte, 128_000)
		for k := range text {
			text[k] = byte('a' + (k/64*7+i)%26)
		}
		bodies[i] = []byte(`{"prompt":"` + string(text) + `"}`)
		send(t, p, engine.Request{Body: bodies[i]})
	}
	h, err := block.NewHasher(block.Scope{Model: "m"}, 16, nil)
	require.NoError(t, err)
	for i, b := range bodies {
		var o kvindex.Overlap
		ix.Lookup(&o, h.AppendBytes(nil, b[len(`{"prompt":"`):len(b)-2], nil))
		require.Equal(t, 2000, o.Depth((*at)[i], kvindex.TierGPU))
	}
}
