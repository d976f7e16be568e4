package router

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
)

// quietRouter is a router with one worker on which a prompt of 512 tokens takes
// 100 ms of prefill, doubled when anything decodes.
func quietRouter(t *testing.T, opts Options) (*Router, *clock) {
	opts.Timing = Timing{T0: 0.1, A: 0.1, Chunk: 512}
	opts.OutputMean = 10
	return newTestRouter(t, 1, nil, opts)
}

func prompt(quiet bool) *Request { return &Request{Tokens: 512, Quiet: quiet} }

// counts are pending and decoding requests and the seconds in the queue.
func counts(r *Router) [3]any {
	w := r.Stats().Workers[0]
	return [3]any{w.Pending, w.Decoding, w.Queue.Round(time.Millisecond)}
}

func TestQuietTakesTheTimeExpected(t *testing.T) {
	r, c := quietRouter(t, Options{FixedTiming: true})
	a := mustPick(t, r, prompt(true))
	b := mustPick(t, r, prompt(true))
	s := mustPick(t, r, prompt(false))
	d := mustPick(t, r, prompt(true))
	require.Equal(t, [3]any{4, 0, 400 * time.Millisecond}, counts(r))
	c.advance(99 * time.Millisecond)
	require.Equal(t, [3]any{4, 0, 301 * time.Millisecond}, counts(r))
	c.advance(2 * time.Millisecond)
	require.Equal(t, [3]any{3, 1, 299 * time.Millisecond}, counts(r), "the next has been head for 1 ms")
	c.advance(time.Hour)
	require.Equal(t, [3]any{2, 2, 100 * time.Millisecond}, counts(r), "one that streams is waited for, and so is what is behind it")
	s.FirstToken()
	require.Equal(t, [3]any{1, 3, 100 * time.Millisecond}, counts(r))
	c.advance(101 * time.Millisecond)
	require.Equal(t, [3]any{0, 4, time.Duration(0)}, counts(r))
	for _, l := range []*Lease{d, a, s, b} {
		l.Done(nil)
	}
	requireEmpty(t, r)
}

// What decodes at booking stretches the time.
func TestQuietBesideDecoding(t *testing.T) {
	r, c := quietRouter(t, Options{FixedTiming: true})
	s := mustPick(t, r, prompt(false))
	s.FirstToken()
	q := mustPick(t, r, prompt(true))
	require.InDelta(t, 2, q.Decision().Slowdown, 1e-9)
	c.advance(199 * time.Millisecond)
	require.Equal(t, 1, counts(r)[0])
	c.advance(2 * time.Millisecond)
	require.Equal(t, 0, counts(r)[0])
	s.Done(nil)
	q.Done(nil)
	requireEmpty(t, r)
}

// A first token, or an answer, tells that what was sent before is past its own.
func TestQuietIsOvertaken(t *testing.T) {
	for name, end := range map[string]func(l *Lease){
		"first token": func(l *Lease) { l.FirstToken() },
		"answer":      func(l *Lease) { l.Output(7); l.Done(nil) },
	} {
		r, _ := quietRouter(t, Options{FixedTiming: true})
		a, s, b, last := mustPick(t, r, prompt(true)), mustPick(t, r, prompt(false)), mustPick(t, r, prompt(true)), mustPick(t, r, prompt(false))
		after := mustPick(t, r, prompt(true))
		end(last)
		require.Equal(t, 2, counts(r)[0], "%s: the one that streams and the one behind", name)
		for _, l := range []*Lease{a, s, b, last, after} {
			l.Done(nil)
		}
		requireEmpty(t, r)
	}
	// A failure and a client that left tell nothing.
	r, _ := quietRouter(t, Options{FixedTiming: true})
	a, b, d := mustPick(t, r, prompt(true)), mustPick(t, r, prompt(true)), mustPick(t, r, prompt(true))
	b.Done(errors.New("broken"))
	d.Done(context.Canceled)
	require.Equal(t, 1, counts(r)[0])
	a.Done(nil)
	requireEmpty(t, r)
}

func TestQuietTeachesNoTimes(t *testing.T) {
	var out []Outcome
	r, c := quietRouter(t, Options{Hooks: Hooks{OnDone: func(o Outcome) { o.Decision = nil; out = append(out, o) }}})
	for range 250 {
		q := mustPick(t, r, prompt(true))
		s := mustPick(t, r, prompt(false)) // its prefill begins at an assumed moment
		c.advance(150 * time.Millisecond)
		require.Equal(t, 1, counts(r)[0])
		c.advance(100 * time.Millisecond)
		s.FirstToken()
		s.Done(context.Canceled)
		q.FirstToken() // too late to tell anything
		c.advance(time.Second)
		q.Output(30)
		q.Done(nil)
	}
	s := r.Stats()
	require.Zero(t, s.LearnRows)
	require.Zero(t, s.TPOT)
	require.Equal(t, uint64(250), s.TTFT.Count, "those that streamed")
	require.InDelta(t, 30, s.OutputMean, 1)
	last := out[len(out)-1]
	require.Equal(t, 30, last.Tokens)
	require.Zero(t, last.TTFT)
	requireEmpty(t, r)
}

// An answer of one token comes with its first one, quiet or not.
func TestQuietAnswerOfOneToken(t *testing.T) {
	r, c := quietRouter(t, Options{})
	l := mustPick(t, r, prompt(true))
	c.advance(50 * time.Millisecond)
	l.Output(1)
	l.Done(nil)
	require.Equal(t, uint64(1), r.Stats().TTFT.Count)
	requireEmpty(t, r)
}

// The worker leaves, comes back, is retried away from; the end comes twice.
func TestQuietComesBackToZero(t *testing.T) {
	r, c := newTestRouter(t, 2, nil, Options{})
	a, b := mustPick(t, r, prompt(true)), mustPick(t, r, prompt(true))
	require.NoError(t, r.SetWorkers(workerList(1, 0)))
	c.advance(time.Minute)
	r.Report(slotOf(1), Load{Running: 3, HasQueue: true})
	require.NoError(t, r.SetWorkers(workerList(2, 0)))
	d, err := a.Retry(prompt(true), errors.New("broken"))
	require.NoError(t, err)
	require.NotEqual(t, a.Slot(), d.Slot())
	c.advance(time.Minute)
	for _, l := range []*Lease{a, b, d, d} {
		l.Output(3)
		l.Done(nil)
	}
	requireEmpty(t, r)
	require.Zero(t, r.quiet)
	for _, w := range r.rows {
		require.Zero(t, w.quiet)
	}
	require.Zero(t, r.Outstanding(kvindex.MakeSlot(1, 1)))
}
