package vllm

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

// site serves fixed or computed answers by "METHOD path", and keeps what was
// asked.
type site struct {
	mu     sync.Mutex
	routes map[string]func(body []byte) (int, []byte)
	asked  []string
	bodies []string
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.bodies = append(s.bodies, string(body))
	f := s.routes[r.Method+" "+r.URL.Path]
	s.mu.Unlock()
	if f == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		return
	}
	code, out := f(body)
	w.WriteHeader(code)
	_, _ = w.Write(out)
}

func (s *site) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, a := range s.asked {
		if a == what {
			n++
		}
	}
	return n
}

// recorded answers with a recording.
func recordedAnswer(t *testing.T, name string) func([]byte) (int, []byte) {
	body, status := recordedBody(t, name)
	return func([]byte) (int, []byte) { return status, body }
}

func startWorker(t *testing.T, s *site, opts *WorkerOptions) *Worker {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	w, err := NewWorker(srv.URL, opts)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

func TestProbe(t *testing.T) {
	s := &site{routes: map[string]func([]byte) (int, []byte){
		"GET /v1/models":              recordedAnswer(t, "get_models_lora"),
		"GET /version":                recordedAnswer(t, "get_version"),
		"GET /metrics":                recordedAnswer(t, "metrics_dp2"),
		"GET /kv_event_sources":       recordedAnswer(t, "get_kv_event_sources_dp2"),
		"POST /v1/completions/render": recordedAnswer(t, "render_completion"),
		"POST /tokenize":              recordedAnswer(t, "tokenize_text"),
		"GET /health":                 func([]byte) (int, []byte) { return 200, nil },
	}}
	w := startWorker(t, s, nil)
	require.NoError(t, w.Health(t.Context()))
	p, err := w.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, &Probe{
		Version: "0.32.0", MaxLen: 1024, Ranks: 2, BlockSize: 32, KVBlocks: 129, Render: true, Tokenize: true,
		Models: []engine.Model{{ID: "tiny", MaxLen: 1024}, {ID: "lora-x", Parent: "tiny", MaxLen: 1024}},
		Events: []EventSource{
			{Rank: 0, Endpoint: "tcp://127.0.0.1:19103", Replay: "tcp://127.0.0.1:20103", Topic: "kv@127.0.0.1:18103@tiny", BufferSteps: 10000},
			{Rank: 1, Endpoint: "tcp://127.0.0.1:19104", Replay: "tcp://127.0.0.1:20104", Topic: "kv@127.0.0.1:18103@tiny", BufferSteps: 10000},
		},
	}, p)
	load, err := w.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, load, 2)
	require.False(t, load[0].At.IsZero())
	sub, err := p.Events[1].NewSubscriber(&SubscriberOptions{Topic: "other"})
	require.NoError(t, err)
	require.Equal(t, "kv@127.0.0.1:18103@tiny", sub.opts.Topic)
}

// TestProbeMissing: an old engine without anything says what it lacks.
func TestProbeMissing(t *testing.T) {
	s := &site{routes: map[string]func([]byte) (int, []byte){
		"GET /v1/models": recordedAnswer(t, "get_models"),
		"GET /metrics":   func([]byte) (int, []byte) { return 200, []byte("vllm:num_requests_running 1") },
	}}
	w := startWorker(t, s, nil)
	p, err := w.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, p.Ranks)
	for i, want := range []string{"/metrics", "/kv_event_sources", "--enable-scale-out", "/tokenize"} {
		require.Contains(t, p.Missing[i], want)
	}
	require.Len(t, p.Missing, 4)

	// events off; refused rendering; a loopback address seen from elsewhere
	s.routes["GET /kv_event_sources"] = func([]byte) (int, []byte) { return 200, []byte("{}") }
	s.routes["POST /v1/completions/render"] = recordedAnswer(t, "render_chat_tools")
	s.routes["POST /tokenize"] = recordedAnswer(t, "tokenize_text")
	s.routes["GET /metrics"] = recordedAnswer(t, "metrics_idle")
	p, err = w.Probe(t.Context())
	require.NoError(t, err)
	require.Len(t, p.Missing, 2)
	require.Contains(t, p.Missing[0], "--kv-events-config")
	require.Contains(t, p.Missing[1], "--enable-scale-out")

	w.host = "10.0.0.9"
	s.routes["GET /kv_event_sources"] = func([]byte) (int, []byte) {
		return 200, []byte(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":null}}`)
	}
	p, err = w.Probe(t.Context())
	require.NoError(t, err)
	require.Contains(t, p.Missing[0], "replay_endpoint")
	require.Contains(t, p.Missing[1], "cannot be reached")

	s.routes["GET /v1/models"] = nil
	_, err = w.Probe(t.Context())
	require.Equal(t, 404, status(err))
}

func TestEventSources(t *testing.T) {
	body, _ := recordedBody(t, "get_kv_event_sources")
	got, err := ParseEventSources(body, "10.1.2.3")
	require.NoError(t, err)
	require.Equal(t, []EventSource{{Endpoint: "tcp://10.1.2.3:15701", Replay: "tcp://10.1.2.3:15801",
		Topic: "kv@127.0.0.1:18001@tiny", BufferSteps: 10000}}, got)
	for _, in := range []string{`{}`, `{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:1"}}`, `{"0":{"enable_kv_cache_events":true,"publisher":"null","endpoint":"x"}}`} {
		got, err := ParseEventSources([]byte(in), "h")
		require.NoError(t, err)
		require.Empty(t, got)
	}
	for _, in := range []string{``, `[]`, `{"x":{}}`, `{"-1":{}}`, `{"0":{"enable_kv_cache_events":true,"endpoint":"inproc://x"}}`,
		`{"0":{"enable_kv_cache_events":true,"endpoint":"tcp://*:1","replay_endpoint":"tcp://*"}}`} {
		_, err := ParseEventSources([]byte(in), "h")
		require.Error(t, err, in)
	}
}

func TestRankEndpoint(t *testing.T) {
	for _, tc := range []struct {
		in   string
		rank int
		want string
	}{
		{"tcp://*:5557", 0, "tcp://10.0.0.1:5557"},
		{"tcp://*:5557", 3, "tcp://10.0.0.1:5560"},
		{"tcp://0.0.0.0:5557", 1, "tcp://10.0.0.1:5558"},
		{"tcp://[::]:5557", 0, "tcp://10.0.0.1:5557"},
		{"tcp://:::5557", 0, "tcp://10.0.0.1:5557"},
		{"tcp://engine-3:5557", 1, "tcp://engine-3:5558"},
		{"tcp://[fd00::1]:5557", 1, "tcp://[fd00::1]:5558"},
		{"ipc:///tmp/kv", 0, "ipc:///tmp/kv"},
		{"ipc:///tmp/kv", 1, ""},
		{"tcp://*:*", 0, ""},
		{"tcp://*:65535", 1, ""},
		{"tcp://*:5557", -1, ""},
		{"inproc://kv", 0, ""},
		{"tcp://x", 0, ""},
	} {
		got, err := RankEndpoint(tc.in, "10.0.0.1", tc.rank)
		require.Equal(t, tc.want == "", err != nil, tc.in)
		require.Equal(t, tc.want, got)
	}
	_, err := RankEndpoint("tcp://*:1", "", 0)
	require.ErrorContains(t, err, "host")
}

func TestWorkerOptions(t *testing.T) {
	_, err := NewWorker("ftp://x", &WorkerOptions{MinReuse: -1})
	require.ErrorContains(t, err, "MinReuse")
	require.ErrorContains(t, err, "http")
	_, err = NewTokenCache(&TokenCacheOptions{MaxBytes: -1, TTL: -1})
	require.ErrorContains(t, err, "MaxBytes")
	require.ErrorContains(t, err, "TTL")
}

// recordedRequest is the body of a recorded request.
func recordedRequest(t *testing.T, name string) json.RawMessage {
	t.Helper()
	raw, err := os.ReadFile("testdata/vllm-0.32.0/http/" + name + ".req.json")
	require.NoError(t, err)
	var r struct{ Body json.RawMessage }
	require.NoError(t, json.Unmarshal(raw, &r))
	return r.Body
}

// TestTokenizeRecorded: the requests that a real engine was sent give the ids
// that it answered, by either endpoint.
func TestTokenizeRecorded(t *testing.T) {
	chat := &engine.Request{API: engine.APIChat, Body: recordedRequest(t, "render_chat")}
	text := &engine.Request{API: engine.APICompletions, Body: recordedRequest(t, "render_completion")}
	read := func(name, field string) (ids []uint32) {
		body, _ := recordedBody(t, name)
		if body[0] == '[' {
			body = body[1 : len(body)-1]
		}
		ids, err := idsOf(body, field)
		require.NoError(t, err)
		return ids
	}
	chatIDs, textIDs := read("tokenize_chat", "tokens"), read("tokenize_text", "tokens")
	require.Equal(t, chatIDs, read("render_chat", "token_ids"))
	require.Equal(t, textIDs, read("render_completion", "token_ids"))

	s := &site{routes: map[string]func([]byte) (int, []byte){
		"POST /v1/chat/completions/render": recordedAnswer(t, "render_chat"),
		"POST /v1/completions/render":      recordedAnswer(t, "render_completion"),
	}}
	w := startWorker(t, s, nil)
	for range 2 {
		ids, err := w.Tokenize(t.Context(), []uint32{9}, chat)
		require.NoError(t, err)
		require.Equal(t, append([]uint32{9}, chatIDs...), ids)
		ids, err = w.Tokenize(t.Context(), nil, text)
		require.NoError(t, err)
		require.Equal(t, textIDs, ids)
	}
	require.Len(t, s.asked, 2)
	require.Equal(t, string(chat.Body), s.bodies[0])
	require.Equal(t, TokenStats{Hits: 2, Asked: 2, Calls: 2}, w.TokenStats())

	// refused once, remembered
	tokenize := func(body []byte) (int, []byte) {
		name := "tokenize_text"
		if strings.Contains(string(body), "messages") {
			name = "tokenize_chat"
		}
		out, _ := recordedBody(t, name)
		return 200, out
	}
	s = &site{routes: map[string]func([]byte) (int, []byte){
		"POST /v1/chat/completions/render": recordedAnswer(t, "render_chat_tools"),
		"POST /v1/completions/render":      recordedAnswer(t, "render_chat_tools"),
		"POST /tokenize":                   tokenize,
	}}
	w = startWorker(t, s, nil)
	ids, err := w.Tokenize(t.Context(), nil, chat)
	require.NoError(t, err)
	require.Equal(t, chatIDs, ids)
	ids, err = w.Tokenize(t.Context(), nil, text)
	require.NoError(t, err)
	require.Equal(t, textIDs, ids)
	require.Equal(t, []string{"POST /v1/chat/completions/render", "POST /tokenize", "POST /tokenize"}, s.asked)
	var sent, want map[string]any
	require.NoError(t, json.Unmarshal([]byte(s.bodies[1]), &sent))
	require.NoError(t, json.Unmarshal(recordedRequest(t, "tokenize_chat"), &want))
	require.Equal(t, want["messages"], sent["messages"])
	require.Equal(t, want["model"], sent["model"])
}

func TestTokenizeBodies(t *testing.T) {
	ok := func(body []byte) (int, []byte) { return 200, []byte(`{"count":2,"tokens":[1,2]}`) }
	for _, tc := range []struct {
		name, body string
		chat       bool
		sent       string // to /tokenize; "" for none
		want       []uint32
	}{
		{"ids", `{"model":"m","prompt":[7, 8]}`, false, "", []uint32{7, 8}},
		{"ids in a list", `{"model":"m","prompt":[[7,8]]}`, false, "", []uint32{7, 8}},
		{"ids that are none", `{"model":"m","prompt":[7,-8]}`, false, "", nil},
		{"text", `{"model":"m","max_tokens":5,"prompt":"a\"b","add_special_tokens":false}`, false,
			`{"model":"m","add_special_tokens":false,"prompt":"a\"b"}`, []uint32{1, 2}},
		{"text in a list", `{"model":"m","prompt":["a"]}`, false, `{"model":"m","prompt":"a"}`, []uint32{1, 2}},
		{"two prompts", `{"model":"m","prompt":["a","b"]}`, false, "", nil},
		{"two prompts of ids", `{"model":"m","prompt":[[1],[2]]}`, false, "", nil},
		{"no prompt", `{"model":"m"}`, false, "", nil},
		{"no model", `{"prompt":"a"}`, false, "", nil},
		{"not JSON", `{"prompt"`, false, "", nil},
		{"truncated", `{"model":"m","prompt":"a","truncate_prompt_tokens":5}`, false, "", nil},
		{"ids truncated", `{"model":"m","prompt":[1,2],"truncate_prompt_tokens":1}`, false, "", nil},
		{"not truncated", `{"model":"m","prompt":"a","truncate_prompt_tokens":null}`, false, `{"model":"m","prompt":"a"}`, []uint32{1, 2}},
		{"chat", `{"messages":[{"role":"user","content":"a"}],"tools":[{"x":1}],"model":"m","temperature":1,"chat_template_kwargs":{"enable_thinking":false}}`, true,
			`{"model":"m","tools":[{"x":1}],"chat_template_kwargs":{"enable_thinking":false},"messages":[{"role":"user","content":"a"}]}`, []uint32{1, 2}},
		{"escaped name", `{"model":"m","mess\u0061ges":[{"role":"user","content":"a"}]}`, true,
			`{"model":"m","messages":[{"role":"user","content":"a"}]}`, []uint32{1, 2}},
		{"text parts", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},"b"]}]}`, true,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},"b"]}]}`, []uint32{1, 2}},
		{"image", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`, true, "", nil},
		{"documents", `{"model":"m","messages":[{"role":"user","content":"a"}],"documents":[{}]}`, true, "", nil},
		{"no messages", `{"model":"m","messages":[]}`, true, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &site{routes: map[string]func([]byte) (int, []byte){"POST /tokenize": ok}}
			w := startWorker(t, s, &WorkerOptions{NoRender: true})
			req := &engine.Request{API: engine.APICompletions, Body: []byte(tc.body)}
			if tc.chat {
				req.API = engine.APIChat
			}
			ids, err := w.Tokenize(t.Context(), nil, req)
			if tc.want == nil {
				require.ErrorIs(t, err, ErrNoTokens)
				require.EqualValues(t, 1, w.TokenStats().Failed)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, tc.want, ids)
			if tc.sent == "" {
				require.Empty(t, s.bodies)
			} else {
				require.Equal(t, []string{tc.sent}, s.bodies)
			}
		})
	}
}

func TestTokenizeFaults(t *testing.T) {
	req := &engine.Request{API: engine.APIChat, Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`)}
	render := "POST /v1/chat/completions/render"
	answer := func(code int, body string) func([]byte) (int, []byte) {
		return func([]byte) (int, []byte) { return code, []byte(body) }
	}
	s := &site{routes: map[string]func([]byte) (int, []byte){}}
	w := startWorker(t, s, nil)
	for _, tc := range []struct {
		code int
		body string
		want error
	}{
		{200, `{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]}}}`, ErrNoTokens},
		{200, `{"features":null}`, engine.ErrProtocol},
		{200, `{"token_ids":"x"}`, engine.ErrProtocol},
		{200, `x`, engine.ErrProtocol},
	} {
		s.routes[render] = answer(tc.code, tc.body)
		_, err := w.Tokenize(t.Context(), nil, req)
		require.ErrorIs(t, err, tc.want)
	}
	// an unknown model, and a prompt that is too long, are the request's fault
	s.routes[render] = answer(404, `{"error":{"message":"no such model","code":404}}`)
	_, err := w.Tokenize(t.Context(), nil, req)
	require.Equal(t, 404, status(err))
	s.routes[render] = recordedAnswer(t, "render_err_too_long")
	_, err = w.Tokenize(t.Context(), nil, req)
	require.Equal(t, 400, status(err))
	require.Zero(t, s.count("POST /tokenize"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Tokenize(ctx, nil, req)
	require.ErrorIs(t, err, context.Canceled)

	ids, err := w.Tokenize(t.Context(), []uint32{1}, &engine.Request{Tokens: []uint32{5}})
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 5}, ids)
}

func TestTokenCache(t *testing.T) {
	now := time.Unix(0, 0)
	c, err := NewTokenCache(&TokenCacheOptions{MaxBytes: 10_000, TTL: time.Minute, Now: func() time.Time { return now }})
	require.NoError(t, err)
	key := func(i int) promptKey { return promptKey{byte(i), byte(i >> 8)} }
	for i := range 1000 {
		c.put(key(i), make([]uint32, 100), nil)
		n, bytes := c.Len()
		require.LessOrEqual(t, bytes, 10_000)
		require.Equal(t, n*(400+entryOverhead), bytes)
	}
	_, ok := c.get(key(999))
	require.True(t, ok)
	_, ok = c.get(key(0))
	require.False(t, ok)
	c.put(key(999), make([]uint32, 10_000), nil) // too large: the old entry goes as well
	_, ok = c.get(key(999))
	require.False(t, ok)
	now = now.Add(61 * time.Second)
	_, ok = c.get(key(998))
	require.False(t, ok)
	c.put(key(1), nil, nil)
	now = now.Add(-time.Second) // set back: how old the entry is is not known
	_, ok = c.get(key(1))
	require.False(t, ok)
}
