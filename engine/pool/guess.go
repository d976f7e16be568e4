package pool

import (
	"errors"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// A Storer is the part of an index that a pool writes its guesses to.
// *kvindex.Index is one. It must be safe for concurrent use and must not keep
// the slices.
type Storer interface {
	// Store notes that the slot holds the blocks of chain in the tier, each the
	// child of its predecessor and the first that of parent, 0 for the root. An
	// error of kvindex.ErrNaming or kvindex.ErrSlot ends guessing for the slot,
	// another one drops what was stored there.
	Store(s kvindex.Slot, t kvindex.Tier, parent block.Hash, chain []block.Hash) error
	// Remove notes that the slot does not hold the blocks any more.
	Remove(s kvindex.Slot, t kvindex.Tier, hashes []block.Hash)
	// Clear notes that the slot holds nothing any more in the tiers.
	Clear(s kvindex.Slot, tiers ...kvindex.Tier)
}

// A guess is what one worker is taken to hold for no better reason than that
// its requests passed here: the blocks of the latest of them, as many as its
// budget says. The worker may have dropped any of them, and has others.
type guess struct {
	mu   sync.Mutex
	off  bool                                 // the slot is not ours to write, or is gone
	lru  *simplelru.LRU[block.Hash, struct{}] // nil = nothing yet; a block is always newer than its children
	gone []block.Hash                         // evicted while a chain is added
}

// store notes that the slot now holds the chain.
func (g *guess) store(p *Pool, w *Worker, chain []block.Hash) {
	size := w.KVBlocks
	if size == 0 {
		size = p.opts.GuessBlocks
	}
	chain = chain[:min(len(chain), size)]
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.off || len(chain) == 0 {
		return
	}
	if g.lru == nil {
		// Only a size below 1 is an error.
		g.lru, _ = simplelru.NewLRU(size, func(h block.Hash, _ struct{}) { g.gone = append(g.gone, h) })
	}
	g.lru.Resize(size)
	// Deepest first: what is evicted is then the end of some chain, and never
	// what others hang on.
	for i := len(chain) - 1; i >= 0; i-- {
		g.lru.Add(chain[i], struct{}{})
	}
	// A block of this very chain may have been evicted and added again.
	kept := g.gone[:0]
	for _, h := range g.gone {
		if !g.lru.Contains(h) {
			kept = append(kept, h)
		}
	}
	x := p.opts.Guess
	if len(kept) > 0 {
		x.Remove(w.Slot, kvindex.TierGPU, kept)
	}
	g.gone = g.gone[:0]
	switch err := x.Store(w.Slot, kvindex.TierGPU, 0, chain); {
	case err == nil:
		p.stats.guesses.Add(1)
	case errors.Is(err, kvindex.ErrNaming), errors.Is(err, kvindex.ErrSlot):
		g.off = true
		g.lru = nil
	default: // kvindex.ErrBudget, or the index's own reason
		g.clear(p, w.Slot)
	}
}

// forget drops all that the slot was taken to hold.
func (g *guess) forget(p *Pool, s kvindex.Slot, forEver bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.off {
		g.clear(p, s)
	}
	g.off = g.off || forEver
}

// clear is forget under the mutex.
func (g *guess) clear(p *Pool, s kvindex.Slot) {
	if g.lru == nil {
		return
	}
	g.lru = nil
	g.gone = g.gone[:0]
	p.opts.Guess.Clear(s, kvindex.TierGPU)
	p.stats.guessesDropped.Add(1)
}

// guessed writes down what an attempt that ended with err tells of the worker's
// cache.
func (c *call) guessed(m *member, err error) {
	if m == nil || m.guess == nil {
		return
	}
	switch {
	case errors.Is(err, engine.ErrUnreachable), errors.Is(err, engine.ErrCut):
		// Its process may have ended, and its cache with it.
		m.guess.forget(c.p, m.Slot, false)
	case err == nil, c.output > 0 && !engine.Retryable(err):
		// The prompt was computed to its end.
		m.guess.store(c.p, &m.Worker, c.chain)
	}
}
