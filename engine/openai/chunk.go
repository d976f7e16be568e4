package openai

import (
	"bytes"
	"fmt"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// maxChoices bounds the choices of one answer, and so the memory that a
// confused engine can make us spend. vLLM's own limit for n is the same.
const maxChoices = 16384

// parser reads an engine's answer objects: stream events and whole bodies, of
// completions and of chat. It is reused, and what it returns is valid until the
// next call.
type parser struct {
	text bool // decode Chunk.Text

	choices jsonedit.Elements
	some    bool // the event has a list of choices that is not empty
	usage   engine.Usage
	hasUse  bool
	failure *engine.Error

	ids []uint32

	at   int // where the list of choices begins in the event's data
	read int // choices read of the event
	like template
}

// forget drops what was learned of a stream's events: another one begins.
func (p *parser) forget() { p.like.data = p.like.data[:0] }

// begin takes an event apart. It returns an error only when the event is not a
// JSON object; an error object is left in p.failure.
func (p *parser) begin(data []byte) error {
	p.some, p.hasUse, p.failure, p.read = false, false, nil, 0
	p.choices = jsonedit.Elements{}
	f := jsonedit.Object(data)
	flat := false // {"object":"error", …}
	for f.Next() {
		switch string(f.Key) {
		case "choices":
			if jsonedit.KindOf(f.Value) == jsonedit.ArrayKind {
				p.choices, p.at = jsonedit.Array(f.Value), f.ValueStart
				p.some = len(f.Value) > 2
			}
		case "usage":
			p.hasUse = readUsage(&p.usage, f.Value)
		case "error":
			if k := jsonedit.KindOf(f.Value); k == jsonedit.ObjectKind || k == jsonedit.String {
				p.failure = readError(f.Value)
			}
		case "object":
			flat = string(f.Value) == `"error"`
		}
	}
	if err := f.Err(); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrProtocol, err)
	}
	if flat && p.failure == nil {
		p.failure = readError(data)
	}
	return nil
}

// next reads the next choice of the event into c, leaving c.Raw and c.Usage
// alone. It returns false when there is none.
func (p *parser) next(c *engine.Chunk) (bool, error) {
	if !p.some || !p.choices.Next() {
		if err := p.choices.Err(); p.some && err != nil {
			return false, fmt.Errorf("%w: %w", engine.ErrProtocol, err)
		}
		return false, nil
	}
	c.Choice, c.Text, c.TokenIDs, c.Tokens, c.Finish = 0, "", nil, 0, ""
	said := false // something that must have cost a token
	base := p.at + p.choices.Start
	p.read++
	p.like.n, p.like.said = 0, false
	f := jsonedit.Object(p.choices.Value)
	for f.Next() {
		switch string(f.Key) {
		case "index":
			i, ok := jsonedit.Int(f.Value)
			if !ok || i < 0 || i >= maxChoices {
				return false, fmt.Errorf("%w: choice index %.20s", engine.ErrProtocol, f.Value)
			}
			c.Choice = int(i)
			p.like.mark(holeIndex, base+f.ValueStart, base+f.End)
		case "text":
			said = p.says(c, f.Value) || said
			p.stringHole(holeText, &f, base)
		case "delta", "message":
			if jsonedit.KindOf(f.Value) == jsonedit.ObjectKind {
				said = p.delta(c, f.Value, base+f.ValueStart) || said
			}
		case "token_ids":
			if jsonedit.KindOf(f.Value) == jsonedit.ArrayKind {
				var err error
				if p.ids, err = jsonedit.AppendUint32s(p.ids[:0], f.Value); err != nil {
					return false, fmt.Errorf("%w: token_ids: %w", engine.ErrProtocol, err)
				}
				c.TokenIDs = p.ids
				if len(p.ids) > 0 {
					p.like.mark(holeIDs, base+f.ValueStart, base+f.End)
				} else {
					p.like.n = maxHoles + 1 // no template: [] is not worth its rules
				}
			}
		case "finish_reason":
			c.Finish = reason(f.Value)
		}
	}
	if err := f.Err(); err != nil {
		return false, fmt.Errorf("%w: choice: %w", engine.ErrProtocol, err)
	}
	switch {
	case c.TokenIDs != nil:
		c.Tokens = len(c.TokenIDs)
	case said:
		c.Tokens = 1
	}
	return true, nil
}

// says takes a text value, and reports whether there is any.
func (p *parser) says(c *engine.Chunk, v []byte) bool {
	if len(v) <= 2 || v[0] != '"' {
		return false
	}
	if p.text {
		c.Text, _ = jsonedit.Text(v)
	}
	return true
}

// delta reads a chat message or a piece of one, which begins at base of the
// event's data.
func (p *parser) delta(c *engine.Chunk, v []byte, base int) (said bool) {
	f := jsonedit.Object(v)
	for f.Next() {
		switch string(f.Key) {
		case "content":
			said = p.says(c, f.Value) || said
			p.stringHole(holeText, &f, base)
		case "reasoning", "reasoning_content", "refusal":
			said = len(f.Value) > 2 && f.Value[0] == '"' || said
			p.stringHole(holeSaid, &f, base)
		case "tool_calls", "function_call":
			// Not [], {} or null.
			k := jsonedit.KindOf(f.Value)
			if len(f.Value) > 2 && (k == jsonedit.ArrayKind || k == jsonedit.ObjectKind) {
				said, p.like.said = true, true
			}
		}
	}
	return said
}

// reason is a finish reason, without allocating for the usual ones.
func reason(v []byte) string {
	switch string(v) {
	case "null":
		return ""
	case `"stop"`:
		return "stop"
	case `"length"`:
		return "length"
	case `"tool_calls"`:
		return "tool_calls"
	case `"abort"`:
		return "abort"
	}
	s, _ := jsonedit.Text(v)
	return s
}

// failed reports whether a finish reason means that the engine gave up.
func failed(finish string) bool { return finish == "abort" || finish == "error" }

func readUsage(u *engine.Usage, v []byte) bool {
	if jsonedit.KindOf(v) != jsonedit.ObjectKind {
		return false
	}
	*u = engine.Usage{Cached: -1}
	f := jsonedit.Object(v)
	for f.Next() {
		switch string(f.Key) {
		case "prompt_tokens":
			setInt(&u.Prompt, f.Value)
		case "completion_tokens":
			setInt(&u.Completion, f.Value)
		case "prompt_tokens_details":
			if jsonedit.KindOf(f.Value) != jsonedit.ObjectKind {
				continue
			}
			d := jsonedit.Object(f.Value)
			for d.Next() {
				if string(d.Key) == "cached_tokens" {
					setInt(&u.Cached, d.Value)
				}
			}
		}
	}
	return true
}

func setInt(dst *int, v []byte) {
	if x, ok := jsonedit.Int(v); ok && x >= 0 && x <= 1<<31-1 {
		*dst = int(x)
	}
}

// maxErrorBody bounds what is kept of an engine's error answer.
const maxErrorBody = 64 << 10

// readError reads an error object in any of its forms: OpenAI's
// {"error":{…}} or its inside, SGLang's flat {"object":"error",…}, a bare
// string, the {"detail":…} of vLLM's framework. Anything else leaves the
// message empty. The status is the code, if that is one, and 500 otherwise.
func readError(v []byte) *engine.Error {
	e := &engine.Error{Status: 500, Body: bytes.Clone(v[:min(len(v), maxErrorBody)])}
	fillError(e, v)
	return e
}

func fillError(e *engine.Error, v []byte) {
	if s, ok := jsonedit.Text(v); ok {
		e.Message = s
		return
	}
	f := jsonedit.Object(v)
	for f.Next() {
		switch string(f.Key) {
		case "error":
			if k := jsonedit.KindOf(f.Value); k == jsonedit.ObjectKind || k == jsonedit.String {
				fillError(e, f.Value)
				return
			}
		case "message", "detail":
			if s, ok := jsonedit.Text(f.Value); ok {
				e.Message = s
			} else if string(f.Key) == "detail" {
				e.Message = string(f.Value)
			}
		case "type":
			e.Type, _ = jsonedit.Text(f.Value)
		case "param":
			e.Param, _ = jsonedit.Text(f.Value)
		case "code":
			if string(f.Value) == "null" {
				continue
			}
			e.Code = bytes.Clone(f.Value)
			if x, ok := jsonedit.Int(f.Value); ok && x >= 400 && x <= 599 {
				e.Status = int(x)
			}
		}
	}
}
