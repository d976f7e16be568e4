package fleet

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/pool"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/router"
)

// A Fleet is a set of workers that requests can be sent to. It is safe for
// concurrent use.
type Fleet struct {
	opts   Options
	index  *kvindex.Index
	router *router.Router
	pool   *pool.Pool

	gate chan struct{} // bounds the replays that run at a time

	mu      sync.Mutex
	members map[string]*member
	change  chan struct{}                        // closed and replaced when the list of those up changes
	order   sync.Mutex                           // serialises updates of the router's list
	sizes   atomic.Pointer[map[kvindex.Slot]int] // tokens of an engine block
}

// New makes a fleet without workers. Errors list every fault of the options.
func New(opts *Options) (*Fleet, error) {
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	index, err := kvindex.New(&kvindex.Options{BlockTokens: o.BlockTokens, MaxBytes: o.MaxIndexBytes})
	if err != nil {
		return nil, err
	}
	r, err := router.New(index, &o.Router)
	if err != nil {
		return nil, err
	}
	f := &Fleet{opts: o, index: index, router: r, members: map[string]*member{}, change: make(chan struct{}), gate: make(chan struct{}, 4)}
	f.sizes.Store(&map[kvindex.Slot]int{})
	if o.Pool.Guess == nil { // of engines that do not say what they hold
		o.Pool.Guess = index
	}
	if f.pool, err = pool.New(r, &o.Pool); err != nil {
		return nil, err
	}
	return f, nil
}

// Engine answers requests with the workers that are up.
func (f *Fleet) Engine() *pool.Pool { return f.pool }

// Index is what the fleet knows of the workers' caches.
func (f *Fleet) Index() *kvindex.Index { return f.index }

// Router is the fleet's router.
func (f *Fleet) Router() *router.Router { return f.router }

// Run follows the source until ctx ends and returns its error. It must be
// called once.
func (f *Fleet) Run(ctx context.Context, source discovery.Source) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { f.sweep(ctx) })
	defer wg.Wait()
	defer f.stopAll()
	defer cancel()
	var state discovery.State
	for u, err := range source.Watch(ctx) {
		if err != nil {
			return err
		}
		if u.Err != nil && f.opts.Hooks.Source != nil {
			f.opts.Hooks.Source(u.Age, u.Err)
		}
		if state.Apply(u) {
			f.apply(ctx, state.Workers())
		}
	}
	return ctx.Err()
}

// sweep keeps the index small until ctx ends: workers that left have their memory
// given back although nobody stores.
func (f *Fleet) sweep(ctx context.Context) {
	tick := time.NewTicker(f.opts.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.index.Sweep()
		case <-ctx.Done():
			return
		}
	}
}

// apply makes the members those of the list.
func (f *Fleet) apply(ctx context.Context, list []discovery.Worker) {
	f.mu.Lock()
	old := maps.Clone(f.members)
	f.mu.Unlock()
	for i := range list {
		w := list[i]
		m := old[w.Name]
		delete(old, w.Name)
		if m != nil {
			if sameProcess(&m.info, &w) {
				f.mu.Lock()
				m.info = w
				f.mu.Unlock()
				continue
			}
			m.stop()
		}
		m = &member{f: f, info: w, done: make(chan struct{})}
		worker, err := vllm.NewWorker(w.Endpoints.HTTP, nil)
		if err == nil && w.Engine != "" && w.Engine != "vllm" {
			err = errors.New("fleet: unknown kind of engine " + w.Engine)
		}
		f.mu.Lock()
		f.members[w.Name] = m
		m.err = err
		f.mu.Unlock()
		if err != nil {
			close(m.done)
			f.down(w, err)
			continue
		}
		m.worker = worker
		mctx, cancel := context.WithCancel(ctx)
		m.cancel = cancel
		go m.run(mctx)
	}
	for name, m := range old {
		m.stop()
		f.mu.Lock()
		delete(f.members, name)
		f.mu.Unlock()
		f.down(m.info, nil)
	}
	f.update() // of those that drain
}

// sameProcess says that two entries mean one engine process, so that what is
// known of it stays true.
func sameProcess(a, b *discovery.Worker) bool {
	return a.Incarnation == b.Incarnation && a.Engine == b.Engine && a.Ranks == b.Ranks &&
		reflect.DeepEqual(a.Endpoints, b.Endpoints)
}

// stop ends a member and waits for it.
func (m *member) stop() {
	if m.cancel != nil {
		m.cancel()
	}
	<-m.done
}

func (f *Fleet) stopAll() {
	f.mu.Lock()
	all := slices.Collect(maps.Values(f.members))
	f.mu.Unlock()
	for _, m := range all {
		m.stop()
	}
}

func (f *Fleet) down(w discovery.Worker, err error) {
	if h := f.opts.Hooks.Down; h != nil {
		h(w, err)
	}
}

// update gives the pool, and through it the router, the workers that are up.
func (f *Fleet) update() {
	f.order.Lock()
	defer f.order.Unlock()
	f.updateOrdered()
}

// updateOrdered is update under f.order.
func (f *Fleet) updateOrdered() {
	f.mu.Lock()
	var list []pool.Worker
	var models []engine.Model
	sizes := map[kvindex.Slot]int{}
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		m := f.members[name]
		if !m.up {
			continue
		}
		for _, r := range m.ranks {
			role := router.RoleAny
			switch m.info.Role {
			case discovery.RolePrefill:
				role = router.RolePrefill
			case discovery.RoleDecode:
				role = router.RoleDecode
			}
			sizes[r.slot] = r.block
			list = append(list, pool.Worker{
				Worker: router.Worker{Slot: r.slot, Name: name, Role: role, KVBlocks: r.kvBlocks, Draining: m.info.Draining},
				Engine: m.worker, Ranks: len(m.ranks), Rank: r.rank, Events: r.sub != nil,
			})
		}
		models = append(models, m.probe.Models...)
	}
	close(f.change)
	f.change = make(chan struct{})
	f.mu.Unlock()
	f.sizes.Store(&sizes)
	f.pool.SetModels(models)
	// Slots come from the index, one each, so the list cannot be inconsistent.
	_ = f.pool.Set(list)
}

// Predict is the number of cached tokens that an engine that works on nothing
// else should report for a request that was picked so: what the index has for
// it, without the prompt's last token, which is always computed, in whole blocks
// of the engine.
func (f *Fleet) Predict(d *router.Decision) int {
	n := 0
	for _, blocks := range d.Reused {
		n += blocks * f.opts.BlockTokens
	}
	size := max(1, (*f.sizes.Load())[d.Slot])
	return max(0, min(n, d.Tokens-1)) / size * size
}

// Wait returns when at least n workers are up.
func (f *Fleet) Wait(ctx context.Context, n int) error {
	for {
		f.order.Lock() // who is up is in the router's list when nobody changes it
		f.mu.Lock()
		up := 0
		for _, m := range f.members {
			if m.up {
				up++
			}
		}
		change := f.change
		f.mu.Unlock()
		f.order.Unlock()
		if up >= n {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
