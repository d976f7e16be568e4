package pool_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/enginetest"
	"github.com/stator-go/stator/engine/openai"
	"github.com/stator-go/stator/engine/pool"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/router"
)

// letters is an engine that answers every token with the letter of its name and
// says that it had nothing cached.
type letters struct {
	name   string
	active *atomic.Int32
	served atomic.Int32
	fault  atomic.Pointer[error]
}

func (l *letters) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		l.active.Add(1)
		defer l.active.Add(-1)
		if f := l.fault.Load(); f != nil {
			yield(nil, *f)
			return
		}
		if strings.Contains(string(req.Body), `"bad"`) {
			yield(nil, &engine.Error{Status: 400, Message: "bad prompt"})
			return
		}
		l.served.Add(1)
		n := max(req.MaxTokens, 1)
		text := strings.Repeat(l.name, n)
		for i := range req.N {
			if !req.Stream {
				c := &engine.Chunk{Choice: i, Part: i < req.N-1, Tokens: n, Text: text, Finish: "length"}
				if !c.Part {
					c.Raw = fmt.Appendf(nil, `{"text":%q}`, text)
					c.Usage = &engine.Usage{Completion: n * req.N, Cached: -1}
				}
				if !yield(c, nil) {
					return
				}
				continue
			}
			for k := range n {
				if ctx.Err() != nil {
					yield(nil, ctx.Err())
					return
				}
				c := &engine.Chunk{Choice: i, Tokens: 1, Text: l.name, Raw: fmt.Appendf(nil, `{"text":%q}`, l.name)}
				if k == n-1 {
					c.Finish = "length"
				}
				if !yield(c, nil) {
					return
				}
			}
		}
	}
}

// newPool makes a pool of engines behind a true router and index.
func newPool(t testing.TB, opts *pool.Options, engines ...*letters) *pool.Pool {
	p, _ := newRouted(t, opts, engines...)
	return p
}

func newRouted(t testing.TB, opts *pool.Options, engines ...*letters) (*pool.Pool, *router.Router) {
	ix, err := kvindex.New(nil)
	require.NoError(t, err)
	r, err := router.New(ix, nil)
	require.NoError(t, err)
	p, err := pool.New(r, opts)
	require.NoError(t, err)
	var ws []pool.Worker
	for _, e := range engines {
		ws = append(ws, pool.Worker{Worker: router.Worker{Slot: ix.Attach(e.name, 0), Name: e.name}, Engine: e})
	}
	require.NoError(t, p.Set(ws))
	return p, r
}

// However a request ends, its booking comes back once: whole, broken off at any
// chunk, cancelled, failed and sent elsewhere, refused, with the worker gone.
func TestBookingsComeBack(t *testing.T) {
	active := new(atomic.Int32)
	a, b := &letters{name: "a", active: active}, &letters{name: "b", active: active}
	p, r := newRouted(t, nil, a, b)
	rnd := rand.New(rand.NewPCG(1, 2))
	faults := []error{nil, engine.ErrUnreachable, engine.ErrNotServed, &engine.Error{Status: 400}, &engine.Error{Status: 500}}
	picks := uint64(0)
	for range 300 {
		for _, e := range []*letters{a, b} {
			if f := faults[rnd.IntN(len(faults))]; f != nil {
				e.fault.Store(&f)
			} else {
				e.fault.Store(nil)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		stop, how := rnd.IntN(7), rnd.IntN(3)
		req := &engine.Request{
			API: engine.APICompletions, Model: "m", Body: []byte(`{"model":"m","prompt":"x"}`), Stream: rnd.IntN(2) == 0,
			N: 1 + rnd.IntN(2), Prompts: 1, MaxTokens: 3, Rank: -1, Tokens: make([]uint32, 1+rnd.IntN(100)),
		}
		if stop == 0 && how == 1 {
			cancel()
		}
		n := 0
		for range p.Generate(ctx, req) {
			n++
			require.LessOrEqual(t, r.Stats().Outstanding, 1)
			if n == stop && how == 1 {
				cancel()
			}
			if n == stop && how == 0 {
				break
			}
		}
		cancel()
		s := r.Stats()
		require.Zero(t, s.Outstanding)
		require.Equal(t, s.Picks, s.Done)
		picks = s.Picks
	}
	require.Equal(t, picks, p.Stats().Picks)
	require.Greater(t, picks, uint64(300))
	require.Zero(t, active.Load())
}

// Answers that do not stream move the router's mean of output lengths and teach
// it no times.
func TestWholeAnswersTeachLengthsOnly(t *testing.T) {
	p, r := newRouted(t, nil, &letters{name: "a", active: new(atomic.Int32)})
	for range 200 {
		req := &engine.Request{API: engine.APICompletions, Model: "m", Body: []byte(`{}`), N: 1, Prompts: 1, MaxTokens: 7, Rank: -1, Tokens: make([]uint32, 40)}
		for _, err := range p.Generate(t.Context(), req) {
			require.NoError(t, err)
		}
	}
	s := r.Stats()
	require.InDelta(t, 7, s.OutputMean, 6, "it began at 256")
	require.Zero(t, s.LearnRows)
	require.Zero(t, s.TTFT.Count)
	require.Zero(t, s.TPOT)
	require.Zero(t, s.Outstanding)
}

func TestPoolConforms(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		New: func(t *testing.T) enginetest.Instance {
			active := new(atomic.Int32)
			p := newPool(t, nil, &letters{name: "a", active: active}, &letters{name: "b", active: active}, &letters{name: "c", active: active})
			return enginetest.Instance{Engine: p, Active: func() int { return int(active.Load()) }}
		},
		Request: func(stream bool, n, tokens int) *engine.Request {
			return &engine.Request{
				API: engine.APICompletions, Model: "m", Body: []byte(`{"model":"m","prompt":"x"}`), Stream: stream, N: n, Prompts: 1,
				MaxTokens: tokens, Rank: -1,
			}
		},
		Bad: func() *engine.Request {
			return &engine.Request{API: engine.APICompletions, Model: "m", Body: []byte(`{"model":"m","prompt":"bad"}`), N: 1, Prompts: 1, Rank: -1}
		},
	})
}

// Through HTTP, with a worker that dies: no client that had no byte yet sees it.
func TestGatewayLosesNoRequest(t *testing.T) {
	active := new(atomic.Int32)
	a, b := &letters{name: "a", active: active}, &letters{name: "b", active: active}
	p := newPool(t, nil, a, b)
	h, err := openai.NewHandler(p, nil)
	require.NoError(t, err)
	srv := httptest.NewServer(h)
	defer srv.Close()
	ask := func(i int) (int, string) {
		resp, err := http.Post(srv.URL+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":"request %d","stream":true,"max_tokens":2}`, i)))
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	for i := range 40 {
		if i == 20 {
			dead := fmt.Errorf("%w: connection refused", engine.ErrUnreachable)
			a.fault.Store(&dead)
		}
		status, body := ask(i)
		require.Equal(t, 200, status, body)
		require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"), body)
		require.NotContains(t, body, "error")
	}
	require.NotZero(t, a.served.Load())
	require.NotZero(t, p.Stats().Retries)
	require.Zero(t, p.Stats().Failed)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// BenchmarkPool is a pool's own cost a request of 8,192 token ids, pick
// included, with workers that answer at once.
func BenchmarkPool(b *testing.B) {
	active := new(atomic.Int32)
	var engines []*letters
	for i := range 8 {
		engines = append(engines, &letters{name: fmt.Sprint(i), active: active})
	}
	p := newPool(b, nil, engines...)
	req := &engine.Request{API: engine.APICompletions, Model: "m", Body: []byte(`{}`), Stream: true, N: 1, Prompts: 1, Rank: -1, Tokens: make([]uint32, 8192)}
	for i := range req.Tokens {
		req.Tokens[i] = uint32(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range p.Generate(b.Context(), req) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func ExamplePool() {
	active := new(atomic.Int32)
	ix, _ := kvindex.New(nil)
	r, _ := router.New(ix, nil)
	p, err := pool.New(r, &pool.Options{Hooks: pool.Hooks{
		Ended: func(_ *engine.Request, o *pool.Outcome) {
			fmt.Printf("sent to %s, attempts %d, prompt %d tokens, expected in cache %d\n", o.Worker, o.Attempts, o.Prompt, o.Decision.Hit)
		},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	slot := ix.Attach("a", 0)
	err = p.Set([]pool.Worker{{Worker: router.Worker{Slot: slot, Name: "a"}, Engine: &letters{name: "a", active: active}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req := &engine.Request{API: engine.APICompletions, Model: "m", Stream: true, N: 1, Rank: -1, MaxTokens: 2, Tokens: make([]uint32, 64)}
	for chunk, err := range p.Generate(ctx, req) {
		fmt.Println(chunk.Text, err)
	}
	// Output:
	// a <nil>
	// a <nil>
	// sent to a, attempts 1, prompt 64 tokens, expected in cache 0
}
