package openai

import (
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// Limits bound what one request may ask for.
type Limits struct {
	// MaxChoices bounds n times the number of prompts. 0 means 1024.
	MaxChoices int
}

// ParseRequest reads a client's body into a request: the fields of
// engine.Request that the body determines, the token ids of a prompt that is
// one array of them, and Body without the fields that clients may not set.
// Fields that it does not know it does not judge. Rank is -1. req.Body is body
// itself when nothing was taken out; req.Tokens reuses its capacity. An error
// is an [*engine.Error] of status 400 that names the field.
func ParseRequest(req *engine.Request, api engine.API, body []byte, lim Limits) error {
	_, err := parseRequest(req, api, body, lim)
	return err
}

// parseRequest also reports whether fields were taken out.
func parseRequest(req *engine.Request, api engine.API, body []byte, lim Limits) (stripped bool, err error) {
	if lim.MaxChoices == 0 {
		lim.MaxChoices = 1024
	}
	tokens := req.Tokens[:0]
	*req = engine.Request{API: api, N: 1, Prompts: 1, Rank: -1, Body: body}
	p := bodyFields{req: req, tokens: tokens}
	f := jsonedit.Object(body)
	for f.Next() {
		if suspect(f.Key, f.Value, 0) {
			p.stripped = true
		}
		if err := p.field(&f); err != nil {
			return false, err
		}
	}
	if err := f.Err(); err != nil {
		var s *jsonedit.SyntaxError
		if errors.As(err, &s) {
			return false, badRequest("", "body is not a JSON object: %s at offset %d", s.Msg, s.Offset)
		}
		return false, badRequest("", "body is not a JSON object")
	}
	if err := p.check(lim); err != nil {
		return false, err
	}
	if p.stripped {
		if req.Body, err = strip(nil, body, 0); err != nil {
			return false, badRequest("", "body cannot be edited: %v", err)
		}
	}
	return p.stripped, nil
}

// badRequest is the error of a faulty field, in OpenAI's terms.
func badRequest(param, format string, args ...any) *engine.Error {
	return &engine.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: param, Message: fmt.Sprintf(format, args...)}
}

// bodyFields collects what the members of a body say. A later member of the
// same name replaces an earlier one, as engines do.
type bodyFields struct {
	req      *engine.Request
	tokens   []uint32
	stripped bool

	prompt, messages, embeds, options []byte
	maxTokens, maxCompletion          int
	session                           string
}

func (p *bodyFields) field(f *jsonedit.Fields) error {
	req, v := p.req, f.Value
	null := jsonedit.KindOf(v) == jsonedit.Null
	key := f.Key
	var buf [160]byte
	for _, c := range key {
		if c == '\\' && len(key) <= len(buf) {
			key = jsonedit.AppendName(buf[:0], key)
			break
		}
	}
	switch string(key) {
	case "model":
		s, ok := jsonedit.Text(v)
		if !ok {
			return badRequest("model", "model must be a string")
		}
		if len(s) > maxName {
			return badRequest("model", "model exceeds the limit of %d bytes", maxName)
		}
		req.Model = s
	case "prompt":
		p.prompt = unlessNull(v, null)
	case "messages":
		p.messages = unlessNull(v, null)
	case "prompt_embeds":
		p.embeds = unlessNull(v, null)
	case "stream_options":
		p.options = unlessNull(v, null)
	case "stream":
		return setBool(&req.Stream, "stream", v, null)
	case "n":
		return setCount(&req.N, "n", v, null)
	case "max_tokens":
		p.maxTokens = 0
		setInt(&p.maxTokens, v)
	case "max_completion_tokens":
		p.maxCompletion = 0
		setInt(&p.maxCompletion, v)
	case "cache_salt":
		s, ok := jsonedit.Text(v)
		if !ok && !null {
			return badRequest("cache_salt", "cache_salt must be a string")
		}
		if len(s) > maxName {
			return badRequest("cache_salt", "cache_salt exceeds the limit of %d bytes", maxName)
		}
		req.Salt = s
	case "prompt_cache_key":
		p.session, _ = jsonedit.Text(v)
		p.session = session(p.session)
	case "priority":
		// vLLM: smaller is earlier.
		x, _ := jsonedit.Int(v)
		req.Priority = int(-min(max(x, -math.MaxInt32), math.MaxInt32))
	}
	return nil
}

// maxName bounds, in bytes, the names that a request may give: whoever keeps
// state by model, salt or session keeps them. vLLM takes salts of 128 characters.
const maxName = 1024

// session is a client's name for its session, "" when it is too long to be kept.
func session(name string) string {
	if len(name) > maxName {
		return ""
	}
	return name
}

func unlessNull(v []byte, null bool) []byte {
	if null {
		return nil
	}
	return v
}

func setBool(dst *bool, name string, v []byte, null bool) error {
	if !null && jsonedit.KindOf(v) != jsonedit.Bool {
		return badRequest(name, "%s must be true or false", name)
	}
	*dst = jsonedit.True(v)
	return nil
}

func setCount(dst *int, name string, v []byte, null bool) error {
	*dst = 1
	if null {
		return nil
	}
	x, ok := jsonedit.Int(v)
	if !ok || x < 1 || x > math.MaxInt32 {
		return badRequest(name, "%s must be an integer of at least 1", name)
	}
	*dst = int(x)
	return nil
}

// check judges the fields together.
func (p *bodyFields) check(lim Limits) error {
	req := p.req
	req.MaxTokens, req.Session = p.maxTokens, p.session
	if req.Model == "" {
		return badRequest("model", "model is required")
	}
	if p.options != nil {
		if !req.Stream {
			return badRequest("stream_options", "stream_options can only be set when stream is true")
		}
		if err := p.streamOptions(); err != nil {
			return err
		}
	}
	switch req.API {
	case engine.APIChat:
		if p.maxCompletion > 0 {
			req.MaxTokens = p.maxCompletion
		}
		if jsonedit.KindOf(p.messages) != jsonedit.ArrayKind {
			return badRequest("messages", "messages is required and must be an array")
		}
		if e := jsonedit.Array(p.messages); !e.Next() {
			return badRequest("messages", "messages must not be empty")
		}
	case engine.APICompletions:
		if err := p.prompts(); err != nil {
			return err
		}
	}
	if req.N > lim.MaxChoices || req.Prompts > lim.MaxChoices || req.N*req.Prompts > lim.MaxChoices {
		return badRequest("n", "n times the number of prompts is %d, the limit is %d", req.N*req.Prompts, lim.MaxChoices)
	}
	return nil
}

func (p *bodyFields) streamOptions() error {
	if jsonedit.KindOf(p.options) != jsonedit.ObjectKind {
		return badRequest("stream_options", "stream_options must be an object")
	}
	f := jsonedit.Object(p.options)
	for f.Next() {
		if f.Is("include_usage") {
			null := jsonedit.KindOf(f.Value) == jsonedit.Null
			if err := setBool(&p.req.IncludeUsage, "stream_options.include_usage", f.Value, null); err != nil {
				return err
			}
		}
	}
	return nil
}

// prompts counts the prompts of a completions request, and takes the ids of a
// single one.
func (p *bodyFields) prompts() error {
	kind := jsonedit.KindOf(p.prompt)
	switch {
	case kind == jsonedit.String:
		return nil
	case p.prompt == nil && p.embeds != nil:
		if jsonedit.KindOf(p.embeds) == jsonedit.ArrayKind {
			return p.count(p.embeds, "prompt_embeds")
		}
		return nil
	case p.prompt == nil:
		return badRequest("prompt", "prompt is required")
	case kind != jsonedit.ArrayKind:
		return badRequest("prompt", "prompt must be a string, an array of strings, an array of token ids or an array of such arrays")
	}
	e := jsonedit.Array(p.prompt)
	if !e.Next() {
		return badRequest("prompt", "prompt must not be empty")
	}
	switch first := e.Value; jsonedit.KindOf(first) {
	case jsonedit.Number:
		return p.ids(p.prompt)
	case jsonedit.String:
		return p.count(p.prompt, "prompt")
	case jsonedit.ArrayKind:
		if err := p.count(p.prompt, "prompt"); err != nil || p.req.Prompts > 1 {
			return err
		}
		return p.ids(first)
	}
	return badRequest("prompt", "prompt must hold strings, token ids or arrays of token ids")
}

// count sets the number of prompts, which must all be of one kind.
func (p *bodyFields) count(v []byte, name string) error {
	n, kind := 0, jsonedit.Invalid
	e := jsonedit.Array(v)
	for e.Next() {
		k := jsonedit.KindOf(e.Value)
		if n++; n > 1 && k != kind {
			return badRequest(name, "%s mixes kinds: element %d differs from the first", name, n-1)
		}
		kind = k
	}
	p.req.Prompts = max(n, 1)
	return nil
}

func (p *bodyFields) ids(v []byte) error {
	ids, err := jsonedit.AppendUint32s(p.tokens, v)
	var s *jsonedit.SyntaxError
	if errors.As(err, &s) {
		return badRequest("prompt", "prompt: %s at offset %d of the array", s.Msg, s.Offset)
	}
	if len(ids) == 0 {
		return badRequest("prompt", "prompt must not be empty")
	}
	p.req.Tokens = ids
	return nil
}
