package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// A Worker is one slot of a pool.
type Worker struct {
	router.Worker
	// Engine answers its requests. Workers of one engine, one a rank, share it.
	Engine engine.Engine
	// Ranks is the number of data-parallel ranks that the engine has, and Rank
	// which of them this slot is. With more than one, requests pin it; 0 and 1
	// both mean one.
	Ranks, Rank int
	// Events says that the engine's events feed the slot in the index, so that the
	// pool has nothing to guess there. A slot must not be fed in both ways: the
	// index refuses the second.
	Events bool
}

// chooser is what a pool needs of a router. A *router.Router is one, by routed.
type chooser interface {
	SetWorkers([]router.Worker) error
	Pick(*router.Request) (lease, error)
	Retry(lease, *router.Request, error) (lease, error)
}

// lease is what a pool needs of a *router.Lease.
type lease interface {
	Slot() kvindex.Slot
	Decision() *router.Decision
	FirstToken()
	Tokens(n int)
	Output(n int)
	Cached(tokens int)
	Done(err error)
}

// routed makes a chooser of a router.
type routed struct{ *router.Router }

func (r routed) Pick(req *router.Request) (lease, error) {
	l, err := r.Router.Pick(req)
	if err != nil {
		return nil, err // not a lease that holds a nil pointer
	}
	return l, nil
}

func (r routed) Retry(old lease, req *router.Request, cause error) (lease, error) {
	l, err := old.(*router.Lease).Retry(req, cause)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// A Pool is an engine made of workers. It is safe for concurrent use. It starts
// goroutines in Health only, which end when the engines answer or heed their
// context.
type Pool struct {
	router chooser
	opts   Options

	mu      sync.Mutex // of Set and SetModels
	members atomic.Pointer[membership]
	models  atomic.Pointer[map[string]string] // adapter to its base model

	hashersMu sync.Mutex
	hashers   *simplelru.LRU[block.Scope, *block.Hasher]

	next    atomic.Uint32 // which worker tokenises
	resting atomic.Int64  // when the last rest ends, Unix nanoseconds
	budget  budget
	calls   sync.Pool // *call
	stats   counters
}

// membership is a list of workers. It is not changed once published.
type membership struct {
	bySlot     map[kvindex.Slot]*member
	list       []*member
	tokenizers []engine.Tokenizer // of distinct engines
}

// member is a worker and what the pool remembers of it while it stays.
type member struct {
	Worker
	rank int
	rest *atomic.Int64 // until when it wants no requests, Unix nanoseconds
	wait *waiting      // attempts that may still be moved
	// guess is what it is taken to hold, nil when its engine says so itself or
	// nobody wants to know.
	guess *guess
}

var (
	_ engine.Engine        = (*Pool)(nil)
	_ engine.ModelLister   = (*Pool)(nil)
	_ engine.HealthChecker = (*Pool)(nil)
)

// New makes a pool without workers. It sets the router's worker list, so a
// router belongs to one pool. The pool must hash as the router's index does: New
// refuses options that name another block size or scheme. Errors list every fault.
func New(r *router.Router, opts *Options) (*Pool, error) {
	if r == nil {
		return nil, errors.New("pool: New needs a router")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	o.BlockTokens, o.Scheme = cmp.Or(o.BlockTokens, r.BlockTokens()), cmp.Or(o.Scheme, r.Scheme())
	p, err := newPool(routed{r}, &o)
	if err = errors.Join(err, o.agree(r)); err != nil {
		return nil, err
	}
	return p, nil
}

func newPool(r chooser, opts *Options) (*Pool, error) {
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	hashers, err := simplelru.NewLRU[block.Scope, *block.Hasher](o.MaxScopes, nil)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	p := &Pool{router: r, opts: o, hashers: hashers}
	p.budget.init(o.RetryRatio, o.RetryBurst)
	p.members.Store(&membership{})
	p.models.Store(&map[string]string{})
	p.calls.New = func() any { return new(call) }
	return p, nil
}

// Set replaces the list of workers. A slot that stays keeps its state; requests
// at work on one that goes are not touched, unless Fail was told of it. An error
// names every bad entry and leaves the old list in use. The slice is not kept.
func (p *Pool) Set(workers []Worker) error {
	var errs []error
	m := &membership{bySlot: make(map[kvindex.Slot]*member, len(workers))}
	routes := make([]router.Worker, 0, len(workers))
	seen := make(map[engine.Tokenizer]bool)
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.members.Load()
	for i, w := range workers {
		if w.Engine == nil {
			errs = append(errs, fmt.Errorf("pool: worker %d (%q) has no engine", i, w.Name))
		}
		if w.Ranks < 0 || w.Rank < 0 || w.Rank >= max(w.Ranks, 1) {
			errs = append(errs, fmt.Errorf("pool: worker %d (%q) is rank %d of %d", i, w.Name, w.Rank, w.Ranks))
		}
		e := &member{Worker: w, rank: -1, rest: new(atomic.Int64), wait: new(waiting)}
		if w.Ranks > 1 {
			e.rank = w.Rank
		}
		was := old.bySlot[w.Slot]
		if was != nil {
			e.rest = was.rest
			if !was.wait.failed() {
				e.wait = was.wait
			}
		}
		if p.opts.Guess != nil && !w.Events {
			if e.guess = new(guess); was != nil && was.guess != nil {
				e.guess = was.guess
			}
		}
		m.bySlot[w.Slot] = e
		m.list = append(m.list, e)
		routes = append(routes, w.Worker)
		if t, ok := w.Engine.(engine.Tokenizer); ok && !seen[t] && !w.Draining {
			seen[t] = true
			m.tokenizers = append(m.tokenizers, t)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// A slot must be known here before the router can pick it, and gone there
	// before it is gone here.
	both := &membership{bySlot: make(map[kvindex.Slot]*member, len(m.bySlot)+len(old.bySlot)), list: m.list, tokenizers: m.tokenizers}
	for s, e := range old.bySlot {
		both.bySlot[s] = e
	}
	for s, e := range m.bySlot {
		both.bySlot[s] = e
	}
	p.members.Store(both)
	if err := p.router.SetWorkers(routes); err != nil {
		p.members.Store(old)
		return fmt.Errorf("pool: %w", err)
	}
	p.members.Store(m)
	for s, e := range old.bySlot {
		if now := m.bySlot[s]; e.guess != nil && (now == nil || now.guess == nil) {
			e.guess.forget(p, s, true)
		}
	}
	return nil
}

// SetModels tells the pool which names are adapters of which base model, so that
// a request for one is hashed with the scope that the engines' events have. A
// name that is not in the list is taken for a base model.
func (p *Pool) SetModels(models []engine.Model) {
	table := make(map[string]string)
	for _, m := range models {
		if m.Parent != "" {
			table[m.ID] = m.Parent
		}
	}
	p.models.Store(&table)
}

// Models lists what the workers serve, each name once. Workers that do not
// answer are left out unless none does.
func (p *Pool) Models(ctx context.Context) ([]engine.Model, error) {
	var models []engine.Model
	var errs []error
	asked, answered := make(map[engine.ModelLister]bool), false
	seen := make(map[string]bool)
	for _, m := range p.members.Load().list {
		l, ok := m.Engine.(engine.ModelLister)
		if !ok || asked[l] {
			continue
		}
		asked[l] = true
		list, err := l.Models(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("pool: models of %s: %w", m.Name, err))
			continue
		}
		answered = true
		for _, x := range list {
			if !seen[x.ID] {
				seen[x.ID] = true
				models = append(models, x)
			}
		}
	}
	if !answered {
		return nil, errors.Join(errs...)
	}
	return models, nil
}

// Health says whether a request could be sent: nil when a worker takes requests
// that either answers its own check or has none. All are asked at once, and the
// first good answer counts; none is waited for longer than ctx says.
func (p *Pool) Health(ctx context.Context) error {
	type check struct {
		name string
		engine.HealthChecker
	}
	var checks []check
	known := make(map[engine.HealthChecker]bool)
	for _, m := range p.members.Load().list {
		if m.Draining {
			continue
		}
		h, ok := m.Engine.(engine.HealthChecker)
		if !ok {
			return nil
		}
		if !known[h] {
			known[h] = true
			checks = append(checks, check{m.Name, h})
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(checks)) // room for all, so that none is left waiting
	for _, c := range checks {
		go func() {
			err := c.Health(ctx)
			if err != nil {
				err = fmt.Errorf("pool: %s: %w", c.name, err)
			}
			answers <- err
		}()
	}
	errs := []error{engine.ErrUnavailable}
	for range checks {
		select {
		case err := <-answers:
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, fmt.Errorf("pool: health: %w", context.Cause(ctx)))...)
		}
	}
	return errors.Join(errs...)
}

// counters are a pool's figures.
type counters struct {
	requests, picks, retries, exhausted, refused, failed    atomic.Uint64
	clientIDs, tokenized, untokenized, byBytes, hashings    atomic.Uint64
	predicted, cached, cachedOf, promptTokens, outputTokens atomic.Uint64
	guesses, guessesDropped                                 atomic.Uint64
}

// Stats are a [Pool]'s figures since it was made. All are control path.
type Stats struct {
	Workers  int    // in the list
	Requests uint64 // begun
	Picks    uint64 // of a worker, retries included
	Retries  uint64 // requests sent again
	// Exhausted counts retries that the budget refused.
	Exhausted uint64
	Refused   uint64 // requests that no worker could be picked for
	Failed    uint64 // requests that ended in an error, refused ones included

	ClientIDs   uint64 // prompts that came as token ids
	Tokenized   uint64 // prompts that an engine tokenised
	Untokenized uint64 // prompts that it could not, then hashed by bytes
	Bytes       uint64 // prompts hashed by bytes, for whatever reason
	Hashings    uint64 // runs of a hasher: one a request

	// PredictedHit and Cached are prompt tokens expected to be cached and those
	// that engines reported, over the requests with such a report, which had
	// CachedOf prompt tokens.
	PredictedHit, Cached, CachedOf uint64
	PromptTokens, OutputTokens     uint64

	// Guesses counts the prompts written to Options.Guess, and GuessesDropped how
	// often all that a worker was taken to hold was forgotten: it was lost, or the
	// index had no room.
	Guesses, GuessesDropped uint64
}

// Stats returns the figures; they are not one consistent moment.
func (p *Pool) Stats() Stats {
	c := &p.stats
	return Stats{
		Workers: len(p.members.Load().list), Requests: c.requests.Load(), Picks: c.picks.Load(), Retries: c.retries.Load(),
		Exhausted: c.exhausted.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(),
		ClientIDs: c.clientIDs.Load(), Tokenized: c.tokenized.Load(), Untokenized: c.untokenized.Load(), Bytes: c.byBytes.Load(),
		Hashings: c.hashings.Load(), PredictedHit: c.predicted.Load(), Cached: c.cached.Load(), CachedOf: c.cachedOf.Load(),
		PromptTokens: c.promptTokens.Load(), OutputTokens: c.outputTokens.Load(),
		Guesses: c.guesses.Load(), GuessesDropped: c.guessesDropped.Load(),
	}
}

// hasher is the hasher of a scope, kept for the next request of that scope.
func (p *Pool) hasher(s block.Scope) (*block.Hasher, error) {
	p.hashersMu.Lock()
	defer p.hashersMu.Unlock()
	if h, ok := p.hashers.Get(s); ok {
		return h, nil
	}
	h, err := block.NewHasher(s, p.opts.BlockTokens, &block.Options{Scheme: p.opts.Scheme})
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	p.hashers.Add(s, h)
	return h, nil
}

// budget is a bucket of retries, in thousandths, that requests fill.
type budget struct {
	level     atomic.Int64
	earn, cap int64
}

func (b *budget) init(ratio float64, burst int) {
	b.earn, b.cap = int64(ratio*1000), int64(burst)*1000
	b.level.Store(b.cap)
}

func (b *budget) request() {
	for {
		l := b.level.Load()
		if l >= b.cap || b.level.CompareAndSwap(l, min(l+b.earn, b.cap)) {
			return
		}
	}
}

// take spends one retry, and reports whether there was one.
func (b *budget) take() bool {
	for {
		l := b.level.Load()
		if l < 1000 {
			return false
		}
		if b.level.CompareAndSwap(l, l-1000) {
			return true
		}
	}
}

// restFor lets a worker rest.
func (p *Pool) restFor(m *member, d time.Duration) {
	until := time.Now().Add(d).UnixNano()
	raise(m.rest, until)
	raise(&p.resting, until)
}

func raise(a *atomic.Int64, to int64) {
	for {
		v := a.Load()
		if v >= to || a.CompareAndSwap(v, to) {
			return
		}
	}
}
