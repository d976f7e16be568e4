package openai

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// composer makes the OpenAI JSON of an answer whose chunks have no Raw. It is
// reused; of an answer that streams it keeps nothing but who has spoken.
type composer struct {
	on      bool
	chat    bool
	stream  bool
	ids     bool   // the client asked for return_token_ids
	head    []byte // an object up to its choices
	choices []composed
	size    int // bytes gathered
	limit   int
}

// composed is one choice of an answer.
type composed struct {
	spoken bool // a chunk of it came
	finish string
	text   []byte // these two only when the answer does not stream
	ids    []uint32
}

// begin prepares for the answer to req. created is in Unix seconds.
func (m *composer) begin(req *engine.Request, choices int, created int64, limit int) {
	m.on, m.chat, m.stream = true, req.API == engine.APIChat, req.Stream
	m.size, m.limit = 0, limit
	v, _, _ := jsonedit.Get(req.Body, "return_token_ids")
	m.ids = jsonedit.True(v)
	prefix, object := "cmpl-", "text_completion"
	switch {
	case m.chat && m.stream:
		prefix, object = "chatcmpl-", "chat.completion.chunk"
	case m.chat:
		prefix, object = "chatcmpl-", "chat.completion"
	}
	b := append(m.head[:0], `{"id":`...)
	b = jsonedit.AppendQuoted(b, prefix+req.ID)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = append(b, `,"model":`...)
	b = jsonedit.AppendQuoted(b, req.Model)
	m.head = append(b, `,"choices":[`...)

	m.choices = slices.Grow(m.choices[:0], choices)[:choices]
	for i := range m.choices {
		c := &m.choices[i]
		*c = composed{text: c.text[:0], ids: c.ids[:0]}
	}
}

// chunk takes one chunk. Of an answer that streams it appends the event to dst,
// unless the chunk says nothing. It reports whether it did.
func (m *composer) chunk(dst []byte, chunk *engine.Chunk) ([]byte, bool, error) {
	if chunk.Text == "" && chunk.Finish == "" && len(chunk.TokenIDs) == 0 {
		return dst, false, nil
	}
	if chunk.Choice < 0 {
		return dst, false, fmt.Errorf("%w: text or token ids without a choice", engine.ErrProtocol)
	}
	c := &m.choices[chunk.Choice]
	if c.finish != "" {
		return dst, false, fmt.Errorf("%w: choice %d goes on after its finish", engine.ErrProtocol, chunk.Choice)
	}
	first := !c.spoken
	c.spoken, c.finish = true, chunk.Finish
	if !m.stream {
		return dst, false, m.gather(c, chunk)
	}
	dst = append(append(dst, "data: "...), m.head...)
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(chunk.Choice), 10)
	if m.chat {
		dst = append(dst, `,"delta":{`...)
		if first {
			dst = append(dst, `"role":"assistant"`...)
		}
		if chunk.Text != "" {
			if first {
				dst = append(dst, ',')
			}
			dst = jsonedit.AppendQuoted(append(dst, `"content":`...), chunk.Text)
		}
		dst = append(dst, '}')
	} else {
		dst = jsonedit.AppendQuoted(append(dst, `,"text":`...), chunk.Text)
	}
	dst = m.appendEnd(dst, chunk.Finish, chunk.TokenIDs)
	return append(dst, "]}\n\n"...), true, nil
}

// gather keeps a chunk for the whole answer.
func (m *composer) gather(c *composed, chunk *engine.Chunk) error {
	m.size += len(chunk.Text)
	if m.ids {
		m.size += 4 * len(chunk.TokenIDs)
	}
	if m.size > m.limit {
		return fmt.Errorf("%w: answer exceeds MaxAnswer of %d bytes", engine.ErrProtocol, m.limit)
	}
	c.text = append(c.text, chunk.Text...)
	if m.ids {
		c.ids = append(c.ids, chunk.TokenIDs...)
	}
	return nil
}

// appendEnd appends what both APIs close a choice with.
func (m *composer) appendEnd(dst []byte, finish string, ids []uint32) []byte {
	dst = append(dst, `,"finish_reason":`...)
	if finish == "" {
		dst = append(dst, "null"...)
	} else {
		dst = jsonedit.AppendQuoted(dst, finish)
	}
	if m.ids {
		dst = append(dst, `,"token_ids":[`...)
		for i, id := range ids {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendUint(dst, uint64(id), 10)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// appendUsageEvent appends the event that closes a stream whose client asked
// for usage.
func (m *composer) appendUsageEvent(dst []byte, u *engine.Usage) []byte {
	dst = append(append(dst, "data: "...), m.head...)
	dst = appendUsage(append(dst, `],"usage":`...), u)
	return append(dst, "}\n\n"...)
}

// appendWhole appends the answer that does not stream. u is nil when unknown.
func (m *composer) appendWhole(dst []byte, u *engine.Usage) []byte {
	dst = append(dst, m.head...)
	for i := range m.choices {
		c := &m.choices[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		if m.chat {
			dst = append(dst, `,"message":{"role":"assistant","content":`...)
			dst = append(jsonedit.AppendQuoted(dst, string(c.text)), '}')
		} else {
			dst = jsonedit.AppendQuoted(append(dst, `,"text":`...), string(c.text))
		}
		dst = m.appendEnd(dst, c.finish, c.ids)
	}
	dst = append(dst, `],"usage":`...)
	if u == nil {
		dst = append(dst, "null"...)
	} else {
		dst = appendUsage(dst, u)
	}
	return append(dst, '}')
}

func appendUsage(dst []byte, u *engine.Usage) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Prompt), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Prompt)+int64(u.Completion), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Completion), 10)
	if u.Cached >= 0 {
		dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
		dst = append(strconv.AppendInt(dst, int64(u.Cached), 10), '}')
	}
	return append(dst, '}')
}

// release ends the use for one answer and lets large memory go.
func (m *composer) release() {
	m.on = false
	if m.size > keepBuffer || cap(m.choices) > keepChoices {
		m.choices = nil
	}
	if cap(m.head) > keepBuffer {
		m.head = nil
	}
}

// keepChoices is the most choices whose memory a pooled call keeps.
const keepChoices = 64
