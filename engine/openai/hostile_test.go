package openai_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

// A body that ends too early, or is no chunked body, is the client's fault and
// no timeout.
func TestBrokenBodies(t *testing.T) {
	url, h := serve(t, say(nil, `{}`), nil)
	for name, raw := range map[string]string{
		"cut":     "Content-Length: 100\r\n\r\n{",
		"chunked": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"unended": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		defer conn.Close()
		fmt.Fprint(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\n"+raw)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, name)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, 400, resp.StatusCode, name)
		message, _ := errorOf(t, string(b))
		require.Contains(t, message, "cut off")
	}
	require.Zero(t, h.Stats().Requests)
}

// A large body that is only announced costs next to no memory.
func TestPromisedBodiesAreNotPaidFor(t *testing.T) {
	h := newHandler(t, say(nil, `{}`), nil)
	const clients = 64
	var mid sync.WaitGroup
	mid.Add(clients)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var before, during runtime.MemStats
	runtime.ReadMemStats(&before)
	for range clients {
		wg.Go(func() {
			r := httptest.NewRequest(http.MethodPost, "/v1/completions", waiting{mid.Done, stop})
			r.ContentLength = 32 << 20
			h.ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	mid.Wait()
	runtime.ReadMemStats(&during)
	close(stop)
	wg.Wait()
	require.Less(t, during.TotalAlloc-before.TotalAlloc, uint64(clients)<<20, "bytes for bodies that never came")
}

// waiting is a body of which nothing comes until it breaks off.
type waiting struct {
	began func()
	stop  chan struct{}
}

func (w waiting) Read([]byte) (int, error) {
	w.began()
	<-w.stop
	return 0, io.ErrUnexpectedEOF
}

// Bodies of every size around the steps in which memory grows arrive whole,
// announced or not.
func TestBodySizes(t *testing.T) {
	got := make(chan int, 1)
	url, _ := serve(t, fake(func(_ context.Context, req *engine.Request, yield func(*engine.Chunk, error) bool) {
		got <- len(req.Body)
		yield(&engine.Chunk{Raw: []byte(`{}`), Finish: "stop"}, nil)
	}), nil)
	for _, size := range []int{100, 511, 512, 513, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20, 5<<20 + 7} {
		frame := `{"model":"m","prompt":""}`
		body := strings.Replace(frame, `""`, `"`+strings.Repeat("x", size-len(frame))+`"`, 1)
		for _, announced := range []bool{true, false} {
			var r io.Reader = strings.NewReader(body)
			if !announced {
				r = io.MultiReader(r)
			}
			resp, err := http.Post(url+"/v1/completions", "application/json", r)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, size, <-got)
		}
	}
}

// A header that makes engines close the connection must not reach one.
func TestHeaderFlood(t *testing.T) {
	asked := false
	url, h := serve(t, fake(func(_ context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		asked = true
		yield(&engine.Chunk{Raw: []byte(`{}`), Finish: "stop"}, nil)
	}), nil)
	many, same := http.Header{}, http.Header{}
	for i := range 300 {
		many.Set(fmt.Sprintf("X-F%d", i), "y")
		same.Add("X-F", "y")
	}
	for name, header := range map[string]http.Header{"lines": many, "one name": same, "size": {"X-F": {strings.Repeat("y", 40<<10)}}} {
		resp, body := post(t, url+"/v1/completions", okBody, header)
		require.Equal(t, 431, resp.StatusCode, name)
		errorOf(t, body)
		require.False(t, asked)
	}
	// What does not go upstream does not count.
	resp, body := post(t, url+"/v1/completions", okBody, http.Header{"Cookie": {strings.Repeat("c", 100<<10)}})
	require.Equal(t, 200, resp.StatusCode, body)
	require.Equal(t, uint64(3), h.Stats().Refused)
}

// Names that others keep are bounded: model and salt are refused, a session is
// none.
func TestLongNames(t *testing.T) {
	fits, long := strings.Repeat("n", 1024), strings.Repeat("n", 1025)
	parse := func(model, salt, key string) (engine.Request, error) {
		var req engine.Request
		err := openai.ParseRequest(&req, engine.APICompletions,
			fmt.Appendf(nil, `{"model":%q,"prompt":"x","cache_salt":%q,"prompt_cache_key":%q}`, model, salt, key), openai.Limits{})
		return req, err
	}
	req, err := parse(fits, fits, fits)
	require.NoError(t, err)
	require.Equal(t, []string{fits, fits, fits}, []string{req.Model, req.Salt, req.Session})
	var bad *engine.Error
	_, err = parse(long, "s", "k")
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "model", bad.Param)
	_, err = parse("m", long, "k")
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "cache_salt", bad.Param)
	req, err = parse("m", "s", long)
	require.NoError(t, err)
	require.Empty(t, req.Session)

	sessions := make(chan string, 1)
	url, _ := serve(t, fake(func(_ context.Context, req *engine.Request, yield func(*engine.Chunk, error) bool) {
		sessions <- req.Session
		yield(&engine.Chunk{Raw: []byte(`{}`), Finish: "stop"}, nil)
	}), nil)
	for in, want := range map[string]string{fits: fits, long: ""} {
		post(t, url+"/v1/completions", okBody, http.Header{"X-Session-Id": {in}})
		require.Equal(t, want, <-sessions)
	}
}

// Whoever counts requests by the hooks must not lose one to a panic.
func TestEnginePanics(t *testing.T) {
	var started, ended int
	h := newHandler(t, fake(func(context.Context, *engine.Request, func(*engine.Chunk, error) bool) {
		panic("engine")
	}), &openai.ServerOptions{Hooks: openai.ServerHooks{
		Start: func(*engine.Request) { started++ },
		End: func(_ *engine.Request, r *openai.Result) {
			if r.Err != nil && !r.End.IsZero() {
				ended++
			}
		},
	}})
	for range 3 {
		require.PanicsWithValue(t, "engine", func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(okBody)))
		})
	}
	require.Equal(t, 3, started)
	require.Equal(t, 3, ended)
	s := h.Stats()
	require.Zero(t, s.InFlight)
	require.Equal(t, uint64(3), s.Failed)
}
