package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// A member is one worker of the fleet and the goroutine that looks after it.
type member struct {
	f      *Fleet
	worker *vllm.Worker
	cancel context.CancelFunc
	done   chan struct{}

	// Guarded by f.mu.
	info   discovery.Worker
	up     bool
	err    error
	probe  *vllm.Probe
	ranks  []*rank
	since  engine.Load // counters when it came up, to tell what it did since
	seen   bool        // since is set
	merged engine.Load // newest load of all ranks together
}

// A rank is one data-parallel replica of a member that is up.
type rank struct {
	slot     kvindex.Slot
	rank     int
	sub      *vllm.Subscriber // nil without events
	kvBlocks int              // in index blocks
	block    int              // tokens of an engine block, 0 = not known
	state    atomic.Int32     // kvindex.StreamState
	asked    atomic.Bool      // the engine has told what it held before, or cannot
	// connected is since when the event channel stands, Unix nanoseconds, 0 = it
	// does not.
	connected atomic.Int64
}

// run probes the worker, serves it while it answers, and starts again.
func (m *member) run(ctx context.Context) {
	defer close(m.done)
	told := false
	for ctx.Err() == nil {
		err := m.once(ctx, &told)
		if ctx.Err() != nil {
			return
		}
		m.f.mu.Lock()
		m.err = err
		info := m.info
		m.f.mu.Unlock()
		if !told {
			told = true
			m.f.down(info, err)
		}
		select {
		case <-time.After(m.f.opts.ProbeEvery):
		case <-ctx.Done():
		}
	}
}

// once is one life of the worker: it returns when the worker does not answer,
// or not any more.
func (m *member) once(ctx context.Context, told *bool) error {
	pctx, cancel := context.WithTimeout(ctx, m.f.opts.ProbeTimeout)
	probe, err := m.worker.Probe(pctx)
	err = checked(pctx, "probe", m.f.opts.ProbeTimeout, err)
	cancel()
	if err != nil {
		return err
	}
	if len(probe.Models) == 0 {
		return errors.New("it serves no model")
	}
	*told = false
	ctx, cancel = context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	ranks, err := m.attach(ctx, &wg, probe)
	if err != nil {
		return err
	}
	failed := false
	defer func() { m.detach(ranks, failed) }()
	m.f.order.Lock() // up and listed are one step to whoever waits for it
	m.f.mu.Lock()
	m.up, m.err, m.probe, m.ranks, m.seen = true, nil, probe, ranks, false
	info := m.info
	m.f.mu.Unlock()
	m.f.updateOrdered()
	m.f.order.Unlock()
	if h := m.f.opts.Hooks.Up; h != nil {
		h(info, probe)
	}
	err = m.watch(ctx, ranks)
	failed = ctx.Err() == nil // not called off by discovery
	return err
}

// maxSized bounds the blocks that a rank's part of the index is sized for on its
// engine's word, about 16 MiB; it grows beyond by itself.
const maxSized = 1 << 20

// attach gives each rank a slot and starts to follow its events.
func (m *member) attach(ctx context.Context, wg *sync.WaitGroup, probe *vllm.Probe) ([]*rank, error) {
	m.f.mu.Lock()
	info := m.info
	m.f.mu.Unlock()
	sources, err := eventSources(info, probe)
	if err != nil {
		return nil, err
	}
	var ranks []*rank
	for i := range max(info.Ranks, probe.Ranks, 1) {
		r := &rank{rank: i}
		size, blocks := info.Capacity.BlockSize, info.Capacity.KVBlocks
		if probe.BlockSize > 0 {
			size, blocks = probe.BlockSize, probe.KVBlocks
		}
		r.block, r.kvBlocks = size, size*blocks/m.f.opts.BlockTokens
		if r.slot = m.f.index.AttachSized(info.Name, i, min(r.kvBlocks, maxSized)); r.slot == 0 {
			m.release(ranks)
			return nil, errors.New("fleet: the index has no room for another worker")
		}
		ranks = append(ranks, r)
		if i >= len(sources) {
			continue
		}
		src := sources[i]
		stream, err := m.f.index.NewStream(r.slot, kvindex.StreamConfig{
			Scope: scope(probe), EngineBlock: size, NoReplay: src.Replay == "",
		})
		if err == nil {
			r.sub, err = src.NewSubscriber(&vllm.SubscriberOptions{Gate: m.f.gate, Hooks: vllm.SubscriberHooks{
				Connected: func() {
					r.connected.Store(time.Now().UnixNano())
					if src.Replay == "" {
						r.asked.Store(true)
					}
				},
				Disconnected: func(error) { r.connected.Store(0) },
				Replayed:     func(uint64, int, error) { r.asked.Store(true) },
			}})
		}
		if err != nil {
			m.release(ranks)
			return nil, err
		}
		wg.Go(func() { _ = r.sub.Run(ctx, &sink{stream, &r.state}) })
	}
	return ranks, nil
}

// eventSources are the endpoints that discovery names, else those that the
// engine does.
func eventSources(w discovery.Worker, probe *vllm.Probe) ([]vllm.EventSource, error) {
	if w.Endpoints.Events == "" {
		return probe.Events, nil
	}
	u, err := url.Parse(w.Endpoints.HTTP)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	var out []vllm.EventSource
	for i := range max(w.Ranks, probe.Ranks, 1) {
		s := vllm.EventSource{Rank: i}
		if s.Endpoint, err = vllm.RankEndpoint(w.Endpoints.Events, u.Hostname(), i); err != nil {
			return nil, err
		}
		if w.Endpoints.Replay != "" {
			if s.Replay, err = vllm.RankEndpoint(w.Endpoints.Replay, u.Hostname(), i); err != nil {
				return nil, err
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// detach takes the worker from the router's list and then its blocks from the
// index. Of a worker that failed, requests that have not begun move elsewhere; one
// that is only no longer listed may end them.
func (m *member) detach(ranks []*rank, failed bool) {
	m.f.order.Lock() // so that no other update lists it again between
	m.f.mu.Lock()
	m.up, m.ranks = false, nil
	m.f.mu.Unlock()
	if failed {
		var slots []kvindex.Slot
		for _, r := range ranks {
			slots = append(slots, r.slot)
		}
		m.f.pool.Fail(slots...)
	}
	m.f.updateOrdered()
	m.f.order.Unlock()
	m.release(ranks)
	m.worker.Close()
}

func (m *member) release(ranks []*rank) {
	for _, r := range ranks {
		m.f.index.Detach(r.slot)
	}
}

// watch looks at the worker's load, which is the sign of life as well, until
// too many looks in a row have failed.
func (m *member) watch(ctx context.Context, ranks []*rank) error {
	tick := time.NewTicker(m.f.opts.LoadEvery)
	defer tick.Stop()
	for failed := 0; ; {
		err := m.look(ctx, ranks)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			failed = 0
		default:
			if failed++; failed >= m.f.opts.FailAfter {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A checkError is a check that failed.
type checkError struct {
	check string
	limit time.Duration // that ran out, 0 = it did not
	err   error
}

// Error names the check.
func (e *checkError) Error() string {
	if e.limit > 0 {
		return fmt.Sprintf("%s: no answer in %v", e.check, e.limit)
	}
	return e.check + ": " + e.err.Error()
}

// Unwrap is what the engine's client said.
func (e *checkError) Unwrap() error { return e.err }

// checked names the check in its error, if there is one. ctx is the check's own,
// which ends after limit.
func checked(ctx context.Context, check string, limit time.Duration, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		limit = 0
	}
	return &checkError{check, limit, err}
}

// look asks once. An engine without usable metrics is asked for its health.
func (m *member) look(ctx context.Context, ranks []*rank) error {
	limit := m.f.opts.CheckTimeout
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	loads, err := m.worker.Load(ctx)
	if err != nil {
		var e *engine.Error
		if errors.Is(err, vllm.ErrNoMetrics) || errors.As(err, &e) && e.Status == 404 {
			return checked(ctx, "health", limit, m.worker.Health(ctx))
		}
		return checked(ctx, "metrics", limit, err)
	}
	for i, r := range ranks {
		if i < len(loads) && (loads[i].HasQueue || loads[i].HasKV) {
			l := &loads[i]
			// The router's clock may be another than ours: without At it is now.
			m.f.router.Report(r.slot, router.Load{
				Running: l.Running, Waiting: l.Waiting, HasQueue: l.HasQueue, KVUsage: l.KVUsage, HasKV: l.HasKV,
			})
		}
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.merged = merge(loads)
	if !m.seen {
		m.seen, m.since = true, m.merged
	}
	return nil
}

// merge sums up the ranks of a worker.
func merge(loads []engine.Load) engine.Load {
	var sum engine.Load
	n := 0
	for i := range loads {
		l := &loads[i]
		if l.HasQueue {
			sum.HasQueue = true
			sum.Running += l.Running
			sum.Waiting += l.Waiting
		}
		if l.HasKV {
			n++
			sum.HasKV = true
			sum.KVUsage += l.KVUsage
		}
		if l.HasPrefix {
			sum.HasPrefix = true
			sum.Queries += l.Queries
			sum.Hits += l.Hits
		}
	}
	if n > 0 {
		sum.KVUsage /= float64(n)
	}
	return sum
}

// A sink is a stream whose state can be read while it is fed.
type sink struct {
	stream *kvindex.Stream
	state  *atomic.Int32
}

func (s *sink) keep(r kvindex.Result) kvindex.Result {
	s.state.Store(int32(r.State))
	return r
}

// Apply implements vllm.Sink.
func (s *sink) Apply(b *kvindex.Batch) kvindex.Result { return s.keep(s.stream.Apply(b)) }

// Replay implements vllm.Sink.
func (s *sink) Replay(b *kvindex.Batch) kvindex.Result { return s.keep(s.stream.Replay(b)) }

// ReplayEnd implements vllm.Sink.
func (s *sink) ReplayEnd(ok bool) kvindex.Result { return s.keep(s.stream.ReplayEnd(ok)) }

// Tick implements vllm.Sink.
func (s *sink) Tick(now time.Time) kvindex.Result { return s.keep(s.stream.Tick(now)) }

// scope is what the pool hashes prompts with besides their tokens, for engines
// whose events do not say it: the base model.
func scope(probe *vllm.Probe) block.Scope {
	for _, m := range probe.Models {
		if m.Parent == "" {
			return block.Scope{Model: m.ID}
		}
	}
	return block.Scope{Model: probe.Models[0].ID}
}
