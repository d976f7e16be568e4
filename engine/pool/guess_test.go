package pool

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// fakeIndex is a set of blocks a slot.
type fakeIndex struct {
	mu     sync.Mutex
	held   map[kvindex.Slot]map[block.Hash]bool
	clears int
	err    error // of the next stores
}

func (x *fakeIndex) Store(s kvindex.Slot, t kvindex.Tier, parent block.Hash, chain []block.Hash) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return x.err
	}
	if parent != 0 || t != kvindex.TierGPU {
		return kvindex.ErrParent
	}
	if x.held == nil {
		x.held = map[kvindex.Slot]map[block.Hash]bool{}
	}
	if x.held[s] == nil {
		x.held[s] = map[block.Hash]bool{}
	}
	for _, h := range chain {
		x.held[s][h] = true
	}
	return nil
}

func (x *fakeIndex) Remove(s kvindex.Slot, _ kvindex.Tier, hashes []block.Hash) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, h := range hashes {
		delete(x.held[s], h)
	}
}

func (x *fakeIndex) Clear(s kvindex.Slot, _ ...kvindex.Tier) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clears++
	delete(x.held, s)
}

// A second request with the same beginning is expected to find it, on the worker
// that had the first, by bytes as by tokens, once the pool may guess.
func TestGuessesAreFound(t *testing.T) {
	for _, guess := range []bool{false, true} {
		ix, err := kvindex.New(nil)
		require.NoError(t, err)
		r, err := router.New(ix, nil)
		require.NoError(t, err)
		var hits []int
		var at []string
		opts := &Options{Hooks: Hooks{Ended: func(_ *engine.Request, o *Outcome) {
			hits, at = append(hits, o.Decision.Hit), append(at, o.Worker)
		}}}
		if guess {
			opts.Guess = ix
		}
		p, err := New(r, opts)
		require.NoError(t, err)
		var ws []Worker
		for _, name := range []string{"a", "b", "c"} {
			ws = append(ws, Worker{Worker: router.Worker{Slot: ix.Attach(name, 0), Name: name}, Engine: good()})
		}
		require.NoError(t, p.Set(ws))
		for i := range 6 {
			req := request()
			if req.Tokens = nil; i >= 3 {
				req.Tokens = make([]uint32, 64)
			}
			req.Body = fmt.Appendf(nil, `{"prompt":"%0320d and %d"}`, 0, i)
			_, err := run(t.Context(), p, req)
			require.NoError(t, err)
		}
		if !guess {
			require.Equal(t, []int{0, 0, 0, 0, 0, 0}, hits)
			require.Zero(t, p.Stats().Guesses)
			continue
		}
		// 320 bytes are five blocks of 64; of 64 tokens the last is computed anyhow.
		require.Equal(t, []int{0, 80, 80, 0, 63, 63}, hits)
		require.Equal(t, at[0], at[1])
		require.Equal(t, at[0], at[2])
		require.Equal(t, at[3], at[4])
		require.Equal(t, uint64(6), p.Stats().Guesses)
	}
}

// What the pool takes a worker to hold is what a plain list of its latest blocks
// says, whole prefixes only and never more than the budget.
func TestGuessModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 6
		x := &fakeIndex{}
		p, err := newPool(&fakeRouter{}, &Options{Guess: x, GuessBlocks: size})
		require.NoError(t, err)
		w := &Worker{Worker: router.Worker{Slot: kvindex.MakeSlot(1, 1)}}
		g := new(guess)
		parent := map[block.Hash]block.Hash{}
		var model []block.Hash // newest first
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			// A path of a small tree: a block's hash is its parent's and its digit.
			var chain []block.Hash
			at := block.Hash(1)
			for range rapid.IntRange(0, 9).Draw(t, "length") {
				next := at*4 + block.Hash(rapid.IntRange(0, 2).Draw(t, "digit"))
				parent[next] = at
				chain = append(chain, next)
				at = next
			}
			g.store(p, w, chain)
			chain = chain[:min(len(chain), size)]
			for _, h := range slices.Backward(chain) {
				if i := slices.Index(model, h); i >= 0 {
					model = slices.Delete(model, i, i+1)
				}
				model = slices.Insert(model, 0, h)
			}
			model = model[:min(len(model), size)]
			held := x.held[w.Slot]
			require.Len(t, held, len(model))
			for _, h := range model {
				require.True(t, held[h])
				require.True(t, parent[h] == 1 || held[parent[h]], "a block without its parent")
			}
		}
	})
}

func TestGuessLosses(t *testing.T) {
	slot := kvindex.MakeSlot(1, 1)
	worker := func(e engine.Engine) []Worker {
		return []Worker{{Worker: router.Worker{Slot: slot, Name: "a"}, Engine: e}}
	}
	start := func(t *testing.T, e engine.Engine) (*Pool, *fakeIndex) {
		x := &fakeIndex{}
		p, _ := newTestPool(t, &Options{Guess: x}, e)
		_, err := run(t.Context(), p, request())
		require.NoError(t, err)
		require.Len(t, x.held[slot], 2)
		return p, x
	}
	t.Run("index full", func(t *testing.T) {
		p, x := start(t, good())
		x.err = kvindex.ErrBudget
		_, err := run(t.Context(), p, request())
		require.NoError(t, err)
		require.Empty(t, x.held[slot])
		x.err = nil
		_, err = run(t.Context(), p, request())
		require.NoError(t, err)
		require.Len(t, x.held[slot], 2, "it goes on")
		require.Equal(t, uint64(1), p.Stats().GuessesDropped)
		require.Equal(t, uint64(2), p.Stats().Guesses)
	})
	t.Run("slot fed by events", func(t *testing.T) {
		p, x := start(t, good())
		x.err = kvindex.ErrNaming
		_, err := run(t.Context(), p, request())
		require.NoError(t, err)
		x.err = nil
		_, err = run(t.Context(), p, request())
		require.NoError(t, err)
		require.Equal(t, uint64(1), p.Stats().Guesses, "never tried again")
		require.Zero(t, x.clears)
	})
	t.Run("events announced", func(t *testing.T) {
		p, x := start(t, good())
		ws := worker(good())
		ws[0].Events = true
		require.NoError(t, p.Set(ws))
		require.Empty(t, x.held[slot])
		_, err := run(t.Context(), p, request())
		require.NoError(t, err)
		require.Equal(t, uint64(1), p.Stats().Guesses)
	})
	t.Run("worker unreachable", func(t *testing.T) {
		e := good()
		p, x := start(t, e)
		e.chunks, e.err = nil, fmt.Errorf("%w: refused", engine.ErrUnreachable)
		_, err := run(t.Context(), p, request())
		require.Error(t, err)
		require.Empty(t, x.held[slot])
	})
	t.Run("worker refuses", func(t *testing.T) {
		e := good()
		p, x := start(t, e)
		e.chunks, e.err = nil, &engine.Error{Status: 400}
		req := request()
		req.Tokens = make([]uint32, 99)
		_, err := run(t.Context(), p, req)
		require.Error(t, err)
		require.Len(t, x.held[slot], 2, "nothing new, nothing lost")
	})
	t.Run("worker leaves", func(t *testing.T) {
		p, x := start(t, good())
		m := p.members.Load().bySlot[slot]
		require.NoError(t, p.Set(worker(good())))
		require.Len(t, x.held[slot], 2, "one that stays keeps it")
		require.NoError(t, p.Set(nil))
		require.Empty(t, x.held[slot])
		m.guess.store(p, &m.Worker, []block.Hash{1, 2})
		require.Empty(t, x.held[slot], "a late end stores nothing")
	})
	t.Run("client leaves after the first token", func(t *testing.T) {
		x := &fakeIndex{}
		p, _ := newTestPool(t, &Options{Guess: x}, good())
		for c := range p.Generate(t.Context(), request()) {
			if c.Tokens > 0 {
				break
			}
		}
		require.Len(t, x.held[slot], 2)
	})
	t.Run("nothing served", func(t *testing.T) {
		x := &fakeIndex{}
		p, _ := newTestPool(t, &Options{Guess: x}, &script{chunks: []engine.Chunk{{Raw: []byte("x")}}, err: engine.ErrNotServed})
		_, err := run(t.Context(), p, request())
		require.Error(t, err)
		require.Empty(t, x.held[slot])
	})
}
