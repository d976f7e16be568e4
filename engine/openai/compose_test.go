package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/enginetest"
	"github.com/stator-go/stator/engine/openai"
)

// chunks is an engine that yields fixed chunks, and then an error if there is one.
func chunks(err error, cs ...engine.Chunk) fake {
	return func(_ context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) {
		for _, c := range cs {
			if !yield(&c, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

var created = regexp.MustCompile(`"created":\d{10},`)

// events splits a stream into its payloads, with the moment taken out.
func events(body string) []string {
	body = created.ReplaceAllString(body, `"created":0,`)
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(body, "data: "), "\n\n"), "\n\ndata: ")
}

// The JSON of an engine that has none is made of its chunks.
func TestComposedAnswers(t *testing.T) {
	use := &engine.Usage{Prompt: 2, Completion: 3, Cached: -1}
	two := []engine.Chunk{
		{Choice: 0, Text: "a\"\n", Tokens: 1, TokenIDs: []uint32{7}},
		{Choice: 1, Text: "b", Tokens: 1, TokenIDs: []uint32{8}, Finish: "length"},
		{Choice: 0, Text: "é", Tokens: 1, TokenIDs: []uint32{9}},
		{Choice: 0, Finish: "stop"},
		{Choice: -1, Usage: use},
	}
	const text, chat = "/v1/completions", "/v1/chat/completions"
	head := func(object string) string {
		id := "cmpl-r1"
		if object != "text_completion" {
			id = "chatcmpl-r1"
		}
		return `{"id":"` + id + `","object":"` + object + `","created":0,"model":"m\"","choices":[`
	}
	th, ch, wh := head("text_completion"), head("chat.completion.chunk"), head("chat.completion")
	const usage = `{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3}`
	for _, tc := range []struct {
		name, path, fields string
		want               []string
	}{
		{"text stream", text, `"prompt":"x","stream":true,"n":2`, []string{
			th + `{"index":0,"text":"a\"\n","finish_reason":null}]}`,
			th + `{"index":1,"text":"b","finish_reason":"length"}]}`,
			th + `{"index":0,"text":"é","finish_reason":null}]}`,
			th + `{"index":0,"text":"","finish_reason":"stop"}]}`,
			"[DONE]",
		}},
		{"prompts count like n, ids, usage", text, `"prompt":["x","y"],"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`, []string{
			th + `{"index":0,"text":"a\"\n","finish_reason":null,"token_ids":[7]}]}`,
			th + `{"index":1,"text":"b","finish_reason":"length","token_ids":[8]}]}`,
			th + `{"index":0,"text":"é","finish_reason":null,"token_ids":[9]}]}`,
			th + `{"index":0,"text":"","finish_reason":"stop","token_ids":[]}]}`,
			th + `],"usage":` + usage + `}`,
			"[DONE]",
		}},
		{"chat stream", chat, `"messages":[{}],"stream":true,"n":2`, []string{
			ch + `{"index":0,"delta":{"role":"assistant","content":"a\"\n"},"finish_reason":null}]}`,
			ch + `{"index":1,"delta":{"role":"assistant","content":"b"},"finish_reason":"length"}]}`,
			ch + `{"index":0,"delta":{"content":"é"},"finish_reason":null}]}`,
			ch + `{"index":0,"delta":{},"finish_reason":"stop"}]}`,
			"[DONE]",
		}},
		{"text whole", text, `"prompt":"x","n":2,"return_token_ids":true`, []string{
			th + `{"index":0,"text":"a\"\né","finish_reason":"stop","token_ids":[7,9]},{"index":1,"text":"b","finish_reason":"length","token_ids":[8]}],"usage":` + usage + `}`,
		}},
		{"chat whole", chat, `"messages":[{}],"n":2`, []string{
			wh + `{"index":0,"message":{"role":"assistant","content":"a\"\né"},"finish_reason":"stop"},{"index":1,"message":{"role":"assistant","content":"b"},"finish_reason":"length"}],"usage":` + usage + `}`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var res openai.Result
			url, h := serve(t, chunks(nil, two...), &openai.ServerOptions{Hooks: openai.ServerHooks{
				End: func(_ *engine.Request, r *openai.Result) { res = *r },
			}})
			for range 2 { // the second uses the memory of the first
				resp, body := post(t, url+tc.path, `{"model":"m\"",`+tc.fields+`}`, http.Header{"X-Request-Id": {"r1"}})
				require.Equal(t, 200, resp.StatusCode, body)
				got := events(body)
				require.Equal(t, tc.want, got)
				for _, e := range got {
					require.True(t, e == "[DONE]" || json.Valid([]byte(e)), e)
				}
			}
			eventually(t, func() bool { return h.Stats().InFlight == 0 }, "idle")
			require.NoError(t, res.Err)
			require.Equal(t, 3, res.Tokens)
			require.False(t, res.FirstToken.IsZero())
			require.Zero(t, h.Stats().Failed+h.Stats().Broken)
			require.NotZero(t, h.Stats().Chunks)
		})
	}
	// What is not known is null, and a cache that is known is told.
	url, _ := serve(t, chunks(nil, engine.Chunk{Finish: "stop"}), nil)
	_, body := post(t, url+"/v1/completions", okBody, nil)
	require.Contains(t, body, `"text":"","finish_reason":"stop"}],"usage":null}`)
	url, _ = serve(t, chunks(nil, engine.Chunk{Finish: "stop", Usage: &engine.Usage{Cached: 1}}), nil)
	_, body = post(t, url+"/v1/completions", okBody, nil)
	require.Contains(t, body, `"prompt_tokens_details":{"cached_tokens":1}`)
}

// No answer that lacks something ends cleanly, whatever the engine thinks of it.
func TestIncompleteAnswersFail(t *testing.T) {
	raw := func(c engine.Chunk) engine.Chunk { c.Raw = []byte(`{}`); return c }
	text, end := engine.Chunk{Text: "x", Tokens: 1}, engine.Chunk{Text: "y", Tokens: 1, Finish: "stop"}
	second := engine.Chunk{Choice: 1, Text: "y", Finish: "stop"}
	for _, tc := range []struct {
		name   string
		n      int
		chunks []engine.Chunk
		cause  error
		whole  bool // a fault of answers that do not stream only
		early  bool // before the first byte of a stream too
	}{
		{"nothing", 1, nil, engine.ErrCut, false, true},
		{"usage alone", 1, []engine.Chunk{{Choice: -1, Usage: &engine.Usage{}}}, engine.ErrCut, false, true},
		{"no finish", 1, []engine.Chunk{text}, engine.ErrCut, false, false},
		{"no finish, raw", 1, []engine.Chunk{raw(text)}, engine.ErrCut, false, false},
		{"one of two", 2, []engine.Chunk{text, end}, engine.ErrCut, false, false},
		{"one of two, raw", 2, []engine.Chunk{raw(end)}, engine.ErrCut, false, false},
		{"a third that does not end, raw", 2, []engine.Chunk{{Part: true, Choice: 2}, {Part: true, Choice: 1, Finish: "stop"}, raw(end)}, engine.ErrCut, false, false},
		{"choice out of range", 1, []engine.Chunk{text, second}, engine.ErrProtocol, false, false},
		{"choice far out of range, raw", 1, []engine.Chunk{raw(engine.Chunk{Choice: 1 << 20})}, engine.ErrProtocol, false, true},
		{"aborted", 1, []engine.Chunk{text, {Finish: "abort"}}, engine.ErrAborted, false, false},
		{"aborted, raw", 1, []engine.Chunk{raw(engine.Chunk{Text: "x", Finish: "error"})}, engine.ErrAborted, false, false},
		{"mixed", 1, []engine.Chunk{text, raw(end)}, engine.ErrProtocol, false, false},
		{"mixed, raw first", 1, []engine.Chunk{raw(text), end}, engine.ErrProtocol, false, false},
		{"goes on after its end", 2, []engine.Chunk{end, text, second}, engine.ErrProtocol, false, false},
		{"text of no choice", 1, []engine.Chunk{end, {Choice: -1, Text: "x"}}, engine.ErrProtocol, false, false},
		{"finish of no choice", 1, []engine.Chunk{{Choice: -1, Finish: "stop"}}, engine.ErrProtocol, false, true},
		{"part without its whole", 1, []engine.Chunk{{Part: true, Finish: "stop"}}, engine.ErrProtocol, false, true},
		{"two bodies", 1, []engine.Chunk{raw(text), raw(end)}, engine.ErrProtocol, true, false},
		{"a hidden body", 1, []engine.Chunk{{Raw: []byte(`{}`), Hidden: true, Finish: "stop"}}, engine.ErrProtocol, true, false},
		{"too long", 1, []engine.Chunk{{Text: strings.Repeat("x", 60)}, {Text: strings.Repeat("x", 41), Finish: "stop"}}, engine.ErrProtocol, true, false},
	} {
		for _, stream := range []bool{false, true} {
			if stream && tc.whole {
				continue
			}
			t.Run(fmt.Sprintf("%s/stream=%v", tc.name, stream), func(t *testing.T) {
				ended := make(chan openai.Result, 1)
				url, h := serve(t, chunks(nil, tc.chunks...), &openai.ServerOptions{MaxAnswer: 100, Hooks: openai.ServerHooks{
					End: func(_ *engine.Request, r *openai.Result) { ended <- *r },
				}})
				resp, body := post(t, url+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"x","n":%d,"stream":%v}`, tc.n, stream), nil)
				res := <-ended
				require.ErrorIs(t, res.Err, tc.cause)
				require.Equal(t, resp.StatusCode, res.Status)
				if !stream || tc.early {
					require.Equal(t, 502, resp.StatusCode, body)
					errorOf(t, body)
					require.Equal(t, uint64(1), h.Stats().Failed)
					return
				}
				require.Equal(t, 200, resp.StatusCode)
				got := events(body)
				require.GreaterOrEqual(t, len(got), 3, body)
				require.Equal(t, "[DONE]", got[len(got)-1])
				errorOf(t, got[len(got)-2])
				require.Equal(t, uint64(1), h.Stats().Broken)
			})
		}
	}
	// Neither chunk nor error.
	url, _ := serve(t, fake(func(_ context.Context, _ *engine.Request, yield func(*engine.Chunk, error) bool) { yield(nil, nil) }), nil)
	resp, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 502, resp.StatusCode, body)
}

// An engine that keeps quiet about being told to stop has not failed by itself.
func TestQuietEngineTimesOut(t *testing.T) {
	url, _ := serve(t, fake(func(ctx context.Context, _ *engine.Request, _ func(*engine.Chunk, error) bool) {
		<-ctx.Done()
	}), &openai.ServerOptions{RequestTimeout: 1})
	resp, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 504, resp.StatusCode, body)
}

// Hidden chunks belong to both forms.
func TestHiddenChunksAreOfNoForm(t *testing.T) {
	use := engine.Chunk{Choice: -1, Hidden: true, Usage: &engine.Usage{Completion: 5}}
	for _, c := range []engine.Chunk{{Text: "x", Finish: "stop"}, {Raw: []byte(`{}`), Finish: "stop"}} {
		url, h := serve(t, chunks(nil, use, c, use), nil)
		for _, stream := range []bool{true, false} {
			resp, body := post(t, url+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"x","stream":%v}`, stream), nil)
			require.Equal(t, 200, resp.StatusCode, body)
		}
		eventually(t, func() bool { return h.Stats().Tokens == 10 }, "usage is counted")
	}
}

// letters is an engine of a few lines that says the alphabet.
type letters struct{}

func (letters) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		if !req.Deadline.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, req.Deadline)
			defer cancel()
		}
		for i := range req.MaxTokens {
			for choice := range req.N * req.Prompts {
				if err := ctx.Err(); err != nil {
					yield(nil, err)
					return
				}
				c := &engine.Chunk{Choice: choice, Text: string(rune('a' + i%26)), Tokens: 1}
				if i == req.MaxTokens-1 {
					c.Finish = "length"
				}
				if !yield(c, nil) {
					return
				}
			}
		}
	}
}

func lettersRequest(stream bool, n, tokens int) *engine.Request {
	r := completion(stream, n, tokens)
	r.MaxTokens = tokens
	return r
}

func TestOwnEngineConforms(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		New:     func(*testing.T) enginetest.Instance { return enginetest.Instance{Engine: letters{}} },
		Request: lettersRequest,
	})
}

// What the handler makes of an engine without Raw is an answer to the client,
// which believes nothing.
func TestClientOfOwnEngineConforms(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		New: func(t *testing.T) enginetest.Instance {
			url, h := serve(t, letters{}, nil)
			return enginetest.Instance{Engine: newClient(t, url, nil), Active: func() int { return h.Stats().InFlight }}
		},
		Request: lettersRequest,
		Bad:     badCompletion,
	})
}

func TestBaseURLFaults(t *testing.T) {
	for _, u := range []string{"10.0.0.7:8000", "gpu7:8000", "gpu7", "", "ftp://x", "://x", "http:/x"} {
		_, err := openai.NewClient(u, nil)
		require.ErrorContains(t, err, fmt.Sprintf("%q must begin with http:// or https://", u))
	}
	_, err := openai.NewClient("HTTPS://x:1/v1", nil)
	require.NoError(t, err)
}

// lying is a transport whose answers promise more than there is.
type lying struct{ body string }

func (l lying) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	w.WriteString(l.body)
	resp := w.Result()
	resp.ContentLength = math.MaxInt64
	return resp, nil
}

// The largest limit there is is a limit like others, and pays for no promise.
func TestMaxBodyOfMaxInt(t *testing.T) {
	opts := &openai.ClientOptions{MaxBody: math.MaxInt, Transport: lying{`{"data":[{"id":"m"}]}`}}
	models, err := newClient(t, "http://x", opts).Models(t.Context())
	require.NoError(t, err)
	require.Len(t, models, 1)
	opts.Transport = lying{`{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}`}
	got, err := collect(t, newClient(t, "http://x", opts), completion(false, 1, 1))
	require.NoError(t, err)
	require.Len(t, got, 1)

	h := newHandler(t, chunks(nil, engine.Chunk{Finish: "stop"}), &openai.ServerOptions{MaxBody: math.MaxInt})
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":"`+strings.Repeat("x", 600<<10)+`"}`))
	r.ContentLength = math.MaxInt64
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, 200, w.Code, w.Body)
}

// An error of the engine comes before what its answer lacks.
func TestEngineErrorComesFirst(t *testing.T) {
	url, _ := serve(t, chunks(errors.New("secret"), engine.Chunk{Text: "x"}), nil)
	resp, body := post(t, url+"/v1/completions", okBody, nil)
	require.Equal(t, 500, resp.StatusCode)
	require.NotContains(t, body, "secret")
}
