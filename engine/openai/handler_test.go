package openai_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

// fake is an engine made of a function.
type fake func(ctx context.Context, req *engine.Request, yield func(*engine.Chunk, error) bool)

func (f fake) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) { f(ctx, req, yield) }
}

// say yields raw events and then err. Without one the last event finishes the
// answer.
func say(err error, raws ...string) fake {
	return func(_ context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		for i, r := range raws {
			c := &engine.Chunk{Raw: []byte(r), Tokens: 1}
			if err == nil && i == len(raws)-1 {
				c.Finish = "stop"
			}
			if !yield(c, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

func newHandler(t testing.TB, e engine.Engine, opts *openai.ServerOptions) *openai.Handler {
	h, err := openai.NewHandler(e, opts)
	require.NoError(t, err)
	return h
}

func serve(t testing.TB, e engine.Engine, opts *openai.ServerOptions) (string, *openai.Handler) {
	h := newHandler(t, e, opts)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL, h
}

// post sends a body and returns the answer read to its end.
func post(t testing.TB, url, body string, header http.Header) (*http.Response, string) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	if header != nil {
		req.Header = header
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(b)
}

// errorOf decodes an answer that must be an error in OpenAI's form.
func errorOf(t testing.TB, body string) (message, param string) {
	var v struct {
		Error struct {
			Message, Type string
			Param         *string
			Code          any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	require.NotEmpty(t, v.Error.Message, body)
	require.NotEmpty(t, v.Error.Type, body)
	require.NotNil(t, v.Error.Code, body)
	if v.Error.Param != nil {
		param = *v.Error.Param
	}
	return v.Error.Message, param
}

const okBody = `{"model":"m","prompt":"x"}`

// Recorded answers pass through handler and client without a byte's change.
func TestRelayIsByteExact(t *testing.T) {
	for _, f := range loadFixtures(t) {
		want := readTruth(t, f.answer)
		if want.status != 200 || strings.HasPrefix(f.name, "drain") || strings.Contains(f.name, "aborted") {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			url, _ := serve(t, newClient(t, replay(t, f.answer), nil), nil)
			resp, body := post(t, url+f.Path, string(f.Body), nil)
			require.Equal(t, 200, resp.StatusCode)
			if resp.Header.Get("Content-Type") == "application/json" {
				require.Equal(t, want.payloads[0], body)
				require.Equal(t, int64(len(body)), resp.ContentLength)
				return
			}
			require.Equal(t, "data: "+strings.Join(want.payloads, "\n\ndata: ")+"\n\ndata: [DONE]\n\n", body)
		})
	}
}

// Usage that was asked for by the gateway alone is not shown.
func TestHiddenUsage(t *testing.T) {
	f := loadFixture(t, "completion_stream_usage")
	var res openai.Result
	url, h := serve(t, newClient(t, replay(t, f.answer), nil), &openai.ServerOptions{Hooks: openai.ServerHooks{
		End: func(_ *engine.Request, r *openai.Result) {
			res = *r
			u := *r.Usage
			res.Usage = &u
		},
	}})
	_, body := post(t, url+f.Path, `{"model":"tiny","prompt":"x","stream":true}`, nil)
	require.NotContains(t, body, `"usage":{`)
	require.Contains(t, body, "[DONE]")
	eventually(t, func() bool { return h.Stats().InFlight == 0 }, "idle")
	want := readTruth(t, f.answer)
	require.Equal(t, want.usage, res.Usage)
	require.Equal(t, want.usage.Completion, res.Tokens)
	require.Equal(t, len(want.payloads)-1, res.Chunks)
}

func TestRefusals(t *testing.T) {
	url, h := serve(t, say(nil, `{}`), &openai.ServerOptions{MaxBody: 1000, MaxChoices: 8})
	for _, tc := range []struct {
		name, path, body string
		status           int
		param, says      string
	}{
		{"empty body", "/v1/completions", ``, 400, "", "offset 0"},
		{"bad JSON", "/v1/completions", `{"model":"m","prompt":`, 400, "", "offset 22"},
		{"not an object", "/v1/completions", `[1]`, 400, "", "object"},
		{"after the object", "/v1/completions", okBody + "x", 400, "", "offset"},
		{"no model", "/v1/completions", `{"prompt":"x"}`, 400, "model", "required"},
		{"model no string", "/v1/completions", `{"model":1,"prompt":"x"}`, 400, "model", "string"},
		{"no prompt", "/v1/completions", `{"model":"m"}`, 400, "prompt", "required"},
		{"null prompt", "/v1/completions", `{"model":"m","prompt":null}`, 400, "prompt", "required"},
		{"prompt object", "/v1/completions", `{"model":"m","prompt":{}}`, 400, "prompt", "array"},
		{"empty prompts", "/v1/completions", `{"model":"m","prompt":[]}`, 400, "prompt", "empty"},
		{"empty ids", "/v1/completions", `{"model":"m","prompt":[[]]}`, 400, "prompt", "empty"},
		{"mixed ids", "/v1/completions", `{"model":"m","prompt":[1,"a"]}`, 400, "prompt", "offset 3"},
		{"negative id", "/v1/completions", `{"model":"m","prompt":[1,-2]}`, 400, "prompt", "offset 3"},
		{"mixed kinds", "/v1/completions", `{"model":"m","prompt":["a",[1]]}`, 400, "prompt", "element 1"},
		{"bools", "/v1/completions", `{"model":"m","prompt":[true]}`, 400, "prompt", "token ids"},
		{"n zero", "/v1/completions", `{"model":"m","prompt":"x","n":0}`, 400, "n", "at least 1"},
		{"n text", "/v1/completions", `{"model":"m","prompt":"x","n":"2"}`, 400, "n", "integer"},
		{"n over the limit", "/v1/completions", `{"model":"m","prompt":"x","n":9}`, 400, "n", "limit is 8"},
		{"prompts over the limit", "/v1/completions", `{"model":"m","prompt":["a","b","c","d","e"],"n":2}`, 400, "n", "is 10"},
		{"stream text", "/v1/completions", `{"model":"m","prompt":"x","stream":"true"}`, 400, "stream", "true or false"},
		{"options without stream", "/v1/completions", `{"model":"m","prompt":"x","stream_options":{}}`, 400, "stream_options", "stream is true"},
		{"options no object", "/v1/completions", `{"model":"m","prompt":"x","stream":true,"stream_options":1}`, 400, "stream_options", "object"},
		{"include_usage text", "/v1/completions", `{"model":"m","prompt":"x","stream":true,"stream_options":{"include_usage":"yes"}}`, 400, "stream_options.include_usage", "true or false"},
		{"salt no string", "/v1/completions", `{"model":"m","prompt":"x","cache_salt":5}`, 400, "cache_salt", "string"},
		{"no messages", "/v1/chat/completions", `{"model":"m"}`, 400, "messages", "required"},
		{"empty messages", "/v1/chat/completions", `{"model":"m","messages":[]}`, 400, "messages", "empty"},
		{"messages no array", "/v1/chat/completions", `{"model":"m","messages":"x"}`, 400, "messages", "array"},
		{"too large", "/v1/completions", `{"model":"` + strings.Repeat("m", 1000) + `"}`, 413, "", "1000 bytes"},
		{"no route", "/v1/nope", okBody, 404, "", "/v1/nope"},
		{"wrong method", "/v1/models", okBody, 405, "", "GET"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, body := post(t, url+tc.path, tc.body, nil)
			require.Equal(t, tc.status, resp.StatusCode, body)
			message, param := errorOf(t, body)
			require.Equal(t, tc.param, param)
			require.Contains(t, message, tc.says)
		})
	}
	// A body without a declared length meets the same limit.
	req, err := http.NewRequest(http.MethodPost, url+"/v1/completions", io.MultiReader(strings.NewReader(`{"model":"`), strings.NewReader(strings.Repeat("m", 2000))))
	require.NoError(t, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 413, resp.StatusCode)

	for got, says := range map[string]string{
		"text/plain":                        `got "text/plain"`,
		"application/x-www-form-urlencoded": `got "application/x-www-form-urlencoded"; with curl add -H`,
		"bad type;;":                        `got "bad type;;"`,
	} {
		resp, body := post(t, url+"/v1/completions", okBody, http.Header{"Content-Type": {got}})
		require.Equal(t, 415, resp.StatusCode)
		message, _ := errorOf(t, body)
		require.Contains(t, message, "Content-Type must be application/json, "+says)
	}
	resp, body := post(t, url+"/v1/completions", okBody, http.Header{"Content-Encoding": {"gzip"}})
	require.Equal(t, 400, resp.StatusCode)
	errorOf(t, body)

	resp, err = http.Get(url + "/v1/completions")
	require.NoError(t, err)
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	require.Equal(t, 405, resp.StatusCode)
	require.Equal(t, "POST", resp.Header.Get("Allow"))
	errorOf(t, string(b))
	require.Zero(t, h.Stats().Requests)
	require.NotZero(t, h.Stats().Refused)
}

func TestErrorsBeforeTheFirstByte(t *testing.T) {
	own := `{"error":{"message":"too long","type":"BadRequestError","param":"input","code":400},"extra":1}`
	for _, tc := range []struct {
		err    error
		status int
		says   string
		after  string
	}{
		{&engine.Error{Status: 400, Body: []byte(own)}, 400, "too long", ""},
		{&engine.Error{Status: 404, Message: "flat", Body: []byte(`{"object":"error","message":"flat"}`)}, 404, "flat", ""},
		{&engine.Error{Status: 429, Message: "slow", RetryAfter: 1500 * time.Millisecond}, 429, "slow", "2"},
		{&engine.Error{Status: 503, Message: "later"}, 503, "later", "1"},
		{&engine.Error{Status: 500, Message: "died"}, 502, "died", ""},
		{fmt.Errorf("pool: %w", engine.ErrUnavailable), 503, "no worker", "1"},
		{engine.ErrNotServed, 503, "did not serve", "1"},
		{engine.ErrTimeout, 504, "in time", ""},
		{context.DeadlineExceeded, 504, "in time", ""},
		{engine.ErrAborted, 502, "aborted", ""},
		{engine.ErrCut, 502, "cut", ""},
		{fmt.Errorf("%w: dial tcp 10.1.2.3:8000", engine.ErrUnreachable), 502, "unreachable", ""},
		{errors.New("secret"), 500, "internal", ""},
	} {
		for _, stream := range []string{"true", "false"} {
			url, h := serve(t, say(tc.err), nil)
			resp, body := post(t, url+"/v1/completions", `{"model":"m","prompt":"x","stream":`+stream+`}`, nil)
			require.Equal(t, tc.status, resp.StatusCode)
			require.Equal(t, tc.after, resp.Header.Get("Retry-After"))
			require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
			message, _ := errorOf(t, body)
			require.Contains(t, message, tc.says)
			require.NotContains(t, body, "10.1.2.3", "addresses stay inside")
			require.NotContains(t, body, "secret")
			eventually(t, func() bool { return h.Stats().Failed == 1 }, "counted")
		}
	}
	url, _ := serve(t, say(&engine.Error{Status: 400, Body: []byte(own)}), nil)
	_, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, own, body, "the engine's words as they are")
}

// After the first byte a failure is an error event, and never a clean end.
func TestErrorInTheMiddle(t *testing.T) {
	for _, tc := range []struct {
		err  error
		says string
	}{
		{&engine.Error{Status: 500, Message: "EngineCore", Type: "InternalServerError"}, `{"error":{"message":"EngineCore","type":"InternalServerError","param":null,"code":500}}`},
		{engine.ErrCut, `"code":502}}`},
	} {
		url, h := serve(t, say(&engine.StreamError{Err: tc.err, Chunks: 1}, `{"a":1}`), nil)
		resp, body := post(t, url+"/v1/completions", `{"model":"m","prompt":"x","stream":true}`, nil)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"))
		events := strings.Split(body, "\n\n")
		require.Len(t, events, 4)
		require.Equal(t, `data: {"a":1}`, events[0])
		require.Contains(t, events[1], tc.says)
		errorOf(t, strings.TrimPrefix(events[1], "data: "))
		require.Equal(t, []string{"data: [DONE]", ""}, events[2:])
		eventually(t, func() bool { return h.Stats().Broken == 1 }, "counted")
	}
	// What does not stream has sent nothing yet and fails as a whole.
	url, _ := serve(t, say(engine.ErrCut, `{"a":1}`), nil)
	resp, _ := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 502, resp.StatusCode)
}

// A payload of several lines stays one event.
func TestMultiLinePayload(t *testing.T) {
	url, _ := serve(t, say(nil, "{\n\"a\":1\n}"), nil)
	_, body := post(t, url+"/v1/completions", `{"model":"m","prompt":"x","stream":true}`, nil)
	require.Equal(t, "data: {\ndata: \"a\":1\ndata: }\n\ndata: [DONE]\n\n", body)
}

func TestHeaders(t *testing.T) {
	seen := make(chan http.Header, 1)
	ids := make(chan string, 1)
	url, _ := serve(t, fake(func(_ context.Context, req *engine.Request, yield func(*engine.Chunk, error) bool) {
		seen <- req.Header.Clone()
		ids <- req.ID + " " + req.Session
		yield(&engine.Chunk{Raw: []byte(`{}`), Finish: "stop"}, nil)
	}), &openai.ServerOptions{DropHeaders: []string{"x-mine"}})
	resp, _ := post(t, url+"/v1/completions", okBody, http.Header{
		"X-Request-Id": {"abc-1"}, "X-Session-Id": {"s"}, "X-Vllm-Priority": {"-9"}, "X-Data-Parallel-Rank": {"1"},
		"Connection": {"X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"}, "Authorization": {"Bearer k"}, "X-Mine": {"1"},
		"Traceparent": {"00-2"}, "X-Custom": {"kept"}, "X-Prefiller-Host-Port": {"h:1"}, "Cookie": {"c"}, "Proxy-Authorization": {"p"},
	})
	require.Equal(t, "abc-1", resp.Header.Get("X-Request-Id"))
	h := <-seen
	require.Equal(t, "abc-1 s", <-ids)
	for _, k := range []string{"X-Vllm-Priority", "X-Data-Parallel-Rank", "Connection", "X-Hop", "Te", "Authorization", "X-Mine", "X-Prefiller-Host-Port", "Cookie", "Proxy-Authorization", "Accept-Encoding"} {
		require.NotContains(t, h, k)
	}
	require.Equal(t, "00-2", h.Get("Traceparent"))
	require.Equal(t, "kept", h.Get("X-Custom"))

	for _, bad := range []string{"", "a b", "x\ty", strings.Repeat("a", 200), `"<script>`} {
		hdr := http.Header{}
		if bad != "" {
			hdr["X-Request-Id"] = []string{bad}
		}
		resp, _ := post(t, url+"/v1/completions", okBody, hdr)
		<-seen
		<-ids
		require.Regexp(t, "^[0-9a-f]{32}$", resp.Header.Get("X-Request-Id"))
	}
	url, _ = serve(t, fake(func(_ context.Context, req *engine.Request, yield func(*engine.Chunk, error) bool) {
		seen <- req.Header.Clone()
		yield(&engine.Chunk{Raw: []byte(`{}`), Finish: "stop"}, nil)
	}), &openai.ServerOptions{ForwardAuthorization: true})
	post(t, url+"/v1/completions", okBody, http.Header{"Authorization": {"Bearer k"}})
	require.Equal(t, "Bearer k", (<-seen).Get("Authorization"))
}

// A client that leaves ends the work upstream at once, streaming or not.
func TestClientDisconnectCancelsUpstream(t *testing.T) {
	for _, stream := range []bool{true, false} {
		closed := make(chan struct{})
		started := make(chan struct{})
		s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			if stream {
				io.WriteString(c, streamHead+frame(event(0, "a", "null")))
			}
			close(started)
			r.ReadByte()
			close(closed)
		})
		ended := make(chan openai.Result, 1)
		url, h := serve(t, newClient(t, s.url, nil), &openai.ServerOptions{Hooks: openai.ServerHooks{
			End: func(_ *engine.Request, r *openai.Result) { ended <- *r },
		}})
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		body := fmt.Sprintf(`{"model":"m","prompt":"x","stream":%v}`, stream)
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		<-started
		if stream {
			_, err = bufio.NewReader(conn).ReadString('}')
			require.NoError(t, err)
		}
		conn.Close()
		<-closed
		res := <-ended
		require.True(t, res.Gone)
		require.ErrorIs(t, res.Err, context.Canceled)
		eventually(t, func() bool { return h.Stats().Gone == 1 && h.Stats().InFlight == 0 }, "counted")
	}
}

// A client that takes no bytes is given up, and the engine with it.
func TestSlowClientIsGivenUp(t *testing.T) {
	stopped := make(chan struct{})
	url, _ := serve(t, fake(func(ctx context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		defer close(stopped)
		big := &engine.Chunk{Raw: []byte(`"` + strings.Repeat("x", 1<<20) + `"`)}
		for ctx.Err() == nil && yield(big, nil) {
		}
	}), &openai.ServerOptions{WriteTimeout: 100 * time.Millisecond})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	body := `{"model":"m","prompt":"x","stream":true}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-stopped // nothing is read here
}

func TestSlowBodyIsRefused(t *testing.T) {
	url, _ := serve(t, say(nil, `{}`), &openai.ServerOptions{ReadTimeout: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	b, _ := io.ReadAll(resp.Body)
	require.Equal(t, 408, resp.StatusCode)
	errorOf(t, string(b))
}

func TestRequestTimeout(t *testing.T) {
	url, _ := serve(t, fake(func(ctx context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		<-ctx.Done()
		yield(nil, ctx.Err())
	}), &openai.ServerOptions{RequestTimeout: 20 * time.Millisecond})
	resp, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 504, resp.StatusCode)
	errorOf(t, body)
}

func TestMaxInFlight(t *testing.T) {
	release, running := make(chan struct{}), make(chan struct{})
	url, _ := serve(t, fake(func(_ context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		running <- struct{}{}
		<-release
		yield(&engine.Chunk{Raw: []byte(`{}`), Finish: "stop"}, nil)
	}), &openai.ServerOptions{MaxInFlight: 1})
	first := make(chan int)
	go func() {
		resp, _ := post(t, url+"/v1/completions", okBody, nil)
		first <- resp.StatusCode
	}()
	<-running
	resp, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 429, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	errorOf(t, body)
	close(release)
	require.Equal(t, 200, <-first)
}

func TestDrain(t *testing.T) {
	release, running := make(chan struct{}), make(chan struct{})
	url, h := serve(t, fake(func(ctx context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		if !yield(&engine.Chunk{Raw: []byte(`{"a":1}`)}, nil) {
			return
		}
		running <- struct{}{}
		select {
		case <-release:
			yield(&engine.Chunk{Hidden: true, Finish: "stop"}, nil)
		case <-ctx.Done():
			yield(nil, ctx.Err())
		}
	}), nil)
	answers := make(chan string, 2)
	ask := func() {
		_, body := post(t, url+"/v1/completions", `{"model":"m","prompt":"x","stream":true}`, nil)
		answers <- body
	}
	go ask()
	<-running
	go ask()
	<-running
	drained := make(chan error)
	go func() { drained <- h.Drain(t.Context()) }()
	eventually(t, func() bool { return h.Stats().Draining }, "draining")
	resp, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 503, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	errorOf(t, body)
	resp, err := http.Get(url + "/health")
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 503, resp.StatusCode)

	release <- struct{}{} // one ends by itself
	require.Equal(t, "data: {\"a\":1}\n\ndata: [DONE]\n\n", <-answers)
	late, cancel := context.WithCancel(t.Context())
	cancel() // and the other is cut off
	require.ErrorContains(t, h.Drain(late), "1 requests cut off")
	require.NoError(t, <-drained)
	require.Contains(t, <-answers, "shutting down")
	require.NoError(t, h.Drain(t.Context()))
	require.Zero(t, h.Stats().InFlight)
}

func TestModelRoutes(t *testing.T) {
	url, _ := serve(t, say(nil), &openai.ServerOptions{Models: func(context.Context) ([]engine.Model, error) {
		return []engine.Model{{ID: "org/base", MaxLen: 1024}, {ID: "a\"b", Parent: "org/base"}}, nil
	}})
	get := func(path string) (int, string) {
		resp, err := http.Get(url + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	status, body := get("/v1/models")
	require.Equal(t, 200, status)
	require.NotContains(t, body, "root")
	var list struct {
		Object string
		Data   []struct {
			ID, Object, Parent string
			MaxModelLen        *int `json:"max_model_len"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Equal(t, "list", list.Object)
	require.Len(t, list.Data, 2)
	require.Equal(t, "a\"b", list.Data[1].ID)
	require.Equal(t, "org/base", list.Data[1].Parent)
	require.Equal(t, 1024, *list.Data[0].MaxModelLen)
	status, body = get("/v1/models/org/base")
	require.Equal(t, 200, status)
	require.Contains(t, body, `"id":"org/base"`)
	status, body = get("/v1/models/nope")
	require.Equal(t, 404, status)
	errorOf(t, body)
	for _, path := range []string{"/health", "/healthz"} {
		status, _ = get(path)
		require.Equal(t, 200, status)
	}
	url, _ = serve(t, newClient(t, "http://127.0.0.1:1", nil), nil)
	status, body = get("/health")
	require.Equal(t, 503, status)
	errorOf(t, body)
	status, _ = get("/v1/models")
	require.Equal(t, 502, status)
}

func TestNewHandlerNamesEveryFault(t *testing.T) {
	_, err := openai.NewHandler(nil, &openai.ServerOptions{MaxBody: -1, MaxAnswer: -1, WriteTimeout: -1})
	require.ErrorContains(t, err, "engine")
	require.ErrorContains(t, err, "MaxBody")
	require.ErrorContains(t, err, "MaxAnswer")
	require.ErrorContains(t, err, "WriteTimeout")
}

// The request reaches the engine as the client wrote it, and hooks see where
// time went.
func TestHooksAndTimeline(t *testing.T) {
	var started, ended int
	body := `{"model":"m","messages":[{"role":"user","content":"x"}],"n":2,"max_completion_tokens":7,"max_tokens":9,"seed":12345678901234567890,"cache_salt":"s","priority":3,"x":{"y":[1.50]}}`
	url, h := serve(t, fake(func(_ context.Context, req *engine.Request, yield func(*engine.Chunk, error) bool) {
		if string(req.Body) != body || req.N != 2 || req.MaxTokens != 7 || req.Salt != "s" || req.Priority != -3 || req.Rank != -1 || req.API != engine.APIChat {
			yield(nil, fmt.Errorf("%w: %+v", engine.ErrProtocol, req))
			return
		}
		yield(&engine.Chunk{Part: true, Tokens: 2, Finish: "stop"}, nil)
		yield(&engine.Chunk{Raw: []byte(`{"ok":1}`), Choice: 1, Tokens: 3, Finish: "stop"}, nil)
	}), &openai.ServerOptions{Hooks: openai.ServerHooks{
		Start: func(req *engine.Request) { started++ },
		End: func(req *engine.Request, r *openai.Result) {
			names := map[string]engine.Class{}
			for _, s := range req.Timeline.Spans() {
				names[s.Name] = s.Class
			}
			if r.Tokens == 5 && r.Status == 200 && r.Err == nil && names["relay"] == engine.Data && names["engine"] == engine.Compute && len(names) == 3 {
				ended++
			}
		},
	}})
	_, got := post(t, url+"/v1/chat/completions", body, nil)
	require.Equal(t, `{"ok":1}`, got)
	eventually(t, func() bool { return h.Stats().InFlight == 0 }, "idle")
	require.Equal(t, 1, started)
	require.Equal(t, 1, ended)
	s := h.Stats()
	require.Equal(t, uint64(len(body)), s.BytesIn)
	require.Equal(t, uint64(5), s.Tokens)
}
