package openai

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryAfterForms(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0": 0, "-3": 0, "99999999": 24 * time.Hour, "soon": 0, "1.5": 0,
		"Sun, 29 Nov 2026 12:00:30 GMT": 30 * time.Second, "Sun, 29 Nov 2026 11:00:00 GMT": 0,
		"Sun, 29 Nov 2099 11:00:00 GMT": 24 * time.Hour,
	} {
		require.Equal(t, want, retryAfter(in, now), in)
	}
}

func TestIsEvents(t *testing.T) {
	for in, want := range map[string]bool{
		"text/event-stream": true, "text/event-stream; charset=utf-8": true, "Text/Event-Stream;charset=UTF-8": true,
		"application/json": false, "text/event-stream-x": false, "???": false,
	} {
		require.Equal(t, want, isEvents(in, false), in)
		require.Equal(t, want, isEvents(in, true), in)
	}
	require.True(t, isEvents("", true))
	require.False(t, isEvents("", false))
}

// A pooled generation does not keep the memory of one large answer.
func TestLargeBuffersAreLetGo(t *testing.T) {
	c, err := NewClient("http://x", nil)
	require.NoError(t, err)
	g := &generation{c: c}
	g.events.buf, g.events.joined = make([]byte, 1<<20), make([]byte, 1<<20)
	g.scratch, g.answer, g.parse.ids = make([]byte, 1<<20), make([]byte, 1<<20), make([]uint32, 1<<20)
	g.release()
	require.Zero(t, cap(g.events.buf)+cap(g.events.joined)+cap(g.scratch)+cap(g.answer)+cap(g.parse.ids))

	h, err := NewHandler(c, nil)
	require.NoError(t, err)
	k := &call{h: h, body: make([]byte, 4<<20), out: make([]byte, 1<<20), tokens: make([]uint32, 1<<20)}
	k.release()
	require.Zero(t, cap(k.body)+cap(k.out)+cap(k.tokens))
}

func TestRequestBodyIsDetached(t *testing.T) {
	data := []byte(strings.Repeat("x", 100))
	b := &sendBody{data: data}
	p := make([]byte, 10)
	n, err := b.Read(p)
	require.NoError(t, err)
	require.Equal(t, 10, n)
	require.NoError(t, b.Close())
	b.detach()
	n, err = b.Read(p)
	require.ErrorIs(t, err, errDetached)
	require.Zero(t, n)
}
