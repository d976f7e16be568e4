package openai_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

// greeter is an engine: it has no JSON of its own, so the handler makes it.
type greeter struct{}

func (greeter) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		for i := range req.N * req.Prompts {
			for _, c := range []engine.Chunk{{Choice: i, Text: "Hello", Tokens: 1}, {Choice: i, Text: " you", Tokens: 1, Finish: "stop"}} {
				if err := ctx.Err(); err != nil {
					yield(nil, err)
					return
				}
				if !yield(&c, nil) {
					return
				}
			}
		}
	}
}

func ExampleNewHandler() {
	handler, err := openai.NewHandler(greeter{}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	body := `{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}`
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("X-Request-Id", "1")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Print(regexp.MustCompile(`"created":\d+`).ReplaceAllString(w.Body.String(), `"created":0`))
	// Output:
	// data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hello"},"finish_reason":null}]}
	//
	// data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"content":" you"},"finish_reason":"stop"}]}
	//
	// data: [DONE]
}
