package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

func TestOneRequest(t *testing.T) {
	e := good()
	e.chunks = append(e.chunks, engine.Chunk{Raw: []byte("usage"), Choice: -1, Usage: &engine.Usage{Prompt: 40, Completion: 3, Cached: 16}})
	var out Outcome
	var picked []string
	p, r := newTestPool(t, &Options{Hooks: Hooks{
		Picked: func(_ *engine.Request, w string, d *router.Decision) { picked = append(picked, w) },
		Ended:  func(_ *engine.Request, o *Outcome) { out = *o },
	}}, e)
	req := request()
	req.N, req.MaxTokens, req.Session, req.Priority = 2, 7, "s", 3
	raws, err := run(t.Context(), p, req)
	require.NoError(t, err)
	require.Equal(t, []string{"role", "a", "b", "usage"}, raws)

	l := r.leases[0]
	require.True(t, l.ended)
	require.NoError(t, l.err)
	require.Equal(t, 3, l.tokens)
	require.Equal(t, 16, l.cached)
	pick := r.picks[0]
	require.Equal(t, chainOf(t, block.Scope{Model: "m"}, req.Tokens), pick.Chain)
	require.Equal(t, 40, pick.Tokens)
	require.Equal(t, 14, pick.MaxTokens)
	require.Equal(t, "s", pick.Session)
	require.Equal(t, 3, pick.Priority)

	require.Equal(t, []string{"a"}, picked)
	require.Equal(t, "a", out.Worker)
	require.Equal(t, 1, out.Attempts)
	require.Equal(t, 40, out.Prompt)
	require.Equal(t, 16, out.Cached)
	require.Equal(t, 32, out.Decision.Hit)
	require.Equal(t, 3, out.Tokens)
	require.Equal(t, -1, e.got[0].Rank)
	require.Equal(t, "id", e.got[0].ID)

	var names []string
	for _, s := range req.Timeline.Spans() {
		require.Equal(t, engine.Control, s.Class)
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"tokenise", "hash", "pick"}, names)
	s := p.Stats()
	require.Equal(t, uint64(1), s.Hashings, "hashed once")
	require.Equal(t, [3]uint64{32, 16, 40}, [3]uint64{s.PredictedHit, s.Cached, s.CachedOf})
}

// A prompt is hashed once, however many workers it is tried on.
func TestHashedOnceForAllAttempts(t *testing.T) {
	p, r := newTestPool(t, &Options{Backoff: time.Nanosecond}, &script{err: errPlain}, &script{err: engine.ErrNotServed}, good())
	raws, err := run(t.Context(), p, request())
	require.NoError(t, err)
	require.Equal(t, []string{"role", "a", "b"}, raws)
	require.Equal(t, uint64(1), p.Stats().Hashings)
	require.Len(t, r.picks, 3)
	require.Equal(t, r.picks[0].Chain, r.picks[2].Chain)
}

func TestRetries(t *testing.T) {
	roleThen := func(err error) *script { return &script{chunks: []engine.Chunk{raw("role", 0)}, err: err} }
	tokenThen := func(err error) *script { return &script{chunks: []engine.Chunk{raw("a", 1)}, err: err} }
	fault := func(status int) error { return &engine.Error{Status: status} }
	for _, tc := range []struct {
		name    string
		first   *script
		retried bool
		blamed  bool
	}{
		{"refused connection", &script{err: errPlain}, true, true},
		{"not served", &script{err: engine.ErrNotServed}, true, true},
		{"aborted", &script{err: engine.ErrAborted}, true, true},
		{"cut before the first byte", &script{err: engine.ErrCut}, true, true},
		{"timeout", &script{err: engine.ErrTimeout}, true, true},
		{"503", &script{err: fault(503)}, true, true},
		{"429", &script{err: fault(429)}, true, true},
		{"500", &script{err: fault(500)}, true, true},
		{"after a role chunk", roleThen(&engine.StreamError{Err: engine.ErrNotServed, Chunks: 1}), true, true},
		{"400", &script{err: fault(400)}, false, false},
		{"404", &script{err: fault(404)}, false, false},
		{"413", &script{err: fault(413)}, false, false},
		{"after the first token", tokenThen(engine.ErrCut), false, true},
		{"error event after the first token", tokenThen(fault(500)), false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			second := good()
			p, r := newTestPool(t, nil, tc.first, second)
			raws, err := run(t.Context(), p, request())
			first := r.leases[0]
			require.True(t, first.ended)
			require.Equal(t, tc.blamed, !errors.Is(first.err, context.Canceled), "%v", first.err)
			if !tc.retried {
				require.Len(t, r.leases, 1)
				require.ErrorIs(t, err, tc.first.err)
				require.Equal(t, uint64(1), p.Stats().Failed)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"role", "a", "b"}, raws, "the role chunk of the failed attempt is not seen")
			require.Len(t, r.leases, 2)
			require.NoError(t, r.leases[1].err)
			require.Equal(t, []kvindex.Slot{first.Slot()}, r.picks[1].Not)
			require.Equal(t, "id-2", second.requests()[0].ID, "an id of its own")
			require.Equal(t, uint64(1), p.Stats().Retries)
		})
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var engines []engine.Engine
		for range 6 {
			engines = append(engines, &script{err: engine.ErrUnreachable})
		}
		p, r := newTestPool(t, &Options{MaxAttempts: 4, Backoff: 100 * time.Millisecond, Rand: func() float64 { return 0.5 }}, engines...)
		start := time.Now()
		_, err := run(t.Context(), p, request())
		require.ErrorIs(t, err, engine.ErrUnreachable)
		require.Len(t, r.leases, 4)
		for _, l := range r.leases {
			require.True(t, l.ended)
		}
		// At once, then 100 ms, then 200 ms.
		require.Equal(t, 300*time.Millisecond, time.Since(start))
	})
}

func TestRetryBudget(t *testing.T) {
	p, _ := newTestPool(t, &Options{RetryBurst: 2, RetryRatio: 0.25}, &script{err: engine.ErrUnreachable}, good())
	failed := 0
	for range 10 {
		if _, err := run(t.Context(), p, request()); err != nil {
			failed++
		}
	}
	// 2 to begin with, and a quarter for each request but the first ones, which
	// find the bucket full: 4 in all.
	require.Equal(t, uint64(4), p.Stats().Retries)
	require.Equal(t, 6, failed)
	require.Equal(t, uint64(6), p.Stats().Exhausted)
}

// Retry-After lets a worker rest, and only that worker.
func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := &script{err: &engine.Error{Status: 429, RetryAfter: 5 * time.Second}}
		p, r := newTestPool(t, nil, busy, good())
		_, err := run(t.Context(), p, request())
		require.NoError(t, err)
		_, err = run(t.Context(), p, request())
		require.NoError(t, err)
		require.Len(t, busy.requests(), 1, "it is left alone")
		require.Equal(t, []kvindex.Slot{kvindex.MakeSlot(1, 1)}, r.picks[2].Not)
		time.Sleep(5 * time.Second)
		_, err = run(t.Context(), p, request())
		require.NoError(t, err)
		require.Len(t, busy.requests(), 2)
	})
}

// When all rest, the client is told when to come back.
func TestAllWorkersRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPool(t, &Options{MaxAttempts: 2}, &script{err: &engine.Error{Status: 503, RetryAfter: 9 * time.Second}}, &script{err: &engine.Error{Status: 429, RetryAfter: 5 * time.Second}})
		_, err := run(t.Context(), p, request())
		require.Equal(t, 5*time.Second, engine.RetryAfter(err), "the last worker's own words")
		time.Sleep(time.Second)
		_, err = run(t.Context(), p, request())
		require.ErrorIs(t, err, engine.ErrUnavailable)
		require.ErrorIs(t, err, router.ErrNotAllowed)
		require.Equal(t, 4*time.Second, engine.RetryAfter(err))
	})
}

func TestRefusals(t *testing.T) {
	p, r := newTestPool(t, nil, good())
	for _, tc := range []struct {
		err    error
		status int
		after  time.Duration
	}{
		{&router.RejectError{Reason: router.ReasonNoWorker}, 503, 0},
		{&router.RejectError{Reason: router.ReasonOverloaded, RetryAfter: 3 * time.Second}, 503, 3 * time.Second},
		{&router.RejectError{Reason: router.ReasonDeadline}, 504, 0},
	} {
		r.refuse = tc.err
		_, err := run(t.Context(), p, request())
		require.ErrorIs(t, err, engine.ErrUnavailable)
		require.ErrorIs(t, err, errors.Unwrap(tc.err))
		var e *engine.Error
		require.True(t, errors.As(err, &e))
		require.Equal(t, tc.status, e.Status)
		require.Equal(t, tc.after, e.RetryAfter)
	}
	require.Equal(t, uint64(3), p.Stats().Refused)
}

// The booking comes back exactly once, whenever the client leaves.
func TestClientLeaves(t *testing.T) {
	for n := range 4 {
		e := good()
		p, r := newTestPool(t, nil, e)
		ctx, cancel := context.WithCancel(t.Context())
		if n == 0 {
			cancel()
			_, err := run(ctx, p, request())
			require.ErrorIs(t, err, context.Canceled)
			require.Empty(t, r.leases)
			continue
		}
		seen := 0
		for _, err := range p.Generate(ctx, request()) {
			require.NoError(t, err)
			if seen++; seen == n {
				break
			}
		}
		cancel()
		require.Equal(t, n, seen)
		require.True(t, r.leases[0].ended)
		require.ErrorIs(t, r.leases[0].err, context.Canceled, "no fault of the worker")
		require.Equal(t, 1, e.broken)
	}
}

func TestConsumerThatPanics(t *testing.T) {
	p, r := newTestPool(t, nil, good())
	require.Panics(t, func() {
		for range p.Generate(t.Context(), request()) {
			panic("consumer")
		}
	})
	require.True(t, r.leases[0].ended)
}

func TestTokens(t *testing.T) {
	ids := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}
	bare := func() *engine.Request {
		req := request()
		req.Tokens, req.Body = nil, []byte(`{"model":"m","prompt":"0123456789012345678901234567890123456789012345678901234567890123456789"}`)
		return req
	}
	a, b := &tokenizing{script: *good(), ids: ids}, &tokenizing{script: *good(), fault: errPlain}
	p, r := newTestPool(t, nil, a, b)
	for range 4 { // whichever is asked first
		_, err := run(t.Context(), p, bare())
		require.NoError(t, err)
		last := r.picks[len(r.picks)-1]
		require.Equal(t, chainOf(t, block.Scope{Model: "m"}, ids), last.Chain)
		require.Equal(t, 17, last.Tokens)
	}
	require.Equal(t, 4, a.calls)
	require.Equal(t, ids, append(a.requests(), b.requests()...)[0].Tokens, "the engine is told")
	require.Equal(t, uint64(4), p.Stats().Tokenized)

	h, err := block.NewHasher(block.Scope{Model: "m"}, 16, nil)
	require.NoError(t, err)
	text := []byte("0123456789012345678901234567890123456789012345678901234567890123456789")
	byBytes := h.AppendBytes(nil, text, nil)
	require.Len(t, byBytes, 1)
	a.fault = errPlain
	_, err = run(t.Context(), p, bare())
	require.NoError(t, err, "a tokeniser's failure fails no request")
	require.Equal(t, byBytes, r.picks[4].Chain)
	require.Equal(t, 18, r.picks[4].Tokens)
	require.Equal(t, uint64(1), p.Stats().Untokenized)

	for name, p2 := range map[string]func() (*Pool, *fakeRouter){
		"no tokeniser": func() (*Pool, *fakeRouter) { return newTestPool(t, nil, good()) },
		"bytes wanted": func() (*Pool, *fakeRouter) {
			return newTestPool(t, &Options{Bytes: true}, &tokenizing{script: *good(), ids: ids})
		},
	} {
		p, r := p2()
		_, err := run(t.Context(), p, bare())
		require.NoError(t, err)
		require.Equal(t, byBytes, r.picks[0].Chain, name)
		require.Equal(t, uint64(1), p.Stats().Bytes)
	}
}

// A conversation that goes on keeps its blocks in byte mode.
func TestBytesOfAConversation(t *testing.T) {
	p, r := newTestPool(t, nil, good())
	turn := `{"role":"user","content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`
	for _, body := range []string{`{"model":"m","messages":[` + turn + `]}`, `{"model":"m","messages":[` + turn + `,` + turn + `],"temperature":0}`} {
		req := request()
		req.API, req.Tokens, req.Body = engine.APIChat, nil, []byte(body)
		_, err := run(t.Context(), p, req)
		require.NoError(t, err)
	}
	one, two := r.picks[0].Chain, r.picks[1].Chain
	require.NotEmpty(t, one)
	require.Greater(t, len(two), len(one))
	require.Equal(t, one, two[:len(one)])
}

// Adapter and salt are part of the scope; the base model's name is the scope's.
func TestScopes(t *testing.T) {
	p, r := newTestPool(t, &Options{Scope: block.Scope{Revision: "v2"}}, good())
	p.SetModels([]engine.Model{{ID: "base"}, {ID: "sql", Parent: "base"}})
	ids := request().Tokens
	for _, tc := range []struct {
		change func(*engine.Request)
		want   block.Scope
	}{
		{func(r *engine.Request) { r.Model = "base" }, block.Scope{Model: "base", Revision: "v2"}},
		{func(r *engine.Request) { r.Model = "sql" }, block.Scope{Model: "base", Revision: "v2", Adapter: "sql"}},
		{func(r *engine.Request) { r.Model, r.Salt = "base", "t1" }, block.Scope{Model: "base", Revision: "v2", Tenant: "t1"}},
		{func(r *engine.Request) { r.Model, r.Base, r.Adapter = "x", "b", "a" }, block.Scope{Model: "b", Revision: "v2", Adapter: "a"}},
		{func(r *engine.Request) { r.Model = "other" }, block.Scope{Model: "other", Revision: "v2"}},
	} {
		req := request()
		tc.change(req)
		_, err := run(t.Context(), p, req)
		require.NoError(t, err)
		require.Equal(t, chainOf(t, tc.want, ids), r.picks[len(r.picks)-1].Chain, "%+v", tc.want)
	}
}

func TestRanks(t *testing.T) {
	e := good()
	p, r := newTestPool(t, nil)
	require.NoError(t, p.Set([]Worker{{Worker: router.Worker{Slot: kvindex.MakeSlot(1, 1)}, Engine: e, Ranks: 2, Rank: 1}}))
	require.Len(t, r.workers, 1)
	_, err := run(t.Context(), p, request())
	require.NoError(t, err)
	require.Equal(t, 1, e.got[0].Rank)

	err = p.Set([]Worker{{Engine: nil, Worker: router.Worker{Name: "x"}}, {Engine: e, Ranks: 1, Rank: 1, Worker: router.Worker{Name: "y"}}})
	require.ErrorContains(t, err, `"x"`)
	require.ErrorContains(t, err, `"y"`)
	require.Equal(t, 1, p.Stats().Workers, "the old list stays")
}

// What does not stream says nothing of its first token, and of its length only
// what the engine knows.
func TestWholeAnswer(t *testing.T) {
	ids := func(n int) engine.Chunk { return engine.Chunk{Part: true, Tokens: n, TokenIDs: make([]uint32, n)} }
	last := raw("{}", 4)
	last.Usage = &engine.Usage{Prompt: 40, Completion: 11, Cached: -1}
	for _, tc := range []struct {
		name          string
		chunks        []engine.Chunk
		told, counted int
	}{
		{"usage", []engine.Chunk{{Part: true, Tokens: 5}, last}, 11, 11},
		{"ids", []engine.Chunk{ids(5), ids(2)}, 7, 7},
		{"some ids", []engine.Chunk{ids(5), raw("{}", 1)}, 0, 6},
		{"neither", []engine.Chunk{raw("{}", 1)}, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, r := newTestPool(t, nil, &script{chunks: tc.chunks})
			req := request()
			req.Stream = false
			raws, err := run(t.Context(), p, req)
			require.NoError(t, err)
			require.Len(t, raws, len(tc.chunks))
			require.True(t, r.picks[0].Quiet)
			require.Equal(t, tc.told, r.leases[0].output)
			require.Equal(t, tc.told, r.leases[0].tokens, "nothing told as it came")
			require.True(t, r.leases[0].ended)
			require.Equal(t, uint64(tc.counted), p.Stats().OutputTokens)
		})
	}
}

// The engine's own count corrects that of a stream, where a chunk may be several
// tokens.
func TestUsageCorrectsTheCount(t *testing.T) {
	e := good()
	e.chunks = append(e.chunks, engine.Chunk{Raw: []byte("usage"), Choice: -1, Usage: &engine.Usage{Completion: 8, Cached: -1}})
	p, r := newTestPool(t, nil, e)
	_, err := run(t.Context(), p, request())
	require.NoError(t, err)
	require.False(t, r.picks[0].Quiet)
	require.Equal(t, 8, r.leases[0].tokens)
	require.Equal(t, uint64(8), p.Stats().OutputTokens)
}

// An answer of no tokens at all is passed on whole.
func TestAnswerWithoutTokens(t *testing.T) {
	p, _ := newTestPool(t, nil, &script{chunks: []engine.Chunk{raw("role", 0), {Raw: []byte("fin"), Finish: "length"}}})
	raws, err := run(t.Context(), p, request())
	require.NoError(t, err)
	require.Equal(t, []string{"role", "fin"}, raws)
}

func TestNewNamesEveryFault(t *testing.T) {
	_, err := New(nil, nil)
	require.Error(t, err)
	_, err = newPool(&fakeRouter{}, &Options{MaxAttempts: -1, RetryRatio: 2, Scope: block.Scope{Tenant: "t"}})
	require.ErrorContains(t, err, "MaxAttempts")
	require.ErrorContains(t, err, "RetryRatio")
	require.ErrorContains(t, err, "Tenant")
	_, err = newPool(&fakeRouter{}, &Options{Scheme: "x"})
	require.ErrorIs(t, err, block.ErrScheme)
}
