package pool

import (
	"context"
	"errors"
	"iter"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
)

// hanging is an engine that yields its chunks and then says nothing for an hour.
// Its health check hangs likewise.
type hanging struct {
	chunks []engine.Chunk
	polite bool // its error does not say why it ended
}

func (h *hanging) Generate(ctx context.Context, _ *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		for _, c := range h.chunks {
			if !yield(&c, nil) {
				return
			}
		}
		select {
		case <-time.After(time.Hour):
			yield(&engine.Chunk{Raw: []byte("late"), Tokens: 1}, nil)
		case <-ctx.Done():
			if h.polite {
				yield(nil, context.Canceled)
				return
			}
			yield(nil, context.Cause(ctx))
		}
	}
}

func (h *hanging) Health(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func slot(n uint32) kvindex.Slot { return kvindex.MakeSlot(n, 1) }

// without is the pool's list without its first worker.
func without(p *Pool) (list []Worker) {
	for _, m := range p.members.Load().list[1:] {
		list = append(list, m.Worker)
	}
	return list
}

func TestFailMovesWhatHasNotBegun(t *testing.T) {
	role, token := raw("role", 0), raw("x", 1)
	for name, c := range map[string]struct {
		engine hanging
		fail   bool
		stream bool
		want   []string
	}{
		"silent":            {hanging{}, true, true, []string{"role", "a", "b"}},
		"whole answer":      {hanging{}, true, false, []string{"role", "a", "b"}},
		"other error":       {hanging{polite: true}, true, true, []string{"role", "a", "b"}},
		"only a role":       {hanging{chunks: []engine.Chunk{role}}, true, true, []string{"role", "a", "b"}},
		"begun":             {hanging{chunks: []engine.Chunk{role, token}}, true, true, []string{"role", "x", "late"}},
		"unlisted":          {hanging{}, false, true, []string{"late"}},
		"unlisted, a token": {hanging{chunks: []engine.Chunk{token}}, false, true, []string{"x", "late"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, r := newTestPool(t, nil, &c.engine, good())
				start := time.Now()
				go func() {
					time.Sleep(time.Minute)
					if c.fail {
						p.Fail(slot(1), slot(9))
					}
					if err := p.Set(without(p)); err != nil {
						t.Error(err)
					}
				}()
				req := request()
				req.Stream = c.stream
				got, err := run(t.Context(), p, req)
				require.NoError(t, err)
				require.Equal(t, c.want, got)
				if c.want[len(c.want)-1] == "late" {
					require.Equal(t, time.Hour, time.Since(start))
				} else {
					require.Equal(t, time.Minute, time.Since(start))
					require.ErrorIs(t, r.leases[0].err, engine.ErrUnreachable)
				}
				for _, l := range r.leases {
					require.True(t, l.ended)
				}
			})
		})
	}
}

// A failed slot answers nothing until it is listed again.
func TestFailedSlot(t *testing.T) {
	p, _ := newTestPool(t, nil, good())
	p.Fail(slot(1))
	_, err := run(t.Context(), p, request())
	require.ErrorIs(t, err, engine.ErrUnreachable)
	var list []Worker
	for _, m := range p.members.Load().list {
		list = append(list, m.Worker)
	}
	require.NoError(t, p.Set(list))
	_, err = run(t.Context(), p, request())
	require.NoError(t, err)
	require.Empty(t, p.members.Load().list[0].wait.cancel, "attempts are forgotten at their end")
}

// A client that leaves is not mistaken for a worker that failed.
func TestFailAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newTestPool(t, nil, &hanging{}, good())
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Minute)
			cancel()
			synctest.Wait()
			p.Fail(slot(1))
		}()
		_, err := run(ctx, p, request())
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, r.leases, 1)
	})
}

func TestFailBesideRequests(t *testing.T) {
	p, _ := newTestPool(t, &Options{RetryBurst: 10000, RetryRatio: 1}, good(), good(), good())
	list := append([]Worker{{}}, without(p)...)
	list[0] = p.members.Load().list[0].Worker
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if got, err := run(context.Background(), p, request()); err != nil || len(got) != 3 {
					t.Errorf("%q %v", got, err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 100 {
			p.Fail(slot(1))
			if err := errors.Join(p.Set(list[1:]), p.Set(list)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
}

// healthy is an engine with a health check that takes a while.
type healthy struct {
	script
	after time.Duration
	err   error
}

func (h *healthy) Health(ctx context.Context) error {
	select {
	case <-time.After(h.after):
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestHealthAsksAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		p, _ := newTestPool(t, nil, &hanging{}, &healthy{after: time.Second, err: errPlain}, &healthy{after: 2 * time.Second}, &hanging{})
		require.NoError(t, p.Health(ctx))
		require.Equal(t, 2*time.Second, time.Since(start))
		synctest.Wait() // the others have been called off; the bubble would not end

		p, _ = newTestPool(t, nil, &hanging{}, &healthy{after: time.Second, err: errPlain})
		err := p.Health(ctx)
		require.ErrorIs(t, err, engine.ErrUnavailable)
		require.ErrorIs(t, err, errPlain)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestProduct(t *testing.T) {
	for _, c := range [][3]int{
		{0, 1, 0}, {3, 4, 12}, {math.MaxInt, 1, math.MaxInt}, {math.MaxInt, 2, math.MaxInt}, {1 << 40, 1 << 40, math.MaxInt},
		{-1, 3, -3}, {math.MinInt, 1, math.MinInt},
	} {
		require.Equal(t, c[2], product(c[0], c[1]), "%v", c)
	}
	require.Negative(t, product(math.MinInt, 7))
	p, r := newTestPool(t, nil, good())
	req := request()
	req.MaxTokens, req.N = math.MaxInt/2, 5
	_, err := run(t.Context(), p, req)
	require.NoError(t, err)
	require.Equal(t, math.MaxInt, r.picks[0].MaxTokens)
}
