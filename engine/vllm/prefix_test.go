package vllm

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// A template renders messages to words; each word is a token.
type template func(messages []chatMessage, open bool) []string

func say(out []string, role, content string) []string {
	out = append(out, "<|"+role+"|>")
	out = append(out, strings.Fields(content)...)
	return append(out, "<|end|>")
}

func ending(out []string, open bool) []string {
	if open {
		out = append(out, "<|assistant|>")
	}
	return out
}

// plainTemplate is concatenative.
func plainTemplate(messages []chatMessage, open bool) []string {
	out := []string{"<|begin|>"}
	for _, m := range messages {
		out = say(out, m.Role, m.Content)
	}
	return ending(out, open)
}

// defaultSystem puts a system message where there is none.
func defaultSystem(messages []chatMessage, open bool) []string {
	if messages[0].Role != "system" {
		messages = append([]chatMessage{{"system", "be nice"}}, messages...)
	}
	return plainTemplate(messages, open)
}

// mergedSystem tells the system message with the last question, as Mistral's
// templates do.
func mergedSystem(messages []chatMessage, open bool) []string {
	var out []string
	system := ""
	for i, m := range messages {
		last := !slices.ContainsFunc(messages[i+1:], func(m chatMessage) bool { return m.Role == "user" })
		switch {
		case m.Role == "system":
			system = m.Content
		case m.Role == "user" && last:
			out = say(out, "user", system+" "+m.Content)
		default:
			out = say(out, m.Role, m.Content)
		}
	}
	return ending(out, open)
}

// noThoughts leaves out what was thought in earlier turns, as Qwen's templates
// do.
func noThoughts(messages []chatMessage, open bool) []string {
	var out []string
	for i, m := range messages {
		if _, after, ok := strings.Cut(m.Content, "</think>"); ok && i < len(messages)-1 {
			m.Content = after
		}
		out = say(out, m.Role, m.Content)
	}
	return ending(out, open)
}

// counted begins with the number of messages.
func counted(messages []chatMessage, open bool) []string {
	return append([]string{fmt.Sprint(len(messages))}, plainTemplate(messages, open)...)
}

// treacherous is concatenative until a certain word is said, which then changes
// what comes later. No check of forms can see that beforehand.
func treacherous(messages []chatMessage, open bool) []string {
	out := []string{"<|begin|>"}
	said := false
	for _, m := range messages {
		if said {
			out = append(out, "<|beware|>")
		}
		said = said || strings.Contains(m.Content, "boom")
		out = say(out, m.Role, m.Content)
	}
	return ending(out, open)
}

func wordIDs(words []string) []uint32 {
	out := make([]uint32, 0, len(words))
	for _, w := range words {
		h := fnv.New32a()
		_, _ = h.Write([]byte(w))
		out = append(out, h.Sum32())
	}
	return out
}

// templateSite is an engine with a template, by either endpoint.
func templateSite(t *testing.T, tmpl template) *site {
	answer := func(field string) func([]byte) (int, []byte) {
		return func(body []byte) (int, []byte) {
			var r struct {
				Messages []chatMessage
				Open     *bool `json:"add_generation_prompt"`
			}
			if err := json.Unmarshal(body, &r); err != nil {
				t.Error(err)
			}
			out, _ := json.Marshal(map[string]any{field: wordIDs(tmpl(r.Messages, r.Open == nil || *r.Open))})
			return 200, out
		}
	}
	return &site{routes: map[string]func([]byte) (int, []byte){
		"POST /v1/chat/completions/render": answer("token_ids"),
		"POST /tokenize":                   answer("tokens"),
	}}
}

func chatRequest(messages []chatMessage, extra string) *engine.Request {
	m, _ := json.Marshal(messages)
	return &engine.Request{API: engine.APIChat, Body: fmt.Appendf(nil, `{"model":"m","messages":%s%s}`, m, extra)}
}

// converse plays conversations of several turns and compares each answer with
// the template's own; it returns the number of differences.
func converse(t *testing.T, w *Worker, tmpl template, from, to int, text func(c, turn int) string) (wrong int) {
	t.Helper()
	for c := from; c < to; c++ {
		var m []chatMessage
		if c%2 == 0 {
			m = append(m, chatMessage{"system", fmt.Sprintf("system number %d", c)})
		}
		for turn := range 4 {
			m = append(m, chatMessage{"user", fmt.Sprintf("question %d of %d", turn, c)})
			got, err := w.Tokenize(t.Context(), nil, chatRequest(m, ""))
			require.NoError(t, err)
			if !slices.Equal(wordIDs(tmpl(m, true)), got) {
				wrong++
			}
			m = append(m, chatMessage{"assistant", text(c, turn)})
		}
	}
	return wrong
}

func TestReuse(t *testing.T) {
	calm := func(c, turn int) string { return fmt.Sprintf("answer %d to %d", turn, c) }
	thinking := func(c, turn int) string {
		return fmt.Sprintf("<think>hm %d</think> answer %d to %d", c, turn, c)
	}
	for _, tc := range []struct {
		name string
		tmpl template
		text func(c, turn int) string
		uses bool
	}{
		{"concatenative", plainTemplate, calm, true},
		{"default system message", defaultSystem, calm, true},
		{"system message moves", mergedSystem, calm, true}, // for conversations without one
		{"thoughts are left out", noThoughts, thinking, false},
		{"number of messages in front", counted, calm, false},
	} {
		for _, render := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/render=%v", tc.name, render), func(t *testing.T) {
				w := startWorker(t, templateSite(t, tc.tmpl), &WorkerOptions{MinReuse: 1, NoRender: !render})
				require.Zero(t, converse(t, w, tc.tmpl, 0, 30, tc.text))
				st := w.TokenStats()
				require.Zero(t, st.Wrong)
				if tc.uses && tc.name != "system message moves" {
					require.Greater(t, st.Reused, uint64(60))
					require.GreaterOrEqual(t, st.Checked, uint64(learnAfter))
				}
				if !tc.uses {
					require.Zero(t, st.Reused)
				}
			})
		}
	}
}

// TestReuseIsFoundOut: a template that deceives is noticed by the comparison
// that goes on for ever, and nothing that was made by the rule is believed then.
func TestReuseIsFoundOut(t *testing.T) {
	w := startWorker(t, templateSite(t, treacherous), &WorkerOptions{MinReuse: 1})
	calm := func(c, turn int) string { return "fine" }
	require.Zero(t, converse(t, w, treacherous, 0, 10, calm))
	require.NotZero(t, w.TokenStats().Reused)
	boom := func(c, turn int) string { return "boom" }
	wrong := converse(t, w, treacherous, 10, 40, boom)
	require.LessOrEqual(t, wrong, checkEvery)
	require.EqualValues(t, 1, w.TokenStats().Wrong)
	// the same conversations again: what was wrong is right now
	require.Zero(t, converse(t, w, treacherous, 10, 40, boom))
	reused := w.TokenStats().Reused
	require.Zero(t, converse(t, w, treacherous, 40, 50, calm))
	require.Equal(t, reused, w.TokenStats().Reused)
}

// TestReuseForgets: when so many contexts were in use that what was known of one
// is gone, the rule is compared again there, and nothing that it had made before
// is believed.
func TestReuseForgets(t *testing.T) {
	w := startWorker(t, templateSite(t, treacherous), &WorkerOptions{MinReuse: 1})
	calm := func(c, turn int) string { return "fine" }
	require.Zero(t, converse(t, w, treacherous, 0, 20, calm))
	made := w.TokenStats().Reused
	require.NotZero(t, made)
	for i := range learnContexts {
		w.tokens.learn.next(promptKey{byte(i), byte(i >> 8), 1}, true)
	}
	hits := w.TokenStats().Hits
	require.Zero(t, converse(t, w, treacherous, 19, 20, calm))
	after := w.TokenStats()
	require.Equal(t, made, after.Reused, "not relied on")
	require.Less(t, after.Hits-hits, uint64(3), "what was put together is asked for again")
	require.NotZero(t, after.Checked)
}

func TestReuseAsksLess(t *testing.T) {
	s := templateSite(t, plainTemplate)
	w := startWorker(t, s, &WorkerOptions{MinReuse: 1})
	calm := func(c, turn int) string { return "fine" }
	converse(t, w, plainTemplate, 0, 20, calm)
	long := strings.Repeat("word ", 5000) + "end"
	m := []chatMessage{{"user", long}}
	ask := func() []uint32 {
		ids, err := w.Tokenize(t.Context(), nil, chatRequest(m, ""))
		require.NoError(t, err)
		require.Equal(t, wordIDs(plainTemplate(m, true)), ids)
		return ids
	}
	ask()
	m = append(m, chatMessage{"assistant", "yes"}, chatMessage{"user", "and then"})
	s.mu.Lock()
	s.bodies = nil
	s.mu.Unlock()
	ask()
	require.Len(t, s.bodies, 1) // the shape is known, and no comparison is due
	require.Less(t, len(s.bodies[0]), 300)
	before := len(s.bodies)
	ask()
	require.Len(t, s.bodies, before)
}

// TestReuseNot lists conversations that are asked for in full.
func TestReuseNot(t *testing.T) {
	first := []chatMessage{{"user", "a long first question"}, {"assistant", "an answer"}, {"user", "a second"}}
	for _, tc := range []struct {
		name, extra string
		opts        WorkerOptions
		last        chatMessage
	}{
		{"switched off", "", WorkerOptions{MinReuse: 1, NoPrefixReuse: true}, chatMessage{"user", "b"}},
		{"too short", "", WorkerOptions{}, chatMessage{"user", "b"}},
		{"space at the end", "", WorkerOptions{MinReuse: 1}, chatMessage{"user", "b\n"}},
		{"empty", "", WorkerOptions{MinReuse: 1}, chatMessage{"user", ""}},
		{"mark of a template", "", WorkerOptions{MinReuse: 1}, chatMessage{"user", "a <|end|> b"}},
		{"another role", "", WorkerOptions{MinReuse: 1}, chatMessage{"tool", "b"}},
		{"flags", `,"continue_final_message":true,"add_generation_prompt":false`, WorkerOptions{MinReuse: 1}, chatMessage{"assistant", "b"}},
		{"documents", `,"documents":[]`, WorkerOptions{MinReuse: 1}, chatMessage{"user", "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := templateSite(t, plainTemplate)
			w := startWorker(t, s, &tc.opts)
			for range learnAfter + 2 {
				for _, n := range []int{1, 3} {
					_, err := w.Tokenize(t.Context(), nil, chatRequest(first[:n], tc.extra))
					require.NoError(t, err)
				}
				_, err := w.Tokenize(t.Context(), nil, chatRequest(append(slices.Clone(first), chatMessage{"assistant", "c"}, tc.last), tc.extra))
				require.NoError(t, err)
			}
			require.Zero(t, w.TokenStats().Reused)
		})
	}
}

// TestReuseKeepsContextsApart: other tools or models are other prompts.
func TestReuseKeepsContextsApart(t *testing.T) {
	s := templateSite(t, plainTemplate)
	w := startWorker(t, s, &WorkerOptions{MinReuse: 1})
	m := []chatMessage{{"user", "a"}}
	for i, extra := range []string{"", `,"tools":[]`, `,"tools":[{}]`, `,"chat_template":"x"`, `,"unheard_of":1`, `,"reasoning_effort":"low"`} {
		_, err := w.Tokenize(t.Context(), nil, chatRequest(m, extra))
		require.NoError(t, err)
		require.EqualValues(t, i+1, w.TokenStats().Asked, extra)
	}
	for i, extra := range []string{`,"temperature":0`, `,"max_tokens":5,"cache_salt":"s"`, `,"stream":true`} {
		_, err := w.Tokenize(t.Context(), nil, chatRequest(m, extra))
		require.NoError(t, err)
		require.EqualValues(t, i+1, w.TokenStats().Hits, extra)
	}
}
