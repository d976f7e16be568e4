package vllm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"lukechampine.com/blake3"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// ErrNoTokens says that the token ids of a prompt cannot be told exactly. The
// request itself may be fine: route it without them.
var ErrNoTokens = errors.New("vllm: token ids of the prompt are not known")

// A prompt is what a request's token ids depend on.
type prompt struct {
	chat     bool
	model    []byte   // raw JSON
	text     []byte   // raw JSON string of a completion's prompt
	ids      []byte   // or its raw array of ids
	messages [][]byte // raw JSON of each message of a chat
	pass     []byte   // fields that /tokenize takes as they are, as `,"name":value`
	inexact  string   // a field that matters and that /tokenize does not take
	flags    bool     // fields that change how a chat's end is rendered
	context  promptKey
	key      promptKey
	chain    []promptKey // of a chat: chain[i] is the key of the first i messages
}

// parsePrompt reads a request. The result aliases its body.
func parsePrompt(req *engine.Request) (*prompt, error) {
	p := &prompt{chat: req.API == engine.APIChat}
	// The context is the digest of all but the prompt. Fields are left out only
	// when they are known not to matter: an unknown one costs a hit, not a fault.
	h := blake3.New(32, nil)
	name := "completions"
	if p.chat {
		name = "chat"
	}
	field(h, []byte(name))
	var messages, body []byte
	truncated := false
	f := jsonedit.Object(req.Body)
	for f.Next() {
		key := f.Key
		if bytes.IndexByte(key, '\\') >= 0 {
			key = jsonedit.AppendName(nil, key)
		}
		switch string(key) {
		case "model":
			p.model = f.Value
			continue
		case "messages":
			if p.chat {
				messages = f.Value
				continue
			}
		case "prompt":
			if !p.chat {
				body = f.Value
				continue
			}
		case "truncate_prompt_tokens":
			truncated = truncated || jsonedit.KindOf(f.Value) != jsonedit.Null
		}
		if idle(key) {
			continue
		}
		if jsonedit.KindOf(f.Value) != jsonedit.Null {
			p.note(key, f.Value)
		}
		field(h, key)
		field(h, f.Value)
	}
	if err := f.Err(); err != nil {
		return nil, fmt.Errorf("%w: body: %w", ErrNoTokens, err)
	}
	if p.model == nil {
		return nil, fmt.Errorf("%w: no model in the body", ErrNoTokens)
	}
	field(h, p.model)
	if truncated { // then the room for the answer matters too
		field(h, req.Body)
	}
	h.Sum(p.context[:0])
	if p.chat {
		return p, p.setMessages(messages)
	}
	return p, p.setBody(body)
}

// note sorts a field that matters.
func (p *prompt) note(key, value []byte) {
	switch string(key) {
	case "add_special_tokens":
	case "add_generation_prompt", "continue_final_message":
		p.flags = true
	case "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "tools":
	case "truncate_prompt_tokens", "truncation_side", "documents", "reasoning_effort", "prompt_embeds", "suffix":
		p.inexact = string(key)
		return
	default: // not known, and vLLM ignores what it does not know
		return
	}
	if !p.chat && string(key) != "add_special_tokens" {
		return
	}
	p.pass = append(p.pass, `,"`...)
	p.pass = append(p.pass, key...)
	p.pass = append(p.pass, `":`...)
	p.pass = append(p.pass, value...)
}

// idle says whether a field has no influence on the prompt's ids.
func idle(key []byte) bool {
	switch string(key) {
	case "stream", "stream_options", "stream_interval", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "temperature",
		"top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "user", "logprobs", "top_logprobs",
		"prompt_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "use_beam_search",
		"cache_salt", "priority", "metadata", "store", "return_token_ids", "return_tokens_as_token_ids", "skip_special_tokens",
		"spaces_between_special_tokens", "session_id", "request_id", "vllm_xargs", "service_tier", "parallel_tool_calls", "echo", "bad_words":
		return true
	}
	return false
}

// field adds a length-prefixed piece to a digest.
func field(h *blake3.Hasher, b []byte) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(b)
}

func (p *prompt) setBody(v []byte) error {
	if jsonedit.KindOf(v) == jsonedit.ArrayKind {
		// ids, or a list of prompts of which there must be one
		e := jsonedit.Array(v)
		if e.Next() && jsonedit.KindOf(e.Value) != jsonedit.Number {
			v = e.Value
			if e.Next() {
				return fmt.Errorf("%w: more than one prompt", ErrNoTokens)
			}
		}
	}
	switch jsonedit.KindOf(v) {
	case jsonedit.String:
		p.text = v
	case jsonedit.ArrayKind:
		p.ids = v
	default:
		return fmt.Errorf("%w: no prompt in the body", ErrNoTokens)
	}
	p.key = link(p.context, v)
	return nil
}

func (p *prompt) setMessages(v []byte) error {
	e := jsonedit.Array(v)
	p.chain = append(p.chain, p.context)
	for e.Next() {
		p.messages = append(p.messages, e.Value)
		p.chain = append(p.chain, link(p.chain[len(p.chain)-1], e.Value))
	}
	if err := e.Err(); err != nil || len(p.messages) == 0 {
		return fmt.Errorf("%w: no messages in the body", ErrNoTokens)
	}
	p.key = p.chain[len(p.messages)]
	return nil
}

// link makes the key of what k names followed by b.
func link(k promptKey, b []byte) promptKey {
	h := blake3.New(32, nil)
	_, _ = h.Write(k[:])
	_, _ = h.Write(b)
	h.Sum(k[:0])
	return k
}

// hasMedia says whether a message holds anything but text.
func hasMedia(message []byte) bool {
	content, ok, err := jsonedit.Get(message, "content")
	if err != nil || !ok || jsonedit.KindOf(content) != jsonedit.ArrayKind {
		return err != nil
	}
	e := jsonedit.Array(content)
	for e.Next() {
		if jsonedit.KindOf(e.Value) == jsonedit.String {
			continue
		}
		kind, _, _ := jsonedit.Get(e.Value, "type")
		if text, _ := jsonedit.Text(kind); text != "text" {
			return true
		}
	}
	return e.Err() != nil
}
