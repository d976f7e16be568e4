package openai

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

func TestChunkForms(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []engine.Chunk
	}{
		{"text", `{"choices":[{"index":1,"text":"a\u00e9","finish_reason":null}]}`, []engine.Chunk{{Choice: 1, Text: "aé", Tokens: 1}}},
		{"empty text is no token", `{"choices":[{"index":0,"text":""}]}`, []engine.Chunk{{}}},
		{"empty text with an id is one", `{"choices":[{"index":0,"text":"","token_ids":[7]}]}`, []engine.Chunk{{TokenIDs: []uint32{7}, Tokens: 1}}},
		{"several ids", `{"choices":[{"text":"abc","token_ids":[7, 8,9]}]}`, []engine.Chunk{{Text: "abc", TokenIDs: []uint32{7, 8, 9}, Tokens: 3}}},
		{"role", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`, []engine.Chunk{{}}},
		{"content", `{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`, []engine.Chunk{{Text: "x", Tokens: 1, Finish: "stop"}}},
		{"empty delta with an id", `{"choices":[{"index":0,"delta":{},"token_ids":[5]}]}`, []engine.Chunk{{TokenIDs: []uint32{5}, Tokens: 1}}},
		{"reasoning", `{"choices":[{"index":0,"delta":{"content":null,"reasoning":"hm"}}]}`, []engine.Chunk{{Tokens: 1}}},
		{"tool call", `{"choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"index":0}]}}]}`, []engine.Chunk{{Tokens: 1}}},
		{"no tool call", `{"choices":[{"index":0,"delta":{"content":null,"tool_calls":[],"function_call":null}}]}`, []engine.Chunk{{}}},
		{"other reason", `{"choices":[{"index":0,"finish_reason":"content_filter"}]}`, []engine.Chunk{{Finish: "content_filter"}}},
		{"two", `{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`, []engine.Chunk{{Text: "a", Tokens: 1}, {Choice: 1, Text: "b", Tokens: 1}}},
		{"none", `{"choices":[]}`, nil},
		{"no list", `{"choices":null}`, nil},
		{"unknown fields", `{"x":[{"choices":1}],"choices":[{"weird":{"index":9},"index":0,"text":"a"}],"y":1e400}`, []engine.Chunk{{Text: "a", Tokens: 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := parser{text: true}
			require.NoError(t, p.begin([]byte(tc.in)))
			require.Nil(t, p.failure)
			var got []engine.Chunk
			for {
				var c engine.Chunk
				ok, err := p.next(&c)
				require.NoError(t, err)
				if !ok {
					break
				}
				c.TokenIDs = append([]uint32(nil), c.TokenIDs...)
				got = append(got, c)
			}
			require.Equal(t, tc.want, got)
		})
	}
}

func TestUsageForms(t *testing.T) {
	for in, want := range map[string]*engine.Usage{
		`{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`:    {Prompt: 5, Completion: 2, Cached: 4},
		`{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}}`: {Prompt: 5, Completion: 2, Cached: -1},
		`{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}}`:                   {Prompt: 5, Completion: 2, Cached: -1},
		`{"usage":{"prompt_tokens":-5,"completion_tokens":2.5}}`:                                             {Cached: -1},
		`{"usage":null}`: nil,
		`{}`:             nil,
	} {
		var p parser
		require.NoError(t, p.begin([]byte(in)))
		require.Equal(t, want != nil, p.hasUse, in)
		if want != nil {
			require.Equal(t, *want, p.usage, in)
		}
	}
}

const benchChunk = `{"id":"cmpl-ab06a9745b7fe5c2","object":"text_completion","created":1795964210,"model":"tiny","choices":[{"index":0,"text":" over","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[585]}]}`

func TestChunkPathAllocatesNothing(t *testing.T) {
	stream := strings.Repeat("data: "+benchChunk+"\n\n", 64)
	var p parser
	var s sse
	var c engine.Chunk
	var r strings.Reader
	out := make([]byte, 0, 1024)
	n := 0
	got := testing.AllocsPerRun(50, func() {
		r.Reset(stream)
		s.reset(&r, 1<<20)
		for {
			data, err := s.next()
			if err != nil {
				break
			}
			if p.begin(data) != nil {
				break
			}
			for {
				if ok, _ := p.next(&c); !ok {
					break
				}
				n += c.Tokens
			}
			out = appendEvent(out[:0], data)
		}
	})
	require.Zero(t, got)
	require.Equal(t, 51*64, n)
}

// FuzzChunk holds the parser to the standard library: what encoding/json takes
// for an answer reads the same here.
func FuzzChunk(f *testing.F) {
	for _, s := range []string{
		benchChunk, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"abort"}]}`,
		`{"error":{"message":"m","code":500}}`, `{"object":"error","message":"x"}`, `{"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`,
		`{"choices":[{"index":16384}]}`, `{"choices":[{"token_ids":[4294967296]}]}`, `{"choices":[1,"a",{}]}`, `{"choices":[{"text":"\ud83d"}]}`, `[]`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		p := parser{text: true}
		if err := p.begin(in); err != nil {
			if json.Valid(in) && len(in) > 0 && jsonedit.Check(in) == nil && strings.TrimLeft(string(in), " \t\r\n")[0] == '{' {
				t.Fatalf("refused %q: %v", in, err)
			}
			return
		}
		if !json.Valid(in) {
			t.Fatalf("accepted %q", in)
		}
		for range len(in) + 1 {
			var c engine.Chunk
			ok, err := p.next(&c)
			if err != nil || !ok {
				return
			}
			if c.Choice < 0 || c.Choice >= maxChoices || c.Tokens < 0 || (c.TokenIDs != nil && c.Tokens != len(c.TokenIDs)) {
				t.Fatalf("%+v of %q", c, in)
			}
		}
		t.Fatal("more choices than bytes")
	})
}

func BenchmarkChunk(b *testing.B) {
	data := []byte(benchChunk)
	var p parser
	var c engine.Chunk
	b.ReportAllocs()
	for b.Loop() {
		p.begin(data)
		p.next(&c)
	}
}
