package sim

import (
	"bytes"
	"math"
	"strconv"

	"github.com/stator-go/stator/internal/jsonedit"
)

// A choice turns the tokens of one sequence into text and chunks. It belongs to
// the request's goroutine.
type choice struct {
	index int
	text  []byte // everything so far, an echoed prompt first
	base  int    // length of the echoed prompt
	sent  int    // bytes of text already in chunks
	count int    // tokens

	ids      []uint32 // of all tokens, or those not in a chunk yet when streaming
	logprobs []tokenProb
	finish   string
	reason   []byte // stop_reason as JSON, nil is null
	begun    bool   // the first chunk is out
}

// A tokenProb is one token's entry of logprobs.
type tokenProb struct {
	start, end int // its text
	value      float64
}

// feed takes the next token and tells whether it ended the choice: the model's
// end token, a stop token or a stop string.
func (h *choice) feed(tok *Tokenizer, a *ask, id uint32) bool {
	start := len(h.text)
	h.count++
	h.ids = append(h.ids, id)
	if id != EOS {
		h.text = tok.AppendWord(append(h.text, ' '), id)
	}
	if a.logprobs {
		h.logprobs = append(h.logprobs, tokenProb{start, len(h.text), logprob(id, h.count)})
	}
	for _, stop := range a.stopIDs {
		if id == stop {
			h.text = h.text[:start]
			h.finish, h.reason = finishStop, strconv.AppendUint(nil, uint64(id), 10)
			return true
		}
	}
	for _, stop := range a.stop {
		// The string may have begun in earlier tokens.
		from := max(h.base, start-len(stop)+1)
		if i := bytes.Index(h.text[from:], []byte(stop)); i >= 0 {
			end := from + i
			if a.keepStop {
				end += len(stop)
			}
			h.text = h.text[:end]
			h.finish, h.reason = finishStop, jsonedit.AppendQuoted(nil, stop)
			return true
		}
	}
	return false
}

// logprob is a made-up log-probability, the same for the same token at the same
// place.
func logprob(id uint32, place int) float64 {
	return -math.Ldexp(float64(mix64(uint64(id)<<32|uint64(place))>>40)+1, -24)
}

// ready is the text that can be sent: all of it at the end, before that what no
// stop string can still take away.
func (h *choice) ready(a *ask) []byte {
	end := len(h.text)
	if h.finish == "" && !a.keepStop {
		for _, stop := range a.stop {
			end = min(end, len(h.text)-len(stop)+1)
		}
	}
	end = max(end, h.sent)
	b := h.text[h.sent:end]
	h.sent = end
	return b
}

// form holds the constant parts of an answer.
type form struct {
	ask  *ask
	head []byte // {"id":…,"object":…,"created":…,"model":…,"choices":[
	mark []byte // ,"system_fingerprint":…
}

func newForm(c *call, created int64) form {
	object := "text_completion"
	if c.ask.chat {
		object = "chat.completion"
		if c.ask.stream {
			object = "chat.completion.chunk"
		}
	}
	b := jsonedit.AppendQuoted([]byte(`{"id":`), c.id)
	b = append(b, `,"object":"`+object+`","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = jsonedit.AppendQuoted(append(b, `,"model":`...), c.ask.model)
	b = append(b, `,"choices":[`...)
	return form{ask: c.ask, head: b, mark: []byte(`,"system_fingerprint":"` + fingerprint + `"`)}
}

const fingerprint = "vllm-" + version + "-00000000"

// version is the release whose habits the simulator has.
const version = "0.32.0"

func (f *form) open(b []byte) []byte { return append(append(b, "data: "...), f.head...) }

// appendRole appends a chat's first chunk of a choice.
func (f *form) appendRole(b []byte, h *choice, prompt []uint32) []byte {
	b = f.open(b)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(h.index), 10)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":`...)
	b = f.appendIDs(b, prompt)
	return append(b, `,"prompt_text":null}`+"\n\n"...)
}

// appendChunk appends a chunk with what a choice has ready. last says that it is
// the last one of the stream but for usage.
func (f *form) appendChunk(b []byte, h *choice, prompt []uint32, last bool) []byte {
	text := h.ready(f.ask)
	b = f.open(b)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(h.index), 10)
	if f.ask.chat {
		b = append(b, `,"delta":{"content":`...)
		b = appendJSON(b, text)
		b = append(b, `},"logprobs":`...)
	} else {
		b = append(b, `,"text":`...)
		b = appendJSON(b, text)
		b = append(b, `,"logprobs":`...)
	}
	b = f.appendLogprobs(b, h)
	b = append(b, `,"finish_reason":`...)
	b = appendWord(b, h.finish)
	if !f.ask.chat || h.finish != "" {
		b = append(b, `,"stop_reason":`...)
		b = appendRaw(b, h.reason)
	}
	if !f.ask.chat {
		b = append(b, `,"prompt_token_ids":`...)
		if h.begun {
			prompt = nil
		}
		b = f.appendIDs(b, prompt)
	}
	b = append(b, `,"token_ids":`...)
	if f.ask.returnIDs && h.ids == nil {
		b = append(b, `[]`...)
	} else {
		b = f.appendIDs(b, h.ids)
	}
	b = append(b, `}]`...)
	h.begun, h.ids, h.logprobs = true, h.ids[:0], h.logprobs[:0]
	if last && !f.ask.usage {
		b = append(b, f.mark...)
	}
	return b // the caller adds usage and closes
}

// appendIDs appends a list of ids if the request asked for ids, else null.
func (f *form) appendIDs(b []byte, ids []uint32) []byte {
	if ids == nil || !f.ask.returnIDs {
		return append(b, `null`...)
	}
	return appendNumbers(b, ids)
}

func (f *form) appendLogprobs(b []byte, h *choice) []byte {
	if !f.ask.logprobs {
		return append(b, `null`...)
	}
	if !f.ask.chat {
		return f.appendOldLogprobs(b, h)
	}
	b = append(b, `{"content":[`...)
	for i, p := range h.logprobs {
		if i > 0 {
			b = append(b, ',')
		}
		entry := appendJSON([]byte(`"token":`), h.piece(p))
		entry = append(entry, `,"logprob":`...)
		entry = strconv.AppendFloat(entry, p.value, 'g', -1, 64)
		entry = append(entry, `,"bytes":[`...)
		for j, c := range h.piece(p) {
			if j > 0 {
				entry = append(entry, ',')
			}
			entry = strconv.AppendUint(entry, uint64(c), 10)
		}
		entry = append(entry, ']')
		b = append(append(append(b, '{'), entry...), `,"top_logprobs":[{`...)
		b = append(append(b, entry...), `}]}`...)
	}
	return append(b, `]}`...)
}

// appendOldLogprobs writes the form of completions, with lists side by side.
func (f *form) appendOldLogprobs(b []byte, h *choice) []byte {
	list := func(name string, each func(tokenProb)) {
		b = append(append(append(b, '"'), name...), `":[`...)
		for i, p := range h.logprobs {
			if i > 0 {
				b = append(b, ',')
			}
			each(p)
		}
		b = append(b, ']')
	}
	b = append(b, '{')
	list("text_offset", func(p tokenProb) { b = strconv.AppendInt(b, int64(p.start-h.base), 10) })
	b = append(b, ',')
	list("token_logprobs", func(p tokenProb) { b = strconv.AppendFloat(b, p.value, 'g', -1, 64) })
	b = append(b, ',')
	list("tokens", func(p tokenProb) { b = appendJSON(b, h.piece(p)) })
	b = append(b, ',')
	list("top_logprobs", func(p tokenProb) {
		b = appendJSON(append(b, '{'), h.piece(p))
		b = strconv.AppendFloat(append(b, ':'), p.value, 'g', -1, 64)
		b = append(b, '}')
	})
	return append(b, '}')
}

// piece is a token's text, less what a stop string cut off.
func (h *choice) piece(p tokenProb) []byte {
	return h.text[min(p.start, len(h.text)):min(p.end, len(h.text))]
}

// appendWhole appends a choice of an answer that is not streamed.
func (f *form) appendWhole(b []byte, h *choice, prompt []uint32) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(h.index), 10)
	if f.ask.chat {
		b = append(b, `,"message":{"role":"assistant","content":`...)
		b = appendJSON(b, h.text)
		b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":`...)
	} else {
		b = append(b, `,"text":`...)
		b = appendJSON(b, h.text)
		b = append(b, `,"logprobs":`...)
	}
	b = f.appendLogprobs(b, h)
	b = append(b, `,"finish_reason":`...)
	b = appendWord(b, h.finish)
	b = append(b, `,"stop_reason":`...)
	b = appendRaw(b, h.reason)
	b = append(b, `,"token_ids":`...)
	if f.ask.returnIDs && h.ids == nil {
		b = append(b, `[]`...)
	} else {
		b = f.appendIDs(b, h.ids)
	}
	if !f.ask.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
		b = f.appendIDs(b, prompt)
	}
	return append(b, `,"routed_experts":null}`...)
}

// usage is what an answer says about its cost.
type usage struct{ prompt, output, cached, stored int }

func (u usage) appendCounts(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), int64(u.prompt), 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), int64(u.prompt+u.output), 10)
	return strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(u.output), 10)
}

// appendDetails appends the usage with the cached tokens.
func (u usage) appendDetails(b []byte, chat, whole bool) []byte {
	b = u.appendCounts(b)
	b = strconv.AppendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), int64(u.cached), 10)
	switch {
	case chat:
		b = strconv.AppendInt(append(b, `,"created_cache_tokens":`...), int64(u.stored), 10)
	case whole:
		b = append(b, `,"created_cache_tokens":null`...)
	}
	if whole {
		return append(b, `,"multimodal_tokens":null},"completion_tokens_details":null}`...)
	}
	return append(b, `}}`...)
}

func appendWord(b []byte, s string) []byte {
	if s == "" {
		return append(b, `null`...)
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendRaw(b, raw []byte) []byte {
	if raw == nil {
		return append(b, `null`...)
	}
	return append(b, raw...)
}

// appendJSON appends a string. Words are mostly plain; the rest is left to the
// general way.
func appendJSON(b, s []byte) []byte {
	for _, c := range s {
		if c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			return jsonedit.AppendQuoted(b, string(s))
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
