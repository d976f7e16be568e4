package openai_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine/openai"
)

// benchEngine streams as many events as the X-Chunks header says. While step
// is not nil it sends one for each value received.
func benchEngine(step chan struct{}) http.Handler {
	ev := []byte("data: {\"id\":\"cmpl-ab06a9745b7fe5c2\",\"object\":\"text_completion\",\"created\":1795964210,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\" over\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":[585]}]}\n\n")
	fin := bytes.Replace(ev, []byte(`"finish_reason":null`), []byte(`"finish_reason":"stop"`), 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		n := 0
		fmt.Sscan(r.Header.Get("X-Chunks"), &n)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		f := w.(http.Flusher)
		for i := range n {
			if step != nil {
				<-step
			}
			if i == n-1 {
				w.Write(fin)
			} else {
				w.Write(ev)
			}
			f.Flush()
		}
		io.WriteString(w, done)
	})
}

// benchClient makes streamed requests over one kept connection.
type benchClient struct {
	conn net.Conn
	r    *bufio.Reader
	buf  []byte
}

// run makes one request of n chunks; step paces the engine, nil lets it run.
func (c *benchClient) run(b *testing.B, body string, n int, step chan struct{}) {
	fmt.Fprintf(c.conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nX-Chunks: %d\r\nContent-Length: %d\r\n\r\n%s", n, len(body), body)
	if step != nil {
		step <- struct{}{}
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 200 {
		b.Fatal(err, resp)
	}
	events, tail := 0, byte(0)
	for {
		k, err := resp.Body.Read(c.buf)
		if err != nil && err != io.EOF {
			b.Fatal(err)
		}
		for _, ch := range c.buf[:k] {
			if ch == '\n' && tail == '\n' {
				if events++; step != nil && events < n {
					step <- struct{}{}
				}
			}
			tail = ch
		}
		if err == io.EOF {
			break
		}
	}
	if events != n+1 {
		b.Fatalf("%d events of %d", events, n+1)
	}
}

// BenchmarkProxy measures what a gateway adds to a streamed request: Handler
// and Client against a plain httputil.ReverseProxy that flushes at once, and
// against no proxy at all. With pace=step the engine sends an event only when
// the client has the one before, as engines do; with pace=burst it sends as
// fast as it can. ns/request is the quickest request of one chunk, ns/chunk what
// each further chunk adds in the quickest long one. The added- metrics are those
// minus proxy=none's. x-reverseproxy is the ratio of ns/chunk to the reverse
// proxy's, x-added that of added time per chunk, which in a burst is a small
// difference of large numbers.
func BenchmarkProxy(b *testing.B) {
	const chunks = 1025 // long enough that a lucky start or end does not count
	body := `{"model":"tiny","prompt":"` + strings.Repeat("lorem ipsum dolor ", 455) + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":1025}`
	for _, pace := range []string{"step", "burst"} {
		var step chan struct{}
		if pace == "step" {
			step = make(chan struct{}, 1)
		}
		up := httptest.NewServer(benchEngine(step))
		target, err := url.Parse(up.URL)
		require.NoError(b, err)
		// The body is read first: handed on as it arrives, an answer that comes
		// at once can overtake the transport's last read of it, which then fails
		// the exchange (seen with go1.26).
		reverse := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			b, _ := io.ReadAll(r.In.Body)
			r.Out.Body = io.NopCloser(bytes.NewReader(b))
		}}
		client, err := openai.NewClient(up.URL, nil)
		require.NoError(b, err)
		handler, err := openai.NewHandler(client, nil)
		require.NoError(b, err)
		var baseRequest, baseChunk, reverseChunk float64
		for _, proxy := range []struct {
			name string
			h    http.Handler
		}{{"none", nil}, {"reverseproxy", reverse}, {"stator", handler}} {
			addr := up.Listener.Addr().String()
			var srv *httptest.Server
			if proxy.h != nil {
				srv = httptest.NewServer(proxy.h)
				addr = srv.Listener.Addr().String()
			}
			b.Run("proxy="+proxy.name+"/pace="+pace, func(b *testing.B) {
				conn, err := net.Dial("tcp", addr)
				require.NoError(b, err)
				defer conn.Close()
				c := &benchClient{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), buf: make([]byte, 64<<10)}
				c.run(b, body, 1, step)
				short, long := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
				b.ReportAllocs()
				for b.Loop() {
					t0 := time.Now()
					c.run(b, body, 1, step)
					t1 := time.Now()
					c.run(b, body, chunks, step)
					short, long = min(short, t1.Sub(t0)), min(long, time.Since(t1))
				}
				perRequest := float64(short.Nanoseconds())
				perChunk := float64((long - short).Nanoseconds()) / (chunks - 1)
				b.ReportMetric(perRequest, "ns/request")
				b.ReportMetric(perChunk, "ns/chunk")
				switch proxy.name {
				case "none":
					baseRequest, baseChunk = perRequest, perChunk
					return
				case "reverseproxy":
					reverseChunk = perChunk
				case "stator":
					b.ReportMetric(perChunk/reverseChunk, "x-reverseproxy")
					b.ReportMetric((perChunk-baseChunk)/(reverseChunk-baseChunk), "x-added")
				}
				b.ReportMetric(perRequest-baseRequest, "added-ns/request")
				b.ReportMetric(perChunk-baseChunk, "added-ns/chunk")
			})
			if srv != nil {
				srv.Close()
			}
		}
		client.Close()
		up.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
}
