package pool

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRouter picks the first allowed worker and writes down what it is told.
type fakeRouter struct {
	mu      sync.Mutex
	workers []router.Worker
	picks   []router.Request // chains copied
	leases  []*fakeLease
	refuse  error
}

type fakeLease struct {
	r      *fakeRouter
	dec    router.Decision
	tokens int
	output int // by Output
	cached int
	ended  bool
	err    error
}

func (r *fakeRouter) SetWorkers(w []router.Worker) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers = slices.Clone(w)
	return nil
}

func (r *fakeRouter) Pick(req *router.Request) (lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := *req
	q.Chain, q.Not = slices.Clone(req.Chain), slices.Clone(req.Not)
	r.picks = append(r.picks, q)
	if r.refuse != nil {
		return nil, r.refuse
	}
	for _, w := range r.workers {
		if !slices.Contains(req.Not, w.Slot) {
			l := &fakeLease{r: r, cached: -1}
			l.dec.Slot, l.dec.Hit = w.Slot, 32
			r.leases = append(r.leases, l)
			return l, nil
		}
	}
	return nil, &router.RejectError{Reason: router.ReasonNotAllowed, Workers: len(r.workers)}
}

func (r *fakeRouter) Retry(l lease, req *router.Request, err error) (lease, error) {
	l.Done(err)
	return r.Pick(req)
}

func (l *fakeLease) Slot() kvindex.Slot         { return l.dec.Slot }
func (l *fakeLease) Decision() *router.Decision { return &l.dec }
func (l *fakeLease) FirstToken()                {}
func (l *fakeLease) Tokens(n int)               { l.tokens += n }
func (l *fakeLease) Output(n int)               { l.tokens, l.output = n, n }
func (l *fakeLease) Cached(n int)               { l.cached = n }
func (l *fakeLease) Done(err error) {
	if !l.ended {
		l.ended, l.err = true, err
	}
}

// script is an engine that yields its chunks and then its error.
type script struct {
	mu     sync.Mutex
	chunks []engine.Chunk
	err    error
	got    []engine.Request
	broken int
}

func (s *script) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		s.mu.Lock()
		s.got = append(s.got, *req)
		s.mu.Unlock()
		scratch := make([]byte, 0, 100)
		for _, c := range s.chunks {
			// Memory is used again, as the contract allows.
			scratch = append(scratch[:0], c.Raw...)
			c.Raw = scratch
			if !yield(&c, nil) {
				s.mu.Lock()
				s.broken++
				s.mu.Unlock()
				return
			}
			clear(scratch)
		}
		if s.err != nil {
			yield(nil, s.err)
		}
	}
}

func (s *script) requests() []engine.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// tokenizing is a script with a tokeniser.
type tokenizing struct {
	script
	ids   []uint32
	fault error
	calls int
}

func (t *tokenizing) Tokenize(_ context.Context, dst []uint32, _ *engine.Request) ([]uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	return append(dst, t.ids...), t.fault
}

func raw(s string, tokens int) engine.Chunk { return engine.Chunk{Raw: []byte(s), Tokens: tokens} }

func good() *script {
	return &script{chunks: []engine.Chunk{raw("role", 0), raw("a", 1), raw("b", 2)}}
}

func newTestPool(t testing.TB, opts *Options, engines ...engine.Engine) (*Pool, *fakeRouter) {
	r := &fakeRouter{}
	p, err := newPool(r, opts)
	require.NoError(t, err)
	var ws []Worker
	for i, e := range engines {
		ws = append(ws, Worker{Worker: router.Worker{Slot: kvindex.MakeSlot(uint32(i+1), 1), Name: string(rune('a' + i))}, Engine: e})
	}
	require.NoError(t, p.Set(ws))
	return p, r
}

func request() *engine.Request {
	ids := make([]uint32, 40)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return &engine.Request{
		ID: "id", API: engine.APICompletions, Model: "m", Stream: true, N: 1, Prompts: 1, Rank: -1, Tokens: ids,
		Body: []byte(`{"model":"m","prompt":"x"}`), Timeline: new(engine.Timeline),
	}
}

// run gives the raw chunks and the error.
func run(ctx context.Context, e engine.Engine, req *engine.Request) (raws []string, err error) {
	for c, e := range e.Generate(ctx, req) {
		if e != nil {
			return raws, e
		}
		raws = append(raws, string(c.Raw))
	}
	return raws, nil
}

func chainOf(t testing.TB, s block.Scope, ids []uint32) []block.Hash {
	h, err := block.NewHasher(s, 16, nil)
	require.NoError(t, err)
	return h.AppendHashes(nil, ids, nil)
}

var errPlain = errors.New("dial tcp: refused")
