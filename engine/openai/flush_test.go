package openai_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

// Chunks reach the client one by one, unless the next is already there.
func TestFlushPerChunk(t *testing.T) {
	step := make(chan engine.Chunk)
	url, _ := serve(t, fake(func(_ context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		for c := range step {
			yield(&c, nil)
		}
	}), nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	body := `{"model":"m","prompt":"x","stream":true}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	chunk := func(more, hidden bool) {
		step <- engine.Chunk{Raw: []byte(`{}`), Finish: "stop", More: more, Hidden: hidden}
	}
	chunk(false, false)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	buf := make([]byte, 1000)
	n, err := io.ReadFull(resp.Body, buf[:10])
	require.NoError(t, err)
	require.Equal(t, "data: {}\n\n", string(buf[:n]))
	chunk(true, false)
	chunk(false, false)
	n, err = io.ReadFull(resp.Body, buf[:20])
	require.NoError(t, err)
	require.Equal(t, 2, bytes.Count(buf[:n], []byte("data: {}")))
	// A chunk that is not shown flushes the one before it, which waited.
	chunk(true, false)
	chunk(false, true)
	n, err = io.ReadFull(resp.Body, buf[:10])
	require.NoError(t, err)
	require.Equal(t, "data: {}\n\n", string(buf[:n]))
	close(step)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, done, string(rest))
}
