package pool

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// call is the state of one request. It is pooled.
type call struct {
	p     *Pool
	req   *engine.Request
	start time.Time

	tokens []uint32 // memory for a tokeniser
	ids    []uint32 // of the prompt, nil when unknown
	chain  []block.Hash
	prompt int  // tokens
	bytes  bool // chain and prompt are of bytes

	route    router.Request
	tried    []kvindex.Slot
	sub      engine.Request // what the worker is sent
	held     []heldChunk    // chunks before the first token
	heldSize int

	attempts int
	yielded  bool // something was passed on
	broken   bool // the consumer broke off
	first    time.Duration
	output   int
	byIDs    int // of output, those with ids
	usage    int // output tokens as the engine reported them, 0 = not
	cached   int // -1 = not reported
}

// heldChunk is a chunk with memory of its own.
type heldChunk struct {
	c     engine.Chunk
	usage engine.Usage
}

// Bounds of what is held back before the first token.
const (
	maxHeld      = 256
	maxHeldBytes = 64 << 10
)

// Generate implements [engine.Engine].
func (p *Pool) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		c := p.calls.Get().(*call)
		c.begin(p, req)
		err := c.run(ctx, yield)
		broken, yielded := c.broken, c.yielded
		c.release()
		if err == nil || broken {
			return
		}
		p.stats.failed.Add(1)
		if !yielded {
			// What an engine had yielded to us only was never delivered.
			var s *engine.StreamError
			if errors.As(err, &s) {
				err = s.Err
			}
		}
		yield(nil, err)
	}
}

func (c *call) begin(p *Pool, req *engine.Request) {
	c.p, c.req, c.start = p, req, time.Now()
	c.prompt, c.bytes, c.attempts, c.yielded, c.broken, c.first, c.output, c.cached = 0, false, 0, false, false, 0, 0, -1
	c.tried, c.ids = c.tried[:0], nil
	p.stats.requests.Add(1)
	p.budget.request()
}

// keepTokens is the longest prompt whose memory a pooled call keeps.
const keepTokens = 256 << 10

func (c *call) release() {
	p := c.p
	if cap(c.tokens) > keepTokens {
		c.tokens, c.chain = nil, nil
	}
	c.drop()
	c.p, c.req, c.ids, c.sub, c.route = nil, nil, nil, engine.Request{}, router.Request{}
	p.calls.Put(c)
}

// drop forgets the chunks held back.
func (c *call) drop() {
	clear(c.held)
	c.held, c.heldSize = c.held[:0], 0
}

func (c *call) run(ctx context.Context, yield func(*engine.Chunk, error) bool) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	req := c.req
	c.route = router.Request{
		Chain: c.chain, Tokens: c.prompt, MaxTokens: product(req.MaxTokens, max(req.N, 1)), Session: req.Session,
		Priority: req.Priority, Deadline: req.Deadline, Quiet: !req.Stream,
	}
	var l lease
	defer func() {
		if l != nil {
			l.Done(context.Canceled) // for a consumer that panicked; else it is done
		}
	}()
	name := ""
	var cause error
	for {
		next, err := c.pick(l, cause)
		if err != nil {
			if l != nil {
				c.ended(l, name, err)
			}
			return err
		}
		l = next
		m := c.p.members.Load().bySlot[l.Slot()]
		if name = ""; m != nil {
			name = m.Name
		}
		c.p.stats.picks.Add(1)
		c.attempts++
		if f := c.p.opts.Hooks.Picked; f != nil {
			f(req, name, l.Decision())
		}
		if cause = c.attempt(ctx, l, m, yield); c.broken {
			cause = context.Canceled
		}
		c.guessed(m, cause)
		if cause == nil || c.broken || !c.again(ctx, m, cause) {
			c.ended(l, name, cause)
			l.Done(blame(cause))
			return cause
		}
		c.drop()
	}
}

// product is a x b for b above 0, or the nearest int.
func product(a, b int) int {
	if a > math.MaxInt/b {
		return math.MaxInt
	}
	return max(a, math.MinInt/b) * b
}

// pick asks the router for a worker, or for another one when old failed.
func (c *call) pick(old lease, cause error) (lease, error) {
	start := time.Now()
	shortest := c.leaveOut(start)
	var l lease
	var err error
	if old == nil {
		l, err = c.p.router.Pick(&c.route)
	} else {
		l, err = c.p.router.Retry(old, &c.route, blame(cause))
	}
	c.req.Timeline.Add("pick", engine.Control, start, time.Now())
	if err == nil {
		return l, nil
	}
	c.p.stats.refused.Add(1)
	if cause != nil {
		return nil, cause // what the last worker said tells more
	}
	return nil, refusal(err, shortest)
}

// leaveOut fills the slots that must not be picked: those tried and those that
// rest. It returns the shortest of their remaining rests, 0 if none rests.
func (c *call) leaveOut(now time.Time) (shortest time.Duration) {
	c.route.Not = c.tried
	at := now.UnixNano()
	if c.p.resting.Load() <= at {
		return 0
	}
	not := slices.Clone(c.tried)
	for _, m := range c.p.members.Load().list {
		if rest := time.Duration(m.rest.Load() - at); rest > 0 {
			not = append(not, m.Slot)
			if shortest == 0 || rest < shortest {
				shortest = rest
			}
		}
	}
	c.route.Not = not
	return shortest
}

// refusal is the error for a request that no worker was picked for: to HTTP an
// overload with a time to come back, to errors.Is both engine.ErrUnavailable
// and the router's reason.
func refusal(err error, rest time.Duration) error {
	e := &engine.Error{Status: 503, Type: "service_unavailable", Message: "no worker is available", RetryAfter: rest}
	var r *router.RejectError
	if errors.As(err, &r) && r.Reason == router.ReasonOverloaded {
		e.Message = "all workers are overloaded"
		e.RetryAfter = max(rest, r.RetryAfter)
	}
	if errors.Is(err, router.ErrDeadline) {
		e.Status, e.Type, e.Message = 504, "timeout", "the request's deadline has passed"
	}
	return fmt.Errorf("%w: %w: %w", engine.ErrUnavailable, e, err)
}

// blame is what a lease is told of a failure: context.Canceled unless the
// worker is at fault.
func blame(err error) error {
	if err == nil || engine.Retryable(err) {
		return err
	}
	return context.Canceled
}

// again decides about one more attempt and waits before it.
func (c *call) again(ctx context.Context, m *member, err error) bool {
	if c.yielded || !engine.Retryable(err) || ctx.Err() != nil {
		return false
	}
	if d := engine.RetryAfter(err); d > 0 && m != nil {
		c.p.restFor(m, d)
	}
	untried := func(m *member) bool { return !slices.Contains(c.tried, m.Slot) }
	if c.attempts >= c.p.opts.MaxAttempts || !slices.ContainsFunc(c.p.members.Load().list, untried) {
		return false // no attempt or no worker is left
	}
	if !c.p.budget.take() {
		c.p.stats.exhausted.Add(1)
		return false
	}
	if !c.pause(ctx) {
		return false
	}
	c.p.stats.retries.Add(1)
	return true
}

// maxPause bounds a single pause between attempts.
const maxPause = time.Second

// pause waits before the third and later attempts: the second goes to another
// worker, which had no part in the failure.
func (c *call) pause(ctx context.Context) bool {
	if c.attempts < 2 {
		return true
	}
	mean := min(c.p.opts.Backoff<<min(c.attempts-2, 16), maxPause)
	start := time.Now()
	t := time.NewTimer(time.Duration((0.5 + c.p.opts.Rand()) * float64(mean)))
	defer t.Stop()
	defer func() { c.req.Timeline.Add("backoff", engine.Control, start, time.Now()) }()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt sends the request to one worker and passes its chunks on.
func (c *call) attempt(ctx context.Context, l lease, m *member, yield func(*engine.Chunk, error) bool) error {
	c.tried = append(c.tried, l.Slot())
	c.cached, c.output, c.byIDs, c.usage = -1, 0, 0, 0
	if m == nil {
		return fmt.Errorf("%w: worker %v has left", engine.ErrUnreachable, l.Slot())
	}
	c.sub = *c.req
	c.sub.Tokens = c.ids
	c.sub.Rank = m.rank
	if m.rank < 0 {
		c.sub.Rank = c.req.Rank
	}
	if c.attempts > 1 && c.sub.ID != "" {
		// An engine that has not yet noticed the end of the last attempt may
		// refuse its id.
		c.sub.ID += "-" + strconv.Itoa(c.attempts)
	}
	actx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !m.wait.enter(c, cancel) {
		return errDown
	}
	defer m.wait.leave(c)
	for chunk, err := range m.Engine.Generate(actx, &c.sub) {
		if err != nil {
			if !c.yielded && context.Cause(actx) == errDown {
				return errDown // whatever the engine made of it
			}
			return err
		}
		if u := chunk.Usage; u != nil {
			c.usage = u.Completion
			if u.Cached >= 0 {
				c.cached = u.Cached
			}
		}
		if c.output == 0 && chunk.Tokens == 0 && !c.yielded && c.hold(chunk) {
			continue
		}
		if !c.yielded && !m.wait.leave(c) {
			return errDown // it was taken back while this came
		}
		if !c.passHeld(yield) {
			return nil
		}
		if chunk.Tokens > 0 {
			c.count(l, chunk)
		}
		if !c.pass(chunk, yield) {
			return nil
		}
	}
	// An answer without a single token is whole all the same.
	if c.passHeld(yield) {
		c.total(l)
	}
	return nil
}

// count tells the lease of tokens as they come. Those of an answer that does not
// stream come all at the end, which is no time to learn the first one's from.
func (c *call) count(l lease, chunk *engine.Chunk) {
	n := chunk.Tokens
	c.output += n
	c.byIDs += len(chunk.TokenIDs)
	if !c.req.Stream {
		return
	}
	if c.output == n {
		c.first = time.Since(c.start)
	}
	l.Tokens(n)
}

// total tells the lease how many tokens a whole answer had, if that is known:
// without usage, those of one that does not stream have to be counted by ids,
// since a text is any number of them.
func (c *call) total(l lease) {
	n := c.usage
	if n == 0 && !c.req.Stream && c.byIDs == c.output {
		n = c.byIDs
	}
	if n > 0 {
		c.output = n
		l.Output(n)
	}
}

func (c *call) pass(chunk *engine.Chunk, yield func(*engine.Chunk, error) bool) bool {
	c.yielded = true
	if !yield(chunk, nil) {
		c.broken = true
	}
	return !c.broken
}

// hold keeps a copy of a chunk without tokens, and reports whether there was
// room.
func (c *call) hold(chunk *engine.Chunk) bool {
	if len(c.held) >= maxHeld || c.heldSize+len(chunk.Raw) > maxHeldBytes {
		return false
	}
	c.heldSize += len(chunk.Raw)
	c.held = append(c.held, heldChunk{c: *chunk})
	h := &c.held[len(c.held)-1]
	h.c.Raw = slices.Clone(chunk.Raw)
	h.c.TokenIDs = slices.Clone(chunk.TokenIDs)
	if chunk.Usage != nil {
		h.usage = *chunk.Usage
	}
	return true
}

// passHeld yields what was held back.
func (c *call) passHeld(yield func(*engine.Chunk, error) bool) bool {
	for i := range c.held {
		h := &c.held[i]
		if h.c.Usage != nil {
			h.c.Usage = &h.usage
		}
		h.c.More = true // the chunk that ended the wait follows
		if !c.pass(&h.c, yield) {
			return false
		}
	}
	c.drop()
	return true
}

// ended writes down how the request went, before its lease is done.
func (c *call) ended(l lease, name string, err error) {
	p := c.p
	if c.cached >= 0 {
		l.Cached(c.cached)
	}
	p.stats.outputTokens.Add(uint64(c.output))
	if err == nil && c.cached >= 0 {
		p.stats.predicted.Add(uint64(l.Decision().Hit))
		p.stats.cached.Add(uint64(c.cached))
		p.stats.cachedOf.Add(uint64(c.prompt))
	}
	if f := p.opts.Hooks.Ended; f != nil {
		f(c.req, &Outcome{
			Worker: name, Slot: l.Slot(), Decision: l.Decision(), Attempts: c.attempts, Prompt: c.prompt, Bytes: c.bytes,
			Cached: c.cached, Tokens: c.output, FirstToken: c.first, Total: time.Since(c.start), Err: err,
		})
	}
}
