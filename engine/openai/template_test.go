package openai

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

// readFull reads an event without a template. It returns its only chunk, and
// false when the event is not ordinary.
func readFull(data []byte, text bool) (c engine.Chunk, ordinary bool) {
	p := parser{text: text}
	if p.begin(data) != nil || p.failure != nil || p.hasUse {
		return c, false
	}
	if ok, err := p.next(&c); err != nil || !ok || c.Finish != "" {
		return c, false
	}
	c.TokenIDs = slices.Clone(c.TokenIDs)
	var more engine.Chunk
	ok, err := p.next(&more)
	return c, err == nil && !ok
}

// follow reads data after first by one parser and says whether the template
// served. What it gives must be what reading in full gives.
func follow(t *testing.T, first, data []byte, text bool) bool {
	t.Helper()
	p := parser{text: text}
	var c engine.Chunk
	if p.begin(first) != nil {
		return false
	}
	for {
		if ok, err := p.next(&c); err != nil {
			return false
		} else if !ok {
			break
		}
		p.learn(first, &c)
	}
	p.ids = append(p.ids[:0], 99) // what an earlier event left behind
	c = engine.Chunk{Choice: 7, Text: "left", TokenIDs: p.ids, Tokens: 3, Finish: "left"}
	if !p.same(data, &c) {
		return false
	}
	want, ordinary := readFull(data, text)
	require.True(t, ordinary, "%q after %q", data, first)
	require.Equal(t, want, c, "%q after %q", data, first)
	return true
}

const chatChunk = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795964210,"model":"tiny","choices":[{"index":0,"delta":{"content":"over"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`

func TestTemplate(t *testing.T) {
	multi := `{"choices":[{"index":1,"delta":{"reasoning":"hm","content":""},"token_ids":[1]}]}`
	for _, tc := range []struct {
		name, first, old, new string
		served                bool
	}{
		{"the same again", benchChunk, "", "", true},
		{"text", benchChunk, `" over"`, `" the lazy dog"`, true},
		{"no text", benchChunk, `" over"`, `""`, true},
		{"short escapes", benchChunk, `" over"`, `"\n\t\"\\"`, true},
		{"not ASCII", benchChunk, `" over"`, `"Größe 字"`, true},
		{"not UTF-8", benchChunk, `" over"`, "\"\xff\xfe\"", true},
		{"ids", benchChunk, `[585]`, `[0,1,123456789]`, true},
		{"choice", benchChunk, `"index":0`, `"index":16383`, true},
		{"chat", chatChunk, `"over"`, `" and"`, true},
		{"reasoning", multi, `"hm"`, `"so"`, true},
		{"nothing said any more", multi, `"hm"`, `""`, true},
		{"text for reasoning", multi, `""`, `"so"`, true},

		{"long escape", benchChunk, `" over"`, `"\u00e9"`, false},
		{"bad escape", benchChunk, `" over"`, `"\x"`, false},
		{"control character", benchChunk, `" over"`, "\"a\x01\"", false},
		{"open string", benchChunk, `" over"`, `"over`, false},
		{"text null", benchChunk, `" over"`, `null`, false},
		{"no ids", benchChunk, `[585]`, `[]`, false},
		{"ids null", benchChunk, `[585]`, `null`, false},
		{"ids with space", benchChunk, `[585]`, `[585, 586]`, false},
		{"an id of ten digits", benchChunk, `[585]`, `[4294967295]`, false},
		{"an id with a leading zero", benchChunk, `[585]`, `[05]`, false},
		{"a negative id", benchChunk, `[585]`, `[-5]`, false},
		{"choice out of range", benchChunk, `"index":0`, `"index":16384`, false},
		{"choice with a leading zero", benchChunk, `"index":0`, `"index":00`, false},
		{"choice with a fraction", benchChunk, `"index":0`, `"index":0.0`, false},
		{"end", benchChunk, `"finish_reason":null`, `"finish_reason":"stop"`, false},
		{"usage", benchChunk, `]}]}`, `]}],"usage":{"prompt_tokens":1}}`, false},
		{"error", benchChunk, `]}]}`, `]}],"error":"out"}`, false},
		{"second choice", benchChunk, `]}]}`, `]},{"index":1}]}`, false},
		{"log probabilities", benchChunk, `"logprobs":null`, `"logprobs":{"tokens":["a"]}`, false},
		{"other id", benchChunk, `cmpl-a`, `cmpl-b`, false},
		{"cut", benchChunk, `]}]}`, `]}]`, false},
		{"longer", benchChunk, `]}]}`, `]}]} `, false},
		{"empty", benchChunk, benchChunk, ``, false},
		{"done", benchChunk, benchChunk, `[DONE]`, false},

		{"an event with usage is no template", `{"choices":[{"text":"a"}],"usage":{}}`, "", "", false},
		{"one with an end neither", `{"choices":[{"text":"a","finish_reason":"stop"}]}`, "", "", false},
		{"one with two choices neither", `{"choices":[{"text":"a"},{"text":"b"}]}`, "", "", false},
		{"one without choices neither", `{"choices":[]}`, "", "", false},
		{"an error neither", `{"choices":[{"text":"a"}],"error":{"message":"x"}}`, "", "", false},
		{"no ids neither", `{"choices":[{"text":"a","token_ids":[]}]}`, "", "", false},
		{"a name five times neither", `{"choices":[{"text":"a","text":"b","text":"c","text":"d","text":"e"}]}`, "", "", false},
		{"a name twice", `{"choices":[{"text":"a","text":"b","index":1,"index":2}]}`, `"b"`, `""`, true},
		{"list of choices twice", `{"choices":[{"text":"a"}],"choices":[{"text":"b"}]}`, `"b"`, `"c"`, true},
		{"first list of choices twice", `{"choices":[{"text":"a"}],"choices":[{"text":"b"}]}`, `"a"`, `"c"`, false},
		{"a tool call says something", `{"choices":[{"delta":{"content":"","tool_calls":[{"index":0}]}}]}`, `""`, `"x"`, true},
		{"its arguments are fixed", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, `"index":0`, `"index":1`, false},
		{"space", " { \"choices\" : [ { \"index\" : 0 , \"text\" : \"a\" } ] } ", `"a"`, `"b"`, true},
		{"long", `{"choices":[{"text":"` + strings.Repeat("x", maxTemplate) + `"}]}`, "", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, text := range []bool{true, false} {
				require.Equal(t, tc.served, follow(t, []byte(tc.first), []byte(strings.Replace(tc.first, tc.old, tc.new, 1)), text))
			}
		})
	}
}

// A whole stream reads the same with templates as without, also when unusual
// events come in between and when a pooled parser begins another stream.
func TestTemplateStream(t *testing.T) {
	var events [][]byte
	for i := range 60 {
		e := strings.Replace(benchChunk, "585", fmt.Sprint(i), 1)
		switch {
		case i%7 == 3:
			e = strings.Replace(e, " over", `\u00fc`, 1)
		case i%11 == 5:
			e = chatChunk
		case i%13 == 6:
			e = strings.Replace(e, `"finish_reason":null`, `"finish_reason":"stop"`, 1)
		default:
			e = strings.Replace(e, `"index":0`, fmt.Sprintf(`"index":%d`, i%3), 1)
		}
		events = append(events, []byte(e))
	}
	p := parser{text: true}
	served := 0
	for i, e := range events {
		if i == 40 {
			p.forget()
			require.False(t, p.same(e, new(engine.Chunk)))
		}
		var c engine.Chunk
		if p.same(e, &c) {
			served++
			want, ok := readFull(e, true)
			require.True(t, ok)
			require.Equal(t, want, c)
			continue
		}
		require.NoError(t, p.begin(e))
		ok, err := p.next(&c)
		require.True(t, ok)
		require.NoError(t, err)
		p.learn(e, &c)
	}
	require.Greater(t, served, 20)
}

// FuzzTemplate holds the template to the parser: an event, and the same with
// some bytes exchanged, read one after the other.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		benchChunk, chatChunk, `{"choices":[{"text":"a","text":"b","token_ids":[1,2],"index":3}]}`,
		`{"choices":[{"delta":{"reasoning":"r","content":null,"tool_calls":[{}]},"text":""}],"usage":null}`,
	} {
		f.Add([]byte(s), uint16(strings.Index(s, `"text":"`)+8), uint16(1), []byte(`\n`), true)
		f.Add([]byte(s), uint16(strings.Index(s, `[1`)+1), uint16(1), []byte(`77,5`), false)
		f.Add([]byte(s), uint16(len(s)-2), uint16(2), []byte(`,{"text":"x"}]}`), true)
	}
	f.Fuzz(func(t *testing.T, first []byte, at, n uint16, put []byte, text bool) {
		i := min(int(at), len(first))
		j := min(i+int(n), len(first))
		follow(t, first, slices.Concat(first[:i], put, first[j:]), text)
		follow(t, first, bytes.Clone(first), text)
	})
}

func BenchmarkTemplate(b *testing.B) {
	data := []byte(benchChunk)
	var p parser
	var c engine.Chunk
	p.begin(data)
	p.next(&c)
	p.learn(data, &c)
	b.ReportAllocs()
	for b.Loop() {
		if !p.same(data, &c) {
			b.Fatal("read in full")
		}
	}
}
