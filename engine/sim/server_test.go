package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// open starts a streamed request and reads its first chunk.
func (r *rig) open(t *testing.T, ctx context.Context, id string, body string) (*http.Response, *bufio.Reader) {
	t.Helper()
	path := "/v1/completions"
	if strings.Contains(body, "messages") {
		path = "/v1/chat/completions"
	}
	req, err := http.NewRequestWithContext(ctx, "POST", r.URL()+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	resp, err := r.client.Do(req)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	br := bufio.NewReader(resp.Body)
	_, err = br.ReadString('\n')
	require.NoError(t, err)
	return resp, br
}

const endless = `{"prompt":[1,2,3,4,5],"max_tokens":900,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`

func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024})
		defer r.close()
		f(t, r)
	})
}

func TestDisconnectAborts(t *testing.T) {
	for _, stream := range []bool{true, false} {
		bubble(t, func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if stream {
				resp, _ := r.open(t, ctx, "", endless)
				defer resp.Body.Close()
			} else {
				time.AfterFunc(100*time.Millisecond, cancel)
				req, err := http.NewRequestWithContext(ctx, "POST", r.URL()+"/v1/completions", strings.NewReader(strings.Replace(endless, `"stream":true,"stream_options":{"include_usage":true}`, `"n":2`, 1)))
				require.NoError(t, err)
				_, err = r.client.Do(req)
				require.ErrorIs(t, err, context.Canceled)
			}
			cancel()
			synctest.Wait()
			st := r.Stats()
			require.Zero(t, st.Running)
			require.NotZero(t, st.Cancelled)
			require.Zero(t, st.UsedBlocks)
			require.Less(t, st.OutputTokens, uint64(100))
		})
	}
}

// A client that closes its sending half has left: not one byte of an answer.
func TestHalfCloseAborts(t *testing.T) {
	s, err := NewServer(&Options{Config: recordedEngine(), MaxModelLen: 1024, Speed: 1e-3})
	require.NoError(t, err)
	defer s.Close()
	nc, err := net.Dial("tcp", s.opts.HTTP.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	body := `{"prompt":[1,2,3]}`
	_, err = fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	for s.Stats().Running == 0 {
		time.Sleep(time.Millisecond) // it is on its way
	}
	require.NoError(t, nc.(*net.TCPConn).CloseWrite())
	rest, err := io.ReadAll(nc)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Equal(t, uint64(1), s.Stats().Cancelled)
}

func TestRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024, MaxRequests: 1})
		defer r.close()
		resp, _ := r.open(t, t.Context(), "", endless)
		code, _ := r.post(t, "/v1/completions", nil, map[string]any{"prompt": "a"})
		require.Equal(t, 503, code)
		_, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		r.complete(t, map[string]any{"prompt": "a"})
	})
}

func TestAbortEndpoint(t *testing.T) {
	for _, c := range []struct{ id, external, body string }{
		{"me", "cmpl-me-0", endless},
		{"me", "chatcmpl-me", strings.Replace(endless, `"prompt":[1,2,3,4,5]`, `"messages":[{"role":"user","content":"a"}]`, 1)},
	} {
		bubble(t, func(t *testing.T, r *rig) {
			resp, br := r.open(t, t.Context(), c.id, c.body)
			defer resp.Body.Close()
			code, _ := r.post(t, "/inference/v1/abort_requests", nil, map[string]any{"request_ids": []string{"nope", c.external}})
			require.Equal(t, 200, code)
			rest, err := io.ReadAll(br)
			require.NoError(t, err)
			events := strings.Split(strings.TrimSuffix(string(rest), "\n\n"), "\n\n")
			n := len(events)
			require.Equal(t, "data: [DONE]", events[n-1])
			require.Contains(t, events[n-2], `"choices":[],"usage":{`)
			require.Contains(t, events[n-3], `"finish_reason":"abort"`)
		})
	}
}

// A killed server's streams just end; a stopped one's end politely.
func TestCloseAndShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		resp, br := r.open(t, t.Context(), "", endless)
		defer resp.Body.Close()
		require.NoError(t, r.Close())
		rest, err := io.ReadAll(br)
		require.Error(t, err)
		require.NotContains(t, string(rest), "DONE")
		require.NotContains(t, string(rest), "abort")
		_, err = r.client.Get(r.URL() + "/health")
		require.Error(t, err)
		require.NoError(t, r.Close())
	})
	bubble(t, func(t *testing.T, r *rig) {
		resp, br := r.open(t, t.Context(), "", endless)
		defer resp.Body.Close()
		done := make(chan error, 1)
		go func() { done <- r.Shutdown(t.Context()) }()
		rest, err := io.ReadAll(br)
		require.NoError(t, err)
		require.Contains(t, string(rest), `"finish_reason":"abort"`)
		require.True(t, strings.HasSuffix(string(rest), "data: [DONE]\n\n"))
		require.NoError(t, <-done)
	})
}

// While a server drains, running requests finish, and new ones get a 200 with
// nothing in it.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		resp, br := r.open(t, t.Context(), "", endless)
		defer resp.Body.Close()
		done := make(chan error, 1)
		go func() { done <- r.Drain(t.Context()) }()
		synctest.Wait()

		code, answer := r.post(t, "/v1/completions", nil, map[string]any{"prompt": "a b"})
		require.Equal(t, 200, code)
		var a completion
		require.NoError(t, json.Unmarshal(answer, &a))
		require.Equal(t, "abort", a.Choices[0].FinishReason)
		require.Zero(t, a.Usage.Completion)
		code, answer = r.post(t, "/v1/completions", nil, map[string]any{"prompt": "a b", "stream": true, "stream_options": map[string]any{"include_usage": true}})
		require.Equal(t, 200, code)
		shapes, n := streamShape(t, string(answer))
		require.Equal(t, 1, n)
		require.Contains(t, shapes[0], "choices:[]")
		code, _ = r.post(t, "/v1/chat/completions", nil, map[string]any{"messages": []Message{}, "stream": true})
		require.Equal(t, 400, code)
		code, _ = r.post(t, "/v1/chat/completions", nil, []byte(`{"messages":[{"role":"user","content":"a"}]}`))
		require.Equal(t, 500, code)
		h, err := r.client.Get(r.URL() + "/health")
		require.NoError(t, err)
		require.NoError(t, h.Body.Close())
		require.Equal(t, 200, h.StatusCode)

		rest, err := io.ReadAll(br)
		require.NoError(t, err)
		require.Contains(t, string(rest), `"finish_reason":"length"`)
		require.Contains(t, string(rest), `"completion_tokens":900`)
		require.NoError(t, <-done)
	})
	bubble(t, func(t *testing.T, r *rig) {
		resp, br := r.open(t, t.Context(), "", endless)
		defer resp.Body.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- r.Drain(ctx) }()
		rest, err := io.ReadAll(br)
		require.NoError(t, err)
		require.Contains(t, string(rest), `"finish_reason":"abort"`)
		require.ErrorIs(t, <-done, context.DeadlineExceeded)
	})
}

// Time is the core's: the first token of a lone request comes when the formula
// says, whatever the speed.
func TestTimeScale(t *testing.T) {
	for _, speed := range []float64{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			cfg := recordedEngine()
			r := memoryRig(t, Options{Config: cfg, MaxModelLen: 1024, Speed: speed})
			defer r.close()
			start := time.Now()
			code, _ := r.post(t, "/v1/completions", nil, map[string]any{"prompt": seqTokens(3, 500), "max_tokens": 1})
			require.Equal(t, 200, code)
			want := cfg.Timing.Prefill(500, 0) / speed
			require.InDelta(t, want, time.Since(start).Seconds(), 1e-6)
		})
	}
}

func (r *rig) complete(t *testing.T, body map[string]any) completion {
	t.Helper()
	path := "/v1/completions"
	if body["messages"] != nil {
		path = "/v1/chat/completions"
	}
	code, answer := r.post(t, path, nil, body)
	require.Equal(t, 200, code, string(answer))
	var a completion
	require.NoError(t, json.Unmarshal(answer, &a))
	return a
}

// Two servers with one seed answer alike; a continuation by ids or by text goes
// on as if nothing had happened; the next turn of a chat finds the last one in
// cache.
func TestAnswersFollowFromThePrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024})
		defer a.close()
		b := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024})
		defer b.close()
		text := "the quick brown fox t77 jumps"
		whole := a.complete(t, map[string]any{"prompt": text, "max_tokens": 20, "return_token_ids": true}).Choices[0]
		require.Equal(t, whole.Text, b.complete(t, map[string]any{"prompt": text, "max_tokens": 20}).Choices[0].Text)

		ids := append(whole.PromptTokenIDs, whole.TokenIDs[:7]...)
		rest := b.complete(t, map[string]any{"prompt": ids, "max_tokens": 13, "return_token_ids": true}).Choices[0]
		require.Equal(t, whole.TokenIDs[7:], rest.TokenIDs)
		begun := a.complete(t, map[string]any{"prompt": text, "max_tokens": 7}).Choices[0].Text
		require.Equal(t, whole.Text, begun+b.complete(t, map[string]any{"prompt": text + begun, "max_tokens": 13}).Choices[0].Text)

		two := a.complete(t, map[string]any{"prompt": text, "n": 2, "max_tokens": 5}).Choices
		require.NotEqual(t, two[0].Text, two[1].Text)

		chat := []map[string]any{{"role": "system", "content": strings.Repeat("be kind ", 30)}, {"role": "user", "content": "hello"}}
		first := a.complete(t, map[string]any{"messages": chat, "max_tokens": 40})
		require.Equal(t, "assistant", first.Choices[0].Message.Role)
		chat = append(chat, map[string]any{"role": "assistant", "content": first.Choices[0].Message.Content},
			map[string]any{"role": "user", "content": []map[string]any{{"type": "text", "text": "and then?"}}})
		second := a.complete(t, map[string]any{"messages": chat, "max_tokens": 1})
		had := first.Usage.Prompt + 40 - 1 // the last token was never computed
		require.Equal(t, had/32*32, second.Usage.Details.Cached)
		require.Equal(t, (second.Usage.Prompt/32-had/32)*32, *second.Usage.Details.Created)

		status, answer := b.post(t, "/tokenize", nil, map[string]any{"messages": chat, "return_token_strs": true})
		require.Equal(t, 200, status)
		var tok struct {
			Count  int
			Tokens []uint32
			Strs   []string `json:"token_strs"`
		}
		require.NoError(t, json.Unmarshal(answer, &tok))
		require.Equal(t, second.Usage.Prompt, tok.Count)
		require.Equal(t, []string{"<|system|>", "be", "kind"}, tok.Strs[:3])
		require.Equal(t, "<|assistant|>", tok.Strs[tok.Count-1])
		_, answer = b.post(t, "/detokenize", nil, map[string]any{"tokens": tok.Tokens[:3]})
		require.JSONEq(t, `{"prompt":"<|system|> be kind"}`, string(answer))
		_, answer = a.post(t, "/detokenize", nil, map[string]any{"tokens": []uint32{7, 1 << 30}})
		require.JSONEq(t, `{"prompt":"t7 t1073741824"}`, string(answer))
	})
}

func TestStopStrings(t *testing.T) {
	tok := NewTokenizer()
	for _, c := range []struct {
		stop []string
		keep bool
		ids  []uint32
		text string
		used int
		sent []string // what a stream shows after each token
	}{
		{[]string{"t12"}, false, []uint32{7, 12, 9}, " t7 ", 2, []string{" ", "t7 "}},
		{[]string{"7 t1"}, false, []uint32{7, 15, 9}, " t", 2, []string{"", " t"}},
		{[]string{"7 t1"}, true, []uint32{7, 15, 9}, " t7 t1", 2, []string{" t7", " t1"}},
		{[]string{"zzz", "9"}, false, []uint32{7, 15, 9}, " t7 t15 t", 3, []string{" ", "t7 t", "15 t"}},
		{nil, false, []uint32{7, EOS}, " t7", 2, []string{" t7", ""}},
	} {
		a := &ask{stop: c.stop, keepStop: c.keep}
		h := &choice{}
		for i, id := range c.ids[:c.used] {
			ended := h.feed(tok, a, id)
			require.Equal(t, c.stop != nil && i == c.used-1, ended, "%v", c)
			require.Equal(t, c.sent[i], string(h.ready(a)), "%v", c)
		}
		require.Equal(t, c.text, string(h.text))
		require.Equal(t, c.used, h.count)
	}
	h := &choice{}
	require.False(t, h.feed(tok, &ask{stopIDs: []uint32{8}}, 7))
	require.True(t, h.feed(tok, &ask{stopIDs: []uint32{8}}, 8))
	require.Equal(t, " t7", string(h.text))
	require.Equal(t, "8", string(h.reason))
}

func TestTokenizer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := NewTokenizer()
		text := rapid.String().Draw(t, "text")
		ids := tok.Encode(nil, text)
		require.Len(t, ids, len(strings.Fields(text)))
		require.Equal(t, ids, NewTokenizer().Encode(nil, text), "ids are the same everywhere")
		for i, w := range strings.Fields(text) {
			if len(w) <= maxWordLen {
				require.Equal(t, w, string(tok.AppendWord(nil, ids[i])))
			}
		}
		// Somebody who never saw the words writes numbers that mean the same.
		require.Equal(t, ids, tok.Encode(nil, NewTokenizer().Decode(ids)))

		given := rapid.SliceOf(rapid.Uint32Range(0, MaxTokenID-1)).Draw(t, "ids")
		require.Equal(t, append([]uint32{}, given...), NewTokenizer().Encode([]uint32{}, NewTokenizer().Decode(given)))
	})
	tok := NewTokenizer()
	for i := range maxWords + 100 {
		tok.Encode(nil, fmt.Sprint("w", i))
	}
	require.Len(t, tok.words, maxWords)
	for _, w := range []string{"t", "t01", "t-1", "t2147483648", "T5", "t5x"} {
		_, ok := numbered(w)
		require.False(t, ok, w)
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024, Model: "tiny"})
		defer r.close()
		r.complete(t, map[string]any{"prompt": seqTokens(3, 100), "max_tokens": 4})
		r.complete(t, map[string]any{"prompt": seqTokens(3, 100), "max_tokens": 4})
		resp, _ := r.open(t, t.Context(), "", endless)
		defer resp.Body.Close()
		got, err := r.client.Get(r.URL() + "/metrics")
		require.NoError(t, err)
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		for _, want := range []string{
			`vllm:num_requests_running{engine="0",model_name="tiny"} 1.0`,
			`vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.015625`,
			`vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 205.0`,
			`vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 96.0`,
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2.0`,
			`vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 3.0`,
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.02",model_name="tiny"} 3.0`,
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.01",model_name="tiny"} 0.0`,
			`vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 6.0`,
			`vllm:e2e_request_latency_seconds_count{engine="0",model_name="tiny"} 2.0`,
			`num_gpu_blocks="65"`, `block_size="32"`,
		} {
			require.Contains(t, string(text), want)
		}
	})
}

func TestReplayRing(t *testing.T) {
	p := publisher{topic: []byte("t"), maxSteps: 4, maxBytes: 100}
	for i := range 10 {
		p.publish([]byte{byte(i)})
	}
	ask := func(frames ...[]byte) (seqs []byte) {
		require.NoError(t, p.replay(frames, func(f ...[]byte) error {
			require.Len(t, f, 4)
			seqs = append(seqs, f[2][7])
			return nil
		}))
		return seqs
	}
	require.Equal(t, []byte{6, 7, 8, 9, 255}, ask(nil, nil), "what is gone is not told")
	require.Equal(t, []byte{8, 9, 255}, ask(nil, []byte{0, 0, 0, 8}))
	require.Equal(t, []byte{255}, ask(nil, []byte{10}))
	require.Equal(t, []byte{255}, ask(nil, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}))
	require.Empty(t, ask([]byte{8}))
	require.Empty(t, ask([]byte("x"), []byte{8}))
	require.Empty(t, ask(nil, []byte{8}, nil))
	p.publish(make([]byte, 99))
	require.Equal(t, []byte{9, 10, 255}, ask(nil, nil))
	p.publish(make([]byte, 200))
	require.Equal(t, []byte{11, 255}, ask(nil, nil), "the newest one is kept whatever its size")
}

func TestOptionsFaultsAreAllListed(t *testing.T) {
	_, err := NewServer(&Options{Speed: -1, MaxModelLen: 1 << 30, DefaultMaxTokens: -1, BufferSteps: -1, MaxBody: -1,
		Adapters: []Adapter{{Name: "sim"}}, NoEvents: true, Replay: newPipes("x")})
	for _, want := range []string{"Speed", "MaxModelLen", "DefaultMaxTokens", "BufferSteps", "MaxBody", "MaxRequests", `"sim"`, "NoEvents"} {
		require.ErrorContains(t, err, want)
	}
}

func TestWithoutEventsAndRender(t *testing.T) {
	s, err := NewServer(&Options{NoEvents: true, NoRender: true, Speed: 1000})
	require.NoError(t, err)
	defer s.Close()
	require.Empty(t, s.EventsEndpoint()+s.ReplayEndpoint())
	r := &rig{Server: s, client: &http.Client{Transport: &http.Transport{}}}
	defer r.client.CloseIdleConnections()
	r.complete(t, map[string]any{"prompt": "a b c"})
	code, _ := r.post(t, "/v1/completions/render", nil, []byte(`{"prompt":"a"}`))
	require.Equal(t, 403, code)
	status, _, answer := r.do(t, &exchange{Method: "GET", Path: "/kv_event_sources"})
	require.Equal(t, 200, status)
	require.Equal(t, "{}", answer)
}

func FuzzSimBody(f *testing.F) {
	for _, b := range []string{
		`{"prompt":[1,2],"stop":["a"],"n":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":["a","b"],"max_tokens":3,"temperature":0,"logprobs":1,"echo":true}`,
		`{"prompt":[[1],[2]],"vllm_xargs":{"kv_cache_report_mode":"full","session_id":"s","sim_output_tokens":3},"cache_salt":"x"}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stop_token_ids":[5],"max_completion_tokens":2}`,
		`{"prompt":`, `{}`, `[]`, `{"prompt":[4294967296]}`, `{"prompt":[2147483648]}`, "{\"prompt\":\"\\ud800\"}",
	} {
		f.Add([]byte(b), true)
		f.Add([]byte(b), false)
	}
	s := &Server{opts: (&Options{MaxModelLen: 512}).withDefaults(), tok: NewTokenizer()}
	a, e := s.parse([]byte(`{"prompt":[1,2],"max_tokens":40,"vllm_xargs":{"sim_output_tokens":3}}`), false)
	require.Nil(f, e)
	require.Equal(f, 3, a.limit(2), "the answer ends where the client said")
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		a, e := s.parse(body, chat)
		if e != nil {
			if e.status < 400 || e.status > 404 || e.msg == "" {
				t.Fatalf("%+v", e)
			}
			return
		}
		c := newCall("x", a)
		if len(c.seqs) == 0 {
			t.Fatal("no sequence")
		}
		for i := range c.seqs {
			q := &c.seqs[i]
			if q.req.Out < 1 || q.req.Out+len(q.req.Tokens) > 512 || len(q.req.Tokens) == 0 {
				t.Fatalf("%d prompt tokens, %d output tokens", len(q.req.Tokens), q.req.Out)
			}
			q.choice.feed(s.tok, a, 7)
			q.choice.finish = finishStop
		}
		form := newForm(c, 1)
		whole := append([]byte(nil), form.appendWhole(nil, &c.seqs[0].choice, a.prompts[0])...)
		if !json.Valid(whole) {
			t.Fatalf("not JSON: %s", whole)
		}
		chunk := append(form.appendChunk(nil, &c.seqs[0].choice, a.prompts[0], true), '}')
		if !json.Valid(chunk[len("data: "):]) {
			t.Fatalf("not JSON: %s", chunk)
		}
	})
}

// How many streams and tokens a server can serve, with nothing but its own cost:
// the engine runs so fast that it always has more to give.
func BenchmarkServerStream(b *testing.B) {
	s, err := NewServer(&Options{Speed: 1e6})
	require.NoError(b, err)
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	body := `{"prompt":[1,2,3],"max_tokens":1000,"stream":true}`
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		resp, err := client.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			b.Fatal(err)
		}
		n += 1000
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/token")
}
