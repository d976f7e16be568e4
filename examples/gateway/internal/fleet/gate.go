package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// A target is one slot that requests can be sent to.
type target struct {
	slot   kvindex.Slot
	name   string
	worker *vllm.Worker
	rank   int // -1 = the engine's choice
	models []engine.Model
}

// A gate picks a worker for each request and sends it there; one that fails
// before its first chunk goes to another worker.
type gate struct {
	f       *Fleet
	hasher  *block.Hasher
	targets atomic.Pointer[map[kvindex.Slot]target]
	chains  sync.Pool
}

func newGate(f *Fleet) (*gate, error) {
	h, err := block.NewHasher(f.scope(nil), f.opts.BlockTokens, nil)
	g := &gate{f: f, hasher: h}
	g.set(nil)
	return g, err
}

func (g *gate) set(list []target) {
	m := make(map[kvindex.Slot]target, len(list))
	for _, t := range list {
		m[t.slot] = t
	}
	g.targets.Store(&m)
}

// Models lists what the workers serve, each name once.
func (g *gate) Models(context.Context) ([]engine.Model, error) {
	var out []engine.Model
	seen := map[string]bool{}
	for _, t := range *g.targets.Load() {
		for _, m := range t.models {
			if !seen[m.ID] {
				seen[m.ID] = true
				out = append(out, m)
			}
		}
	}
	return out, nil
}

const maxTries = 4

// Generate implements engine.Engine.
func (g *gate) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		start := time.Now()
		chain, _ := g.chains.Get().(*[]block.Hash)
		if chain == nil {
			chain = new([]block.Hash)
		}
		defer g.chains.Put(chain)
		tokens := max(1, len(req.Body)/4)
		if req.Tokens != nil {
			*chain = g.hasher.AppendHashes((*chain)[:0], req.Tokens, req.Media)
			tokens = len(req.Tokens)
		} else {
			*chain = g.hasher.AppendBytes((*chain)[:0], req.Body, nil)
		}
		pick := &router.Request{Chain: *chain, Tokens: tokens, MaxTokens: req.MaxTokens, Session: req.Session, Priority: req.Priority, Deadline: req.Deadline}
		lease, err := g.f.router.Pick(pick)
		req.Timeline.Add("route", engine.Control, start, time.Now())
		for try := 1; ; try++ {
			if err != nil {
				yield(nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err))
				return
			}
			again, failure := g.try(ctx, req, lease, yield)
			if !again || try == maxTries {
				lease.Done(failure)
				if failure != nil && !errors.Is(failure, errBroken) {
					yield(nil, failure)
				}
				return
			}
			pick.Not = append(pick.Not, lease.Slot())
			lease, err = lease.Retry(pick, failure)
		}
	}
}

// errBroken says that the caller broke off: nobody's failure.
var errBroken = fmt.Errorf("fleet: broken off: %w", context.Canceled)

// try runs the request on the lease's worker; again says that nothing of the
// answer was passed on and another worker may do better.
func (g *gate) try(ctx context.Context, req *engine.Request, lease *router.Lease, yield func(*engine.Chunk, error) bool) (again bool, err error) {
	t, ok := (*g.targets.Load())[lease.Slot()]
	if !ok {
		return true, engine.ErrUnreachable
	}
	if h := g.f.opts.Hooks.Sent; h != nil {
		h(req, t.name)
	}
	r := *req
	r.Rank = t.rank
	start, passed := time.Now(), false
	for c, err := range t.worker.Generate(ctx, &r) {
		if err != nil {
			return !passed && engine.Retryable(err) && ctx.Err() == nil, err
		}
		if c.Tokens > 0 {
			if !passed {
				req.Timeline.Add("prefill", engine.Compute, start, time.Now())
			}
			lease.Tokens(c.Tokens)
		}
		if c.Usage != nil && c.Usage.Cached >= 0 {
			lease.Cached(c.Usage.Cached)
		}
		passed = true
		if !yield(c, nil) {
			return false, errBroken
		}
	}
	return false, nil
}
