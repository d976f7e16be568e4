package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/enginetest"
	"github.com/stator-go/stator/engine/openai"
)

// modelServer is a small server of the completions API whose every token is the
// letter x.
type modelServer struct {
	active atomic.Int32
}

func (s *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.active.Add(1)
	defer s.active.Add(-1)
	var in struct {
		Prompt    *string
		Stream    bool
		N         int
		MaxTokens int `json:"max_tokens"`
		Options   struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	b, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(b, &in); err != nil || in.Prompt == nil {
		w.WriteHeader(400)
		io.WriteString(w, `{"error":{"message":"prompt is missing","type":"BadRequestError","param":"prompt","code":400}}`)
		return
	}
	in.N, in.MaxTokens = max(in.N, 1), max(in.MaxTokens, 1)
	if !in.Stream {
		var c []string
		for i := range in.N {
			c = append(c, fmt.Sprintf(`{"index":%d,"text":%q,"finish_reason":"length"}`, i, strings.Repeat("x", in.MaxTokens)))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[%s],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, strings.Join(c, ","), in.N*in.MaxTokens)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for k := range in.MaxTokens {
		for i := range in.N {
			if r.Context().Err() != nil {
				return
			}
			finish := "null"
			if k == in.MaxTokens-1 {
				finish = `"length"`
			}
			io.WriteString(w, event(i, "x", finish))
		}
		w.(http.Flusher).Flush()
		if in.MaxTokens > 100 {
			select {
			case <-time.After(time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	}
	if in.Options.Usage {
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":%d}}\n\n", in.N*in.MaxTokens)
	}
	io.WriteString(w, done)
}

// completion is a request for the model server.
func completion(stream bool, n, tokens int) *engine.Request {
	return &engine.Request{
		API: engine.APICompletions, Model: "m", Stream: stream, N: n, Prompts: 1, Rank: -1,
		Body: fmt.Appendf(nil, `{"model":"m","prompt":"abc","stream":%v,"n":%d,"max_tokens":%d}`, stream, n, tokens),
	}
}

func badCompletion() *engine.Request {
	return &engine.Request{API: engine.APICompletions, Model: "m", N: 1, Prompts: 1, Rank: -1, Body: []byte(`{"model":"m"}`)}
}

func TestClientConforms(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		New: func(t *testing.T) enginetest.Instance {
			s := &modelServer{}
			srv := httptest.NewServer(s)
			t.Cleanup(srv.Close)
			return enginetest.Instance{Engine: newClient(t, srv.URL, nil), Active: func() int { return int(s.active.Load()) }}
		},
		Request: completion,
		Bad:     badCompletion,
	})
}

// A gateway in front of an engine is an engine again.
func TestClientOfHandlerConforms(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		New: func(t *testing.T) enginetest.Instance {
			s := &modelServer{}
			srv := httptest.NewServer(s)
			t.Cleanup(srv.Close)
			url, _ := serve(t, newClient(t, srv.URL, nil), nil)
			return enginetest.Instance{Engine: newClient(t, url, nil), Active: func() int { return int(s.active.Load()) }}
		},
		Request: completion,
		Bad:     badCompletion,
	})
}

func ExampleClient_Generate() {
	srv := httptest.NewServer(&modelServer{})
	defer srv.Close()
	client, err := openai.NewClient(srv.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	req := &engine.Request{}
	body := []byte(`{"model":"m","prompt":"abc","stream":true,"max_tokens":3}`)
	if err := openai.ParseRequest(req, engine.APICompletions, body, openai.Limits{}); err != nil {
		fmt.Println(err)
		return
	}
	for chunk, err := range client.Generate(context.Background(), req) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if chunk.Hidden {
			continue // usage that the client did not ask for
		}
		fmt.Printf("%s %d %q\n", chunk.Text, chunk.Tokens, chunk.Finish)
	}
	// Output:
	// x 1 ""
	// x 1 ""
	// x 1 "length"
}

func ExampleHandler() {
	srv := httptest.NewServer(&modelServer{})
	defer srv.Close()
	client, err := openai.NewClient(srv.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	handler, err := openai.NewHandler(client, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	body := `{"model":"m","prompt":"abc","kv_transfer_params":{"do_remote_prefill":true}}`
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)))
	fmt.Println(w.Code, w.Body)
	fmt.Println("bodies stripped:", handler.Stats().Stripped)
	// Output:
	// 200 {"choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}
	// bodies stripped: 1
}
