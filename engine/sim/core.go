package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/stator-go/stator/kvindex"
)

// A Core is one simulated engine. See the package comment. Times are seconds
// from any origin and must not run backwards.
type Core struct {
	cfg  Config
	pool pool

	seqs    []seq // slab; running and waiting hold indices
	free    []int32
	byID    map[uint64]int32
	running []int32 // in order of admission
	waiting []int32 // from head on, first come first served
	head    int

	busy bool
	end  float64 // of the step in flight

	pend, out eventBuf // being written, being read
	result    Output
	buf       []byte // scratch of the hash function
	st        Stats
}

// A seq is a request in the engine.
type seq struct {
	req      *Req
	prompt   int
	total    int // prompt tokens and output tokens so far
	computed int // tokens with KV, after the step in flight is counted
	sched    int // tokens in the step in flight
	output   int
	cached   int // hit at first admission
	stored   int // tokens in blocks brought into the cache
	named    int // leading blocks that bear their name
	blocks   []int32
	names    []uint64 // of complete blocks
	toks     []uint32 // prompt and output, if the request has ids
	chain    chainer
	model    uint64 // state of the model behind toks
	load     float64
	admitted bool // at least once
}

// eventBuf owns the memory of one step's cache events.
type eventBuf struct {
	events []CacheEvent
	names  []uint64 // of removals
}

func (b *eventBuf) reset() { b.events, b.names = b.events[:0], b.names[:0] }

// NewCore makes an idle engine with an empty cache.
func NewCore(cfg Config) (*Core, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Core{cfg: cfg, pool: newPool(cfg.CacheBlocks), byID: map[uint64]int32{}}, nil
}

// Config is the configuration with defaults filled in.
func (c *Core) Config() Config { return c.cfg }

// Clone copies the engine with everything in it. Requests are shared.
func (c *Core) Clone() *Core {
	n := *c
	n.pool = c.pool.clone()
	n.seqs = slices.Clone(c.seqs)
	for i := range n.seqs {
		s := &n.seqs[i]
		s.blocks, s.toks = slices.Clone(s.blocks), slices.Clone(s.toks)
		if s.req != nil && s.req.Tokens != nil { // else a view of the request's Chain
			s.names = slices.Clone(s.names)
		}
	}
	n.free, n.byID = slices.Clone(c.free), maps.Clone(c.byID)
	n.running, n.waiting = slices.Clone(c.running), slices.Clone(c.waiting)
	n.pend.events, n.pend.names = slices.Clone(c.pend.events), nil
	n.out, n.result, n.buf = eventBuf{}, Output{}, nil
	return &n
}

// Idle tells that no step is in flight: after an Add, Step must be called.
func (c *Core) Idle() bool { return !c.busy }

// Stats returns the present figures.
func (c *Core) Stats() Stats {
	s := c.st
	s.Running, s.Waiting = len(c.running), len(c.waiting)-c.head
	s.UsedBlocks, s.RunBlocks, s.CachedBlocks = c.pool.used, c.cfg.RunBlocks, c.pool.named
	return s
}

// Cached is the number of leading names that the cache holds now.
func (c *Core) Cached(chain []uint64) int {
	n, _ := c.pool.match(chain)
	return n
}

// Add queues a request. It is considered when the next step starts.
func (c *Core) Add(r *Req) error {
	n := r.prompt()
	if n < 1 || r.Out < 1 {
		return fmt.Errorf("%w: %d prompt tokens, %d output tokens", ErrBadRequest, n, r.Out)
	}
	if _, dup := c.byID[r.ID]; dup {
		return fmt.Errorf("%w: id %d is in use", ErrBadRequest, r.ID)
	}
	if r.Out > math.MaxInt32 || n > math.MaxInt32 || c.reserve(n, r.Out) > c.cfg.RunBlocks {
		return fmt.Errorf("%w: %d prompt and %d output tokens", ErrTooLong, n, r.Out)
	}
	i := c.newSeq()
	s := &c.seqs[i]
	s.req, s.prompt, s.total = r, n, n
	bs := c.cfg.BlockTokens
	if r.Tokens == nil {
		s.names = r.Chain[:min(len(r.Chain), n/bs)]
		s.names = s.names[:len(s.names):len(s.names)]
	} else {
		s.toks = append(make([]uint32, 0, n+min(r.Out, 1024)), r.Tokens...)
		s.names = make([]uint64, 0, (n+min(r.Out, 1024))/bs+1)
		s.chain = newChainer(c.cfg.Hash)
		s.model = c.cfg.Model.start(r.Adapter, r.Seed)
		for _, t := range r.Tokens {
			s.model = c.cfg.Model.absorb(s.model, t)
		}
		for j := bs; j <= n; j += bs {
			c.nameNext(s)
		}
	}
	c.byID[r.ID] = i
	c.waiting = append(c.waiting, i)
	return nil
}

func (c *Core) newSeq() int32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		c.seqs[i] = seq{blocks: c.seqs[i].blocks[:0]}
		return i
	}
	c.seqs = append(c.seqs, seq{})
	return int32(len(c.seqs) - 1)
}

// nameNext names the next complete block of a sequence with ids.
func (c *Core) nameNext(s *seq) {
	at := len(s.names) * c.cfg.BlockTokens
	var name uint64
	name, c.buf = s.chain.next(c.buf, s.toks[at:at+c.cfg.BlockTokens], s.req)
	s.names = append(s.names, name)
}

// reserve is the number of blocks that a request is promised at admission when
// nothing is preempted; with preemption, what it can need at most.
func (c *Core) reserve(prompt, out int) int {
	n := (prompt + out + c.cfg.BlockTokens - 1) / c.cfg.BlockTokens
	if !c.cfg.Preempt {
		n++
	}
	return n
}

// Cancel ends a request at once and frees what it holds. Blocks that bear names
// stay cached. It reports whether the request was there.
func (c *Core) Cancel(id uint64) bool {
	i, ok := c.byID[id]
	if !ok {
		return false
	}
	if j := slices.Index(c.running, i); j >= 0 {
		c.running = slices.Delete(c.running, j, j+1)
	} else if j := slices.Index(c.waiting[c.head:], i); j >= 0 {
		c.waiting = slices.Delete(c.waiting, c.head+j, c.head+j+1)
	}
	c.drop(i)
	c.st.Cancelled++
	return true
}

// drop frees a sequence that is in no list any more.
func (c *Core) drop(i int32) {
	s := &c.seqs[i]
	c.releaseAll(s)
	delete(c.byID, s.req.ID)
	*s = seq{blocks: s.blocks}
	c.free = append(c.free, i)
}

// releaseAll gives the blocks back, the deepest first.
func (c *Core) releaseAll(s *seq) {
	for j := len(s.blocks) - 1; j >= 0; j-- {
		c.pool.release(s.blocks[j])
	}
	s.blocks = s.blocks[:0]
}

// Reset empties the prefix cache. It does nothing and returns false while
// sequences hold blocks. The news of it comes with the next step.
func (c *Core) Reset() bool {
	if c.pool.used > 0 {
		return false
	}
	c.pool.clear()
	c.pend.events = append(c.pend.events, CacheEvent{Event: kvindex.Event{Kind: kvindex.EventCleared}})
	return true
}

// Step ends the step in flight if it ends at or before now, and starts the next
// one at now if there is work. It returns when to call again: the end of the
// step in flight, or +Inf when the engine is idle.
//
// The output tells the results of the step that ended. Cache events come with
// the results of the step in which they happened; with
// Config.PublishAtPrefillEnd at once.
func (c *Core) Step(now float64) (next float64, out *Output) {
	out = &c.result
	out.Stepped, out.At = false, now
	out.Tokens, out.Cache, out.Preempted = out.Tokens[:0], nil, out.Preempted[:0]
	if c.busy {
		if now < c.end {
			return c.end, out
		}
		out.Stepped, out.At = true, c.end
		c.busy = false
		c.finishStep(out)
		if !c.cfg.PublishAtPrefillEnd {
			c.drain(out)
		}
	}
	c.startStep(now, out)
	if c.cfg.PublishAtPrefillEnd && (c.busy || out.Stepped) {
		c.drain(out)
	}
	if !c.busy {
		return math.Inf(1), out
	}
	return c.end, out
}

// drain hands the pending events to the output.
func (c *Core) drain(out *Output) {
	c.pend, c.out = c.out, c.pend
	c.pend.reset()
	out.Cache = c.out.events
}

// startStep schedules: running sequences first, then waiting ones while there
// is budget and memory.
func (c *Core) startStep(now float64, out *Output) {
	var (
		budget    = c.cfg.Timing.Chunk
		ctx, load float64
		kv, dec   int
		preempted bool
	)
	for i := 0; i < len(c.running); i++ {
		s := &c.seqs[c.running[i]]
		n := s.total - s.computed
		decoding := n == 1 && s.output > 0
		if !decoding {
			n = min(n, budget)
		}
		s.sched = 0
		if n == 0 {
			continue
		}
		if c.cfg.Preempt && !c.makeRoom(c.running[i], s.computed+n, out, &preempted) {
			break // it was itself the last
		}
		if decoding {
			dec++
			kv += s.computed
		} else {
			ctx += float64(n) * (float64(s.computed) + float64(n)/2)
			budget -= n
		}
		c.schedule(s, n)
	}
	for !preempted && budget > 0 && c.head < len(c.waiting) && len(c.running) < c.cfg.MaxSeqs {
		i := c.waiting[c.head]
		s := &c.seqs[i]
		if !c.admit(s, budget) {
			break
		}
		if c.head++; c.head > 64 && c.head > len(c.waiting)/2 {
			c.waiting = slices.Delete(c.waiting, 0, c.head)
			c.head = 0
		}
		c.running = append(c.running, i)
		n := min(budget, s.total-s.computed)
		ctx += float64(n) * (float64(s.computed) + float64(n)/2)
		load += s.load
		budget -= n
		c.schedule(s, n)
	}
	p := c.cfg.Timing.Chunk - budget
	if p == 0 && dec == 0 {
		return
	}
	d := c.cfg.Timing.step(p, ctx, dec, kv) + load
	c.busy, c.end = true, now+d
	c.st.BusySeconds += d
}

// schedule counts n tokens as computed and, in vLLM's way, names the blocks that
// they complete.
func (c *Core) schedule(s *seq, n int) {
	s.sched = n
	s.computed += n
	if !c.cfg.PublishAtPrefillEnd {
		c.publish(s, min(len(s.names), s.computed/c.cfg.BlockTokens))
	}
}

// makeRoom gives a sequence blocks for tokens, preempting from the back. False
// means that the sequence itself had to go.
func (c *Core) makeRoom(i int32, tokens int, out *Output, preempted *bool) bool {
	s := &c.seqs[i]
	for len(s.blocks)*c.cfg.BlockTokens < tokens {
		if c.pool.used < c.cfg.RunBlocks {
			s.blocks = append(s.blocks, c.alloc())
			continue
		}
		last := len(c.running) - 1
		v := c.running[last]
		c.running = c.running[:last]
		c.preempt(v, out)
		*preempted = true
		if v == i {
			return false
		}
	}
	return true
}

// preempt puts a sequence back to the head of the queue with nothing computed.
func (c *Core) preempt(i int32, out *Output) {
	s := &c.seqs[i]
	c.releaseAll(s)
	s.computed, s.sched, s.named = 0, 0, 0
	if c.head > 0 {
		c.head--
		c.waiting[c.head] = i
	} else {
		c.waiting = slices.Insert(c.waiting, 0, i)
	}
	c.st.Preemptions++
	out.Preempted = append(out.Preempted, s.req)
}

// admit finds the cached prefix and takes memory; false when it is short.
func (c *Core) admit(s *seq, budget int) bool {
	bs := c.cfg.BlockTokens
	limit := len(s.names)
	if !c.cfg.PublishAtPrefillEnd {
		limit = min(limit, (s.total-1)/bs)
	}
	if s.req.NoCacheRead {
		limit = 0
	}
	k, idle := c.pool.match(s.names[:limit])
	hit := min(k*bs, s.total-1)
	need := c.reserve(s.prompt, s.req.Out) - k
	if c.cfg.Preempt {
		need = (hit+min(budget, s.total-hit)+bs-1)/bs - k
	}
	if c.pool.used+idle+need > c.cfg.RunBlocks {
		return false
	}
	for _, name := range s.names[:k] {
		s.blocks = append(s.blocks, c.pool.pin(name))
	}
	for range need {
		s.blocks = append(s.blocks, c.alloc())
	}
	s.computed, s.named = hit, k
	s.load = c.cfg.Timing.Load * float64(hit)
	if k > 0 && s.req.FullReport {
		c.announce(s, 0, k)
	}
	if !s.admitted {
		s.admitted = true
		s.cached = hit
		c.st.Queries += uint64(s.prompt)
		c.st.Hits += uint64(hit)
		c.st.PromptTokens += uint64(s.prompt)
	}
	return true
}

// alloc takes a block and announces what had to go for it.
func (c *Core) alloc() int32 {
	b, name, evicted := c.pool.alloc()
	if evicted {
		c.st.Evictions++
		n := len(c.pend.names)
		c.pend.names = append(c.pend.names, name)
		c.pend.events = append(c.pend.events, CacheEvent{Event: kvindex.Event{
			Kind: kvindex.EventRemoved, Hashes: c.pend.names[n : n+1 : n+1], GroupSaid: true, Prefix: true,
		}})
	}
	return b
}

// publish names the sequence's blocks up to (not including) block to.
func (c *Core) publish(s *seq, to int) {
	from := s.named
	if to <= from {
		return
	}
	s.named = to
	if !c.cfg.PublishAtPrefillEnd {
		for j := from; j < to; j++ {
			c.pool.name(s.blocks[j], s.names[j])
		}
		c.announce(s, from, to)
		s.stored += (to - from) * c.cfg.BlockTokens
		return
	}
	// Copies merge: a name that somebody else brought in meanwhile is used
	// instead of our block.
	start := from
	for j := from; j < to; j++ {
		if _, held := c.pool.byName[s.names[j]]; held {
			own := s.blocks[j]
			s.blocks[j] = c.pool.pin(s.names[j])
			c.pool.release(own)
			c.announce(s, start, j)
			start = j + 1
			continue
		}
		c.pool.name(s.blocks[j], s.names[j])
		s.stored += c.cfg.BlockTokens
	}
	c.announce(s, start, to)
}

// announce tells that the blocks from (including) to (excluding) are stored.
func (c *Core) announce(s *seq, from, to int) {
	if from >= to {
		return
	}
	ev := CacheEvent{Session: s.req.Session, Event: kvindex.Event{
		Kind: kvindex.EventStored, Hashes: s.names[from:to:to], BlockSize: c.cfg.BlockTokens,
		Adapter: s.req.Adapter, GroupSaid: true, Prefix: true,
	}}
	if from > 0 {
		ev.Parent, ev.HasParent = s.names[from-1], true
	} else {
		ev.Salt = s.req.Salt
	}
	if s.toks != nil {
		ev.Tokens = s.toks[from*c.cfg.BlockTokens : to*c.cfg.BlockTokens : to*c.cfg.BlockTokens]
	}
	c.pend.events = append(c.pend.events, ev)
}

// finishStep gives every sequence whose tokens are all computed its next token.
func (c *Core) finishStep(out *Output) {
	c.st.Steps++
	keep := c.running[:0]
	for _, i := range c.running {
		s := &c.seqs[i]
		if s.sched == 0 || s.computed < s.total {
			keep = append(keep, i)
			continue
		}
		s.sched = 0
		if c.cfg.PublishAtPrefillEnd && s.named < len(s.names) {
			c.publish(s, min(len(s.names), s.computed/c.cfg.BlockTokens))
		}
		s.output++
		s.total++
		c.st.OutputTokens++
		t := Token{Req: s.req, Count: s.output, Cached: s.cached, Stored: s.stored}
		if s.toks != nil {
			t.ID = c.cfg.Model.next(s.model, s.req.IgnoreEOS)
			t.Stopped = t.ID == EOS
			s.toks = append(s.toks, t.ID)
			s.model = c.cfg.Model.absorb(s.model, t.ID)
			if s.total%c.cfg.BlockTokens == 0 {
				c.nameNext(s)
			}
		}
		t.Done = t.Stopped || s.output >= s.req.Out
		if t.Done || c.cfg.PerToken || s.output == 1 {
			out.Tokens = append(out.Tokens, t)
		}
		if t.Done {
			c.st.Finished++
			c.drop(i)
			continue
		}
		keep = append(keep, i)
	}
	c.running = keep
}
