package main

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
)

// words are all in the tiny model's training text, so a prompt's length in
// tokens is near its length in words.
var words = strings.Fields(`router worker block prefix cache token event stream model prompt answer system user
assistant order ship river stone market garden winter summer engine wheel signal button window letter number paper
bridge light morning evening before after under over between the a an of to and in on with from for is are was were`)

// A request is one generation to be compared.
type request struct {
	name   string
	path   string
	body   map[string]any
	stream bool
}

func (r *request) json() []byte {
	b, err := json.Marshal(r.body)
	if err != nil {
		panic(err) // maps of plain values only
	}
	return b
}

// A maker draws requests with shared prefixes.
type maker struct {
	rng      *rand.Rand
	families []string
}

func newMaker(seed uint64) *maker {
	m := &maker{rng: rand.New(rand.NewPCG(seed, 7))}
	for range 6 {
		m.families = append(m.families, m.text(40+m.rng.IntN(120)))
	}
	return m
}

func (m *maker) text(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[m.rng.IntN(len(words))])
	}
	return b.String()
}

// next draws one request: chat or completion, text or ids, streamed or not.
func (m *maker) next(name string) *request {
	r := &request{name: name, stream: m.rng.IntN(2) == 0}
	body := map[string]any{
		"model": "tiny", "temperature": 0, "max_tokens": 4 + m.rng.IntN(28), "return_token_ids": true,
	}
	prefix := m.families[m.rng.IntN(len(m.families))]
	tail := m.text(5 + m.rng.IntN(80))
	switch m.rng.IntN(3) {
	case 0:
		r.path = "/v1/completions"
		body["prompt"] = prefix + " " + tail
	case 1:
		r.path = "/v1/completions"
		ids := make([]int, 0, 400)
		f := rand.New(rand.NewPCG(uint64(len(prefix)), 3)) // ids shared by the family
		for range 64 + len(prefix)%100 {
			ids = append(ids, 300+f.IntN(1400))
		}
		for range 5 + m.rng.IntN(120) {
			ids = append(ids, 300+m.rng.IntN(1400))
		}
		body["prompt"] = ids
	default:
		r.path = "/v1/chat/completions"
		msgs := []map[string]string{{"role": "system", "content": prefix}, {"role": "user", "content": tail}}
		if m.rng.IntN(3) == 0 {
			msgs = append(msgs, map[string]string{"role": "assistant", "content": m.text(12)},
				map[string]string{"role": "user", "content": m.text(9)})
		}
		body["messages"] = msgs
	}
	switch m.rng.IntN(12) {
	case 0:
		body["min_tokens"] = 3 // vLLM refuses n > 1 at temperature 0
	case 1:
		body["stop"] = []string{"e", "\n"}
	case 2:
		if r.path == "/v1/completions" {
			body["logprobs"] = 1
		} else {
			body["logprobs"], body["top_logprobs"] = true, 1
		}
	}
	if r.stream {
		body["stream"] = true
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	r.body = body
	return r
}
