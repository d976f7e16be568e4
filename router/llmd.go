package router

import (
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// llmdBlocks is how many blocks the private model holds for a worker by default.
const llmdBlocks = 31250

// LLMD is the default profile of llm-d's scheduler and of the Gateway API
// inference extension: a weighted sum of a queue score, the free share of KV
// memory and the share of the prompt that is cached. Queue and memory come from
// the engines' reports, so the caller's scrape interval decides how old they
// are; a worker whose report lacks a figure or is stale is judged by the ledger.
// What is cached comes from a private model: an LRU of the blocks it sent to each
// worker. It has state: one router, one value.
type LLMD struct {
	// Queue, KV and Prefix are the weights; all 0 = 2, 2, 3.
	Queue, KV, Prefix float64
	// Exact takes the index and outstanding requests in place of the private model.
	Exact bool
	// Blocks is the private model's size for a worker; 0 = 31,250.
	Blocks int

	seen map[kvindex.Slot]*simplelru.LRU[block.Hash, struct{}]
}

// Score is the negative weighted sum.
func (p *LLMD) Score(dst []float64, v *View, req *Request) {
	wq, wk, wp := p.Queue, p.KV, p.Prefix
	if wq == 0 && wk == 0 && wp == 0 {
		wq, wk, wp = 2, 2, 3
	}
	least, most := 0, 0
	for i := range dst {
		q := p.waiting(v, i)
		if i == 0 || q < least {
			least = q
		}
		most = max(most, q)
	}
	blocks := float64(max(1, v.Blocks()))
	for i := range dst {
		queue := 1.0
		if most > least {
			queue = float64(most-p.waiting(v, i)) / float64(most-least)
		}
		dst[i] = -(wq*queue + wk*(1-p.usage(v, i)) + wp*float64(p.match(v, i, req))/blocks)
	}
}

func (p *LLMD) waiting(v *View, i int) int {
	if load, _, ok := v.Load(i); ok && load.HasQueue {
		return load.Waiting
	}
	return v.rows[i].pending
}

func (p *LLMD) usage(v *View, i int) float64 {
	if load, _, ok := v.Load(i); ok && load.HasKV {
		return load.KVUsage
	}
	if n := v.rows[i].KVBlocks; n > 0 {
		return min(1, float64(v.UsedBlocks(i))/float64(n))
	}
	return 0.5
}

func (p *LLMD) match(v *View, i int, req *Request) int {
	if p.Exact {
		return v.Held(i)
	}
	lru := p.seen[v.rows[i].Slot]
	if lru == nil {
		return 0
	}
	for k, h := range req.Chain {
		if !lru.Contains(h) {
			return k
		}
	}
	return len(req.Chain)
}

// Assigned notes the blocks that the worker will have seen.
func (p *LLMD) Assigned(v *View, i int, req *Request) {
	if p.Exact {
		return
	}
	slot := v.rows[i].Slot
	lru := p.seen[slot]
	if lru == nil {
		size := p.Blocks
		if size <= 0 {
			size = llmdBlocks
		}
		lru, _ = simplelru.NewLRU[block.Hash, struct{}](size, nil) // only a size below 1 is an error
		if p.seen == nil {
			p.seen = make(map[kvindex.Slot]*simplelru.LRU[block.Hash, struct{}])
		}
		p.seen[slot] = lru
	}
	for _, h := range req.Chain {
		lru.Add(h, struct{}{})
	}
}

// WholeList is true for the private model, whose matches the index does not have.
func (p *LLMD) WholeList() bool { return !p.Exact }

// Forget drops the model of a worker that left.
func (p *LLMD) Forget(s kvindex.Slot) { delete(p.seen, s) }
