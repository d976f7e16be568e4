package openai_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	done       = "data: [DONE]\n\n"
	lastFrame  = "0\r\n\r\n"
)

// frame is one HTTP chunk.
func frame(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// event is a completion event of one choice with text and finish reason.
func event(choice int, text, finish string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"text\":%q,\"finish_reason\":%s}]}\n\n", choice, text, finish)
}

const usageEvent = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":0}}\n\n"

func streamRequest(n int) *engine.Request {
	return &engine.Request{
		ID: "r1", API: engine.APICompletions, Model: "m", Body: []byte(`{"model":"m","prompt":"x","stream":true}`),
		Stream: true, N: n, Prompts: 1, Rank: -1,
	}
}

func wholeRequest() *engine.Request {
	return &engine.Request{API: engine.APICompletions, Model: "m", Body: []byte(`{"model":"m","prompt":"x"}`), N: 1, Prompts: 1, Rank: -1}
}

// What counts as an answer and what does not.
func TestEndingsOfStreams(t *testing.T) {
	tok, fin := event(0, "a", "null"), event(0, "b", `"stop"`)
	role := "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
	errEvent := "data: {\"error\": {\"message\": \"boom\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\n"
	for _, tc := range []struct {
		name, body string
		n          int
		want       error
		chunks     int
	}{
		{"good", tok + fin + done, 1, nil, 2},
		{"length", tok + event(0, "", `"length"`) + done, 1, nil, 2},
		{"tool calls", event(0, "", `"tool_calls"`) + done, 1, nil, 1},
		{"two choices", event(1, "x", `"stop"`) + fin + done, 2, nil, 2},
		{"one of two unfinished", tok + fin + done, 2, engine.ErrCut, 2},
		{"an unannounced choice unfinished", event(1, "x", "null") + fin + done, 1, engine.ErrCut, 2},
		{"no finish", tok + done, 1, engine.ErrCut, 1},
		{"no done", tok + fin, 1, engine.ErrCut, 2},
		{"nothing", "", 1, engine.ErrCut, 0},
		{"only done", done, 1, engine.ErrNotServed, 0},
		{"usage only", usageEvent + done, 1, engine.ErrNotServed, 0},
		{"abort at once", event(0, "", `"abort"`) + done, 1, engine.ErrNotServed, 0},
		{"abort with the first token", event(0, "a", `"abort"`) + done, 1, engine.ErrAborted, 0},
		{"abort after a role", role + event(0, "", `"abort"`) + done, 1, engine.ErrNotServed, 1},
		{"abort later", tok + event(0, "", `"abort"`) + usageEvent + done, 1, engine.ErrAborted, 1},
		{"abort later with a token", tok + event(0, "z", `"abort"`) + done, 1, engine.ErrAborted, 2},
		{"error at once", errEvent + done, 1, &engine.Error{Status: 500}, 0},
		{"error later", tok + errEvent + done, 1, &engine.Error{Status: 500}, 1},
		{"flat error", "data: {\"object\":\"error\",\"message\":\"m\",\"code\":503}\n\n" + done, 1, &engine.Error{Status: 503}, 0},
		{"not JSON", tok + "data: {oops\n\n" + done, 1, engine.ErrProtocol, 1},
		{"absurd index", event(99999999, "a", "null") + done, 1, engine.ErrProtocol, 0},
		{"event too large", tok + "data: \"" + strings.Repeat("x", 5000) + "\"\n\n" + done, 1, engine.ErrProtocol, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := streamHead
			if tc.body != "" {
				answer += frame(tc.body)
			}
			url := replay(t, []byte(answer+lastFrame))
			chunks, err := collect(t, newClient(t, url, &openai.ClientOptions{MaxEvent: 4096}), streamRequest(tc.n))
			require.Len(t, chunks, tc.chunks)
			var e *engine.Error
			switch {
			case tc.want == nil:
				require.NoError(t, err)
			case errors.As(tc.want, &e):
				status := e.Status
				require.True(t, errors.As(err, &e), "%v", err)
				require.Equal(t, status, e.Status)
			default:
				require.ErrorIs(t, err, tc.want)
			}
			require.Equal(t, tc.want != nil && tc.chunks > 0, engine.Delivered(err))
		})
	}
}

// A process that is killed cuts its stream without the last frame.
func TestCutStream(t *testing.T) {
	for _, body := range []string{"", frame(event(0, "a", "null")), frame(event(0, "a", "null")) + "40\r\ndata: {\"choi"} {
		_, err := collect(t, newClient(t, replay(t, []byte(streamHead+body)), nil), streamRequest(1))
		require.ErrorIs(t, err, engine.ErrCut)
		require.Equal(t, body != "", engine.Delivered(err))
		require.True(t, engine.Retryable(err))
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + l.Addr().String()
	l.Close()
	_, err = collect(t, newClient(t, url, nil), streamRequest(1))
	require.ErrorIs(t, err, engine.ErrUnreachable)
	require.True(t, engine.Retryable(err))
	_, err = collect(t, newClient(t, replay(t, nil), nil), streamRequest(1))
	require.ErrorIs(t, err, engine.ErrUnreachable, "closed without an answer")
}

func TestErrorForms(t *testing.T) {
	for _, tc := range []struct {
		status        int
		body, message string
		retry         bool
	}{
		{400, `{"error":{"message":"no","type":"BadRequestError","param":"n","code":400}}`, "no", false},
		{400, `{"object":"error","message":"flat","type":"BadRequestError","param":null,"code":400}`, "flat", false},
		{404, `{"detail":"Not Found"}`, "Not Found", false},
		{422, `{"detail":[{"loc":["body"]}]}`, `[{"loc":["body"]}]`, false},
		{500, `{"error":"text"}`, "text", true},
		{502, "<html>bad gateway</html>", "", true},
		{429, ``, "", true},
		{503, `{"message":"later"}`, "later", true},
		{302, ``, "", true},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(tc.status)
			io.WriteString(w, tc.body)
		}))
		_, err := collect(t, newClient(t, srv.URL, nil), wholeRequest())
		srv.Close()
		require.Equal(t, tc.retry, engine.Retryable(err), tc.body)
		if tc.status < 400 {
			require.ErrorIs(t, err, engine.ErrProtocol, "redirects are not followed")
			continue
		}
		var e *engine.Error
		require.True(t, errors.As(err, &e))
		require.Equal(t, tc.status, e.Status)
		require.Equal(t, tc.message, e.Message)
		require.Equal(t, 7*time.Second, e.RetryAfter)
		require.Equal(t, 7*time.Second, engine.RetryAfter(err))
		require.Equal(t, tc.body, string(e.Body))
	}
}

// The engine's server sees what was meant, and nothing that was not.
func TestWhatIsSent(t *testing.T) {
	type seen struct {
		header http.Header
		body   string
		path   string
	}
	ch := make(chan seen, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		ch <- seen{r.Header, string(b), r.URL.Path}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, event(0, "a", `"stop"`)+done)
	}))
	defer srv.Close()
	for _, tc := range []struct {
		name, body, want string
		opts             openai.ClientOptions
		include          bool
	}{
		{"usage is asked for", `{"model":"m","stream":true}`, `{"stream_options":{"include_usage":true},"model":"m","stream":true}`, openai.ClientOptions{}, false},
		{"an empty object", ` { } `, `{"stream_options":{"include_usage":true} } `, openai.ClientOptions{}, false},
		{"already asked for", ` {"stream_options":{"include_usage":true}}`, ` {"stream_options":{"include_usage":true}}`, openai.ClientOptions{}, true},
		{"other options stay", `{"a":12345678901234567890,"stream_options":{"x":1,"include_usage":false,"continuous_usage_stats":true}}`,
			`{"stream_options":{"x":1,"include_usage":true},"a":12345678901234567890}`, openai.ClientOptions{}, false},
		{"null and twice", `{"stream_options":{},"b":1,"\u0073tream_options":null}`, `{"stream_options":{"include_usage":true},"b":1}`, openai.ClientOptions{}, false},
		{"not wanted", `{"a":1}`, `{"a":1}`, openai.ClientOptions{NoUsage: true}, false},
		{"ids", `{"return_token_ids":false,"a":1}`, `{"return_token_ids":true,"a":1}`, openai.ClientOptions{NoUsage: true, ReturnTokenIDs: true}, false},
		{"both", `{"a":1}`, `{"return_token_ids":true,"stream_options":{"include_usage":true},"a":1}`, openai.ClientOptions{ReturnTokenIDs: true}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := streamRequest(1)
			req.Body, req.IncludeUsage = []byte(tc.body), tc.include
			req.Rank = 3
			req.Header = http.Header{
				"Traceparent": {"00-1"}, "X-Data-Parallel-Rank": {"9"}, "X-Vllm-Priority": {"-5"}, "Accept-Encoding": {"gzip"},
				"Connection": {"x"}, "X-Prefiller-Host-Port": {"evil:1"}, "Authorization": {"Bearer client"},
			}
			before := string(req.Body)
			tc.opts.Authorization = "Bearer gateway"
			_, err := collect(t, newClient(t, srv.URL+"/v1/", &tc.opts), req)
			require.NoError(t, err)
			require.Equal(t, before, string(req.Body))
			got := <-ch
			require.Equal(t, "/v1/completions", got.path)
			require.Equal(t, tc.want, got.body)
			require.True(t, json.Valid([]byte(got.body)))
			require.Equal(t, "r1", got.header.Get("X-Request-Id"))
			require.Equal(t, "3", got.header.Get("X-Data-Parallel-Rank"))
			require.Equal(t, "00-1", got.header.Get("Traceparent"))
			require.Equal(t, "Bearer gateway", got.header.Get("Authorization"))
			require.Equal(t, "text/event-stream", got.header.Get("Accept"))
			for _, h := range []string{"X-Vllm-Priority", "X-Prefiller-Host-Port", "Accept-Encoding", "Connection"} {
				require.Empty(t, got.header.Get(h), h)
			}
		})
	}
}

// While an answer is on its way the request side stays open: vLLM takes a half
// close for a disconnect. When the consumer breaks off, or its context ends,
// the connection closes at once.
func TestConnectionStaysOpenUntilBrokenOff(t *testing.T) {
	for _, how := range []string{"break", "cancel"} {
		t.Run(how, func(t *testing.T) {
			events := make(chan string, 2)
			s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
				if req, _ := readRequest(r); req == nil {
					return
				}
				io.WriteString(c, streamHead+frame(event(0, "a", "null")))
				// A half or whole close shows as the end of what we read.
				c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if _, err := r.ReadByte(); errors.Is(err, io.EOF) {
					events <- "closed early"
				}
				c.SetReadDeadline(time.Time{})
				io.WriteString(c, frame(event(0, "b", "null")))
				r.ReadByte()
				events <- "closed"
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			var last error
			for _, err := range newClient(t, s.url, nil).Generate(ctx, streamRequest(1)) {
				last = err
				if n++; n == 2 {
					if how == "break" {
						break
					}
					cancel()
				}
			}
			require.Equal(t, "closed", <-events)
			if how == "cancel" {
				require.ErrorIs(t, last, context.Canceled)
				require.False(t, engine.Retryable(last))
			}
		})
	}
}

// Pings are no answer: the first-byte limit counts events.
func TestFirstByteTimeout(t *testing.T) {
	for _, sends := range []string{"", streamHead, streamHead + frame(": ping\n\n")} {
		closed := make(chan struct{})
		s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			io.WriteString(c, sends)
			r.ReadByte()
			close(closed)
		})
		_, err := collect(t, newClient(t, s.url, &openai.ClientOptions{FirstByteTimeout: 20 * time.Millisecond}), streamRequest(1))
		require.ErrorIs(t, err, engine.ErrTimeout)
		require.True(t, engine.Retryable(err))
		<-closed
	}
}

func TestIdleTimeout(t *testing.T) {
	s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, streamHead+frame(event(0, "a", "null")))
		r.ReadByte()
	})
	opts := &openai.ClientOptions{FirstByteTimeout: time.Minute, IdleTimeout: 20 * time.Millisecond}
	chunks, err := collect(t, newClient(t, s.url, opts), streamRequest(1))
	require.Len(t, chunks, 1)
	require.ErrorIs(t, err, engine.ErrTimeout)
	require.True(t, engine.Delivered(err))
}

// slowBody gives one event at a time, each after a pause.
type slowBody struct {
	events []string
	pause  time.Duration
}

func (b *slowBody) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: b, Request: req}, nil
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.events) == 0 {
		return 0, io.EOF
	}
	time.Sleep(b.pause)
	n := copy(p, b.events[0])
	b.events = b.events[1:]
	return n, nil
}

func (b *slowBody) Close() error { return nil }

// The limits are up to the first event and between events, not of the stream.
func TestIdleTimeoutMovesOn(t *testing.T) {
	for _, first := range []time.Duration{0, 400 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			body := &slowBody{pause: 300 * time.Millisecond}
			for range 20 {
				body.events = append(body.events, event(0, "a", "null"))
			}
			body.events = append(body.events, event(0, "a", `"stop"`), done)
			opts := &openai.ClientOptions{Transport: body, FirstByteTimeout: first, IdleTimeout: 400 * time.Millisecond}
			start := time.Now()
			chunks, err := collect(t, newClient(t, "http://engine", opts), streamRequest(1))
			require.NoError(t, err)
			require.Len(t, chunks, 21)
			require.Equal(t, 22*300*time.Millisecond, time.Since(start))
		})
	}
}

func TestRequestDeadline(t *testing.T) {
	s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		r.ReadByte()
	})
	req := streamRequest(1)
	req.Deadline = time.Now().Add(20 * time.Millisecond)
	_, err := collect(t, newClient(t, s.url, nil), req)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, engine.Retryable(err))
}

// A connection serves the next request after a clean end.
func TestConnectionIsReused(t *testing.T) {
	conns := make(chan struct{}, 10)
	s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
		conns <- struct{}{}
		for {
			req, _ := readRequest(r)
			if req == nil {
				return
			}
			io.WriteString(c, streamHead+frame(event(0, "a", `"stop"`))+frame(done)+lastFrame)
		}
	})
	c := newClient(t, s.url, nil)
	for range 5 {
		_, err := collect(t, c, streamRequest(1))
		require.NoError(t, err)
	}
	require.Len(t, conns, 1)
}

// A kept connection that the engine closes as the next request comes costs
// nothing: the request goes out again on a new one.
func TestKeptConnectionClosedByTheEngine(t *testing.T) {
	s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
		req, body := readRequest(r)
		if req == nil {
			return
		}
		if len(req.Header["X-Idempotency-Key"]) > 0 || !json.Valid(body) {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
			return
		}
		io.WriteString(c, streamHead+frame(event(0, "a", `"stop"`))+frame(done)+lastFrame)
		readRequest(r) // the second one is dropped with the connection
	})
	c := newClient(t, s.url, nil)
	for range 4 {
		_, err := collect(t, c, streamRequest(1))
		require.NoError(t, err)
	}
}

// A body that arrives in the middle of an answer that does not stream is
// bounded, declared length or not.
func TestBodyLimit(t *testing.T) {
	big := `{"choices":[{"index":0,"text":"` + strings.Repeat("x", 3000) + `","finish_reason":"stop"}]}`
	for _, answer := range []string{
		fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(big), big),
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + frame(big) + lastFrame,
	} {
		_, err := collect(t, newClient(t, replay(t, []byte(answer)), &openai.ClientOptions{MaxBody: 1000}), wholeRequest())
		require.ErrorIs(t, err, engine.ErrProtocol)
		require.ErrorContains(t, err, "1000")
		chunks, err := collect(t, newClient(t, replay(t, []byte(answer)), nil), wholeRequest())
		require.NoError(t, err)
		require.Len(t, chunks, 1)
	}
}

func TestModelsAndHealth(t *testing.T) {
	f, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(loadFixture(t, "get_models_lora").answer))), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(f.Body)
	require.NoError(t, err)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Write(body)
	}))
	defer srv.Close()
	c := newClient(t, srv.URL, nil)
	models, err := c.Models(t.Context())
	require.NoError(t, err)
	require.Equal(t, []engine.Model{{ID: "tiny", MaxLen: 1024}, {ID: "lora-x", Parent: "tiny", MaxLen: 1024}}, models)
	var e *engine.Error
	require.True(t, errors.As(c.Health(t.Context()), &e))
	require.Equal(t, 503, e.Status)
}

func TestCall(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Authorization"), b)
	}))
	defer srv.Close()
	c := newClient(t, srv.URL, &openai.ClientOptions{Authorization: "Bearer k", MaxBody: 100})
	out, err := c.Call(t.Context(), http.MethodPost, "/tokenize", []byte(`{"a":1}`))
	require.NoError(t, err)
	require.Equal(t, `POST /tokenize application/json Bearer k {"a":1}`, string(out))
	_, err = c.Call(t.Context(), http.MethodPost, "/tokenize", []byte(strings.Repeat("x", 200)))
	require.ErrorIs(t, err, engine.ErrProtocol)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Call(ctx, http.MethodGet, "/x", nil)
	require.ErrorIs(t, err, context.Canceled)
	_, err = newClient(t, replay(t, []byte("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")), nil).Call(t.Context(), http.MethodGet, "/x", nil)
	require.ErrorIs(t, err, engine.ErrCut)
}

// Answers that are not what was asked for.
func TestWrongKindOfAnswer(t *testing.T) {
	whole := `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`
	json200 := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole)
	_, err := collect(t, newClient(t, replay(t, []byte(json200)), nil), streamRequest(1))
	require.ErrorIs(t, err, engine.ErrProtocol)
	_, err = collect(t, newClient(t, replay(t, []byte(streamHead+frame(done)+lastFrame)), nil), wholeRequest())
	require.ErrorIs(t, err, engine.ErrProtocol)
	for body, want := range map[string]error{
		`{"choices":[]}`: engine.ErrNotServed,
		`{"choices":[{"index":0,"text":"a","finish_reason":null}]}`: engine.ErrCut,
		`{"choices":[{"index":1,"text":"a"}]}`:                      engine.ErrCut,
		`{"choices":[{"index":-1}]}`:                                engine.ErrProtocol,
		`{"choices":[{"token_ids":["a"]}]}`:                         engine.ErrProtocol,
		`{"choices":[5]}`:                                           engine.ErrProtocol,
		`{"choices":`:                                               engine.ErrProtocol,
		``:                                                          engine.ErrProtocol,
	} {
		answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_, err := collect(t, newClient(t, replay(t, []byte(answer)), nil), wholeRequest())
		require.ErrorIs(t, err, want, body)
	}
	req := wholeRequest()
	req.API = 9
	_, err = collect(t, newClient(t, "http://127.0.0.1:1", nil), req)
	require.ErrorContains(t, err, "unknown API 9")
	req = streamRequest(1)
	req.Body = []byte("{oops")
	_, err = collect(t, newClient(t, "http://127.0.0.1:1", nil), req)
	require.False(t, engine.Retryable(err), "a body that is no JSON is the client's fault")
}

func TestNewClientNamesEveryFault(t *testing.T) {
	_, err := openai.NewClient("ftp://x", &openai.ClientOptions{MaxBody: -1, IdleTimeout: -1})
	require.ErrorContains(t, err, "ftp://x")
	require.ErrorContains(t, err, "MaxBody")
	require.ErrorContains(t, err, "IdleTimeout")
	for _, bad := range []string{"http://", "http://u:p@h", "http://h?x=1", "http://h#f", "\x00"} {
		_, err := openai.NewClient(bad, nil)
		require.Error(t, err, bad)
	}
	c, err := openai.NewClient("http://h:1/base/v1/", nil)
	require.NoError(t, err)
	require.Equal(t, "http://h:1/base", c.BaseURL())
}

// Proxies of the environment are not used.
func TestNoProxyFromEnvironment(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	defer srv.Close()
	require.NoError(t, newClient(t, srv.URL, nil).Health(t.Context()))
}
