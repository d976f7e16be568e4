package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

func TestRetryable(t *testing.T) {
	status := func(s int) error { return fmt.Errorf("worker a: %w", &engine.Error{Status: s}) }
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{status(400), false}, {status(401), false}, {status(404), false}, {status(413), false}, {status(422), false}, {status(499), false},
		{status(408), true}, {status(429), true}, {status(500), true}, {status(502), true}, {status(503), true}, {status(504), true},
		{status(501), false}, {status(0), false},
		{engine.ErrAborted, true}, {engine.ErrCut, true}, {engine.ErrNotServed, true}, {engine.ErrTimeout, true},
		{engine.ErrUnreachable, true}, {engine.ErrProtocol, true}, {engine.ErrUnavailable, false},
		{context.Canceled, false}, {context.DeadlineExceeded, false},
		{fmt.Errorf("%w: %w", engine.ErrUnreachable, context.DeadlineExceeded), true}, // a dial's own timeout
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		{&engine.StreamError{Err: engine.ErrCut, Chunks: 3}, true},
		{&engine.StreamError{Err: status(400), Chunks: 3}, false},
	} {
		require.Equal(t, tc.want, engine.Retryable(tc.err), "%v", tc.err)
	}
}

func TestDelivered(t *testing.T) {
	require.False(t, engine.Delivered(nil))
	require.False(t, engine.Delivered(engine.ErrCut))
	require.False(t, engine.Delivered(&engine.StreamError{Err: engine.ErrCut}))
	err := fmt.Errorf("pool: %w", &engine.StreamError{Err: engine.ErrCut, Chunks: 2, Tokens: 1})
	require.True(t, engine.Delivered(err))
	require.ErrorIs(t, err, engine.ErrCut)
	require.ErrorContains(t, err, "after 2 chunks, 1 tokens")
}

func TestRetryAfter(t *testing.T) {
	require.Zero(t, engine.RetryAfter(engine.ErrCut))
	require.Equal(t, time.Second, engine.RetryAfter(fmt.Errorf("a: %w", &engine.Error{Status: 429, RetryAfter: time.Second})))
}

func TestErrorTexts(t *testing.T) {
	require.Equal(t, "engine: status 503", (&engine.Error{Status: 503}).Error())
	require.Equal(t, "engine: status 400: too long", (&engine.Error{Status: 400, Message: "too long"}).Error())
}

func TestTimeline(t *testing.T) {
	var none *engine.Timeline
	none.Add("x", engine.Data, time.Time{}, time.Time{}) // dropped
	none.Reset()
	require.Nil(t, none.Spans())
	require.False(t, none.Has(engine.Data))

	var line engine.Timeline
	at := time.Unix(100, 0)
	line.Add("pick", engine.Control, at, at.Add(time.Millisecond))
	line.Add("decode", engine.Compute, at, at.Add(time.Second))
	spans := line.Spans()
	require.Len(t, spans, 2)
	require.Equal(t, engine.Span{Name: "pick", Class: engine.Control, Start: at, End: at.Add(time.Millisecond)}, spans[0])
	require.True(t, line.Has(engine.Compute))
	require.False(t, line.Has(engine.Data))
	line.Reset()
	require.Empty(t, line.Spans())
	require.Len(t, spans, 2, "a copy")
	for c, s := range map[engine.Class]string{engine.Control: "control", engine.Data: "data", engine.Compute: "compute", 9: "unknown"} {
		require.Equal(t, s, c.String())
	}
}

func ExampleRetryable() {
	drained := engine.ErrNotServed
	tooLong := &engine.Error{Status: 400, Message: "prompt exceeds the context"}
	fmt.Println(engine.Retryable(drained), engine.Retryable(tooLong))
	// Output: true false
}

func ExampleTimeline() {
	var line engine.Timeline
	start := time.Unix(0, 0)
	line.Add("pick", engine.Control, start, start.Add(20*time.Microsecond))
	line.Add("prefill", engine.Compute, start.Add(20*time.Microsecond), start.Add(80*time.Millisecond))
	for _, s := range line.Spans() {
		fmt.Println(s.Name, s.Class, s.End.Sub(s.Start))
	}
	// Output:
	// pick control 20µs
	// prefill compute 79.98ms
}
