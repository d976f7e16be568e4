package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-go/stator/internal/jsonedit"
)

// An ask is a completion or chat request as the simulator understands it.
type ask struct {
	chat     bool
	model    string
	adapter  Adapter
	prompts  [][]uint32
	texts    []string  // of the prompts, where they were text
	messages []Message // of a chat
	answer   bool      // add_generation_prompt
	maxLen   int       // the model's context

	n, max                int // choices a prompt; output tokens, 0 = not said
	stream, usage, contin bool
	options, maxSaid      bool // stream_options, and a limit of output, were there
	interval              int
	stop                  []string
	stopIDs               []uint32
	keepStop              bool
	ignoreEOS             bool
	ends                  int // tokens after which the model ends, 0 = where it will
	logprobs              bool
	returnIDs, echo       bool
	promptLogprobs        bool
	salt, session         string
	priority              int64
	fullReport            bool
	temperature           float64
	tokenStrs             bool // of /tokenize
}

// limit is the output limit of a prompt: what was asked for, cut at the end of
// the context, and where the answer was told to end.
func (a *ask) limit(prompt int) int {
	n := min(a.max, a.maxLen-prompt)
	if a.ends > 0 {
		n = min(n, a.ends)
	}
	return n
}

// An apiError is an answer that is no 200, in vLLM's nested form.
type apiError struct {
	status   int
	typ, msg string
	param    string // "" is null
}

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{400, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// schemaError is the other spelling of a 400: what the framework finds.
func schemaError(kind, param, msg, input string) *apiError {
	return &apiError{400, "Bad Request", fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s', 'input': '%s'}", kind, param, msg, input), param}
}

// jsonError is the answer to a body that is no JSON object.
func jsonError(err error) *apiError {
	at := "body"
	if syn, ok := errors.AsType[*jsonedit.SyntaxError](err); ok {
		at = fmt.Sprintf("body.%d", syn.Offset)
	}
	return schemaError("json_invalid", at, "JSON decode error", "<dict of 0 items>")
}

// parse reads a request body. Unknown fields are ignored, null is as good as
// absent.
func (s *Server) parse(body []byte, chat bool) (*ask, *apiError) {
	if len(body) == 0 {
		return nil, schemaError("missing", "body", "Field required", "None")
	}
	a := &ask{chat: chat, n: 1, interval: 1, temperature: 1, answer: true, maxLen: s.opts.MaxModelLen}
	var prompt []byte
	f := jsonedit.Object(body)
	for f.Next() {
		if jsonedit.KindOf(f.Value) == jsonedit.Null {
			continue
		}
		key := jsonedit.Name(f.Key)
		if key == "prompt" {
			prompt = f.Value
			continue
		}
		if e := a.field(key, f.Value); e != nil {
			return nil, e
		}
	}
	if err := f.Err(); err != nil {
		return nil, jsonError(err)
	}
	if e := a.check(); e != nil {
		return nil, e
	}
	if a.model != "" && a.model != s.opts.Model {
		i := adapterIndex(s.opts.Adapters, a.model)
		if i < 0 {
			return nil, &apiError{404, "NotFoundError", fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", a.model, s.opts.Model), "model"}
		}
		a.adapter = s.opts.Adapters[i]
	}
	if a.model == "" {
		a.model = s.opts.Model
	}
	return a, s.prompts(a, prompt)
}

// field reads one member of the body.
func (a *ask) field(key string, v []byte) *apiError {
	switch key {
	case "model":
		return text(&a.model, key, v)
	case "messages":
		return a.readMessages(v)
	case "n":
		return number(&a.n, key, v)
	case "max_tokens", "max_completion_tokens":
		if e := number(&a.max, key, v); e != nil {
			return e
		}
		a.maxSaid = true
		if a.max < 1 {
			return badRequest(key, "max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", a.max, a.max)
		}
	case "stream":
		return flag(&a.stream, key, v)
	case "stream_interval":
		return number(&a.interval, key, v)
	case "stream_options":
		a.options = true
		return a.readStreamOptions(v)
	case "stop":
		return a.readStop(v)
	case "stop_token_ids":
		ids, err := jsonedit.AppendUint32s(nil, v)
		if err != nil {
			return schemaError("list_type", "body."+key, "Input should be a valid list", short(v))
		}
		a.stopIDs = ids
	case "include_stop_str_in_output":
		return flag(&a.keepStop, key, v)
	case "ignore_eos":
		return flag(&a.ignoreEOS, key, v)
	case "echo":
		return flag(&a.echo, key, v)
	case "return_token_ids":
		return flag(&a.returnIDs, key, v)
	case "add_generation_prompt":
		return flag(&a.answer, key, v)
	case "return_token_strs":
		return flag(&a.tokenStrs, key, v)
	case "logprobs":
		// A number for completions, a flag for chats.
		a.logprobs = jsonedit.KindOf(v) == jsonedit.Number || jsonedit.True(v)
	case "prompt_logprobs":
		a.promptLogprobs = true
	case "cache_salt":
		if e := text(&a.salt, key, v); e != nil {
			return e
		}
		if a.salt == "" {
			return badRequest(key, "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)")
		}
		if len(a.salt) > 128 || strings.ContainsAny(a.salt, "@/\\\x00") {
			return badRequest(key, `Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL. (parameter=cache_salt)`)
		}
	case "session_id":
		return text(&a.session, key, v)
	case "priority":
		n, ok := jsonedit.Int(v)
		if !ok {
			return intError(key, v)
		}
		a.priority = n
	case "temperature":
		t, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return schemaError("float_parsing", "body."+key, "Input should be a valid number", short(v))
		}
		a.temperature = t
	case "vllm_xargs":
		f := jsonedit.Object(v)
		for f.Next() {
			if f.Is("kv_cache_report_mode") {
				mode, _ := jsonedit.Text(f.Value)
				a.fullReport = mode == "full"
			} else if f.Is("session_id") && a.session == "" {
				a.session, _ = jsonedit.Text(f.Value)
			} else if f.Is("sim_output_tokens") {
				// The simulator's own: where the model would end its answer. A replayed
				// trace says it here, so that a router in between does not know it.
				n, err := strconv.Atoi(string(f.Value))
				if err != nil || n < 1 {
					return schemaError("greater_than_equal", "body.vllm_xargs.sim_output_tokens", "Input should be an integer of at least 1", short(f.Value))
				}
				a.ends = n
			}
		}
		if f.Err() != nil {
			return schemaError("dict_type", "body."+key, "Input should be a valid dictionary", short(v))
		}
	}
	return nil
}

// check looks at fields together.
func (a *ask) check() *apiError {
	switch {
	case a.n < 1:
		return badRequest("", "n must be at least 1, got %d.", a.n)
	case a.n > 1024:
		return badRequest("", "n must be at most 1024, got %d.", a.n)
	case a.temperature < 0 || math.IsNaN(a.temperature):
		return badRequest("temperature", "temperature must be non-negative, got %v. (parameter=temperature, value=%v)", a.temperature, a.temperature)
	case a.options && !a.stream:
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`. (parameter=stream_options)")
	case a.interval < 1:
		return badRequest("stream_interval", "stream_interval must be at least 1, got %d.", a.interval)
	case a.chat && a.max > a.maxLen:
		return badRequest("max_tokens", "max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens. (parameter=max_tokens, value=%d)", a.max, a.maxLen, a.max)
	}
	return nil
}

func (a *ask) readStreamOptions(v []byte) *apiError {
	f := jsonedit.Object(v)
	for f.Next() {
		if f.Is("include_usage") {
			a.usage = jsonedit.True(f.Value)
		} else if f.Is("continuous_usage_stats") {
			a.contin = jsonedit.True(f.Value)
		}
	}
	if f.Err() != nil {
		return schemaError("model_attributes_type", "body.stream_options", "Input should be a valid dictionary", short(v))
	}
	a.contin = a.contin && a.usage
	return nil
}

func (a *ask) readStop(v []byte) *apiError {
	if t, ok := jsonedit.Text(v); ok {
		a.stop = []string{t}
	} else {
		e := jsonedit.Array(v)
		for e.Next() {
			t, ok := jsonedit.Text(e.Value)
			if !ok {
				return schemaError("string_type", "body.stop", "Input should be a valid string", short(e.Value))
			}
			a.stop = append(a.stop, t)
		}
		if e.Err() != nil {
			return schemaError("list_type", "body.stop", "Input should be a valid list", short(v))
		}
	}
	if slices.Contains(a.stop, "") {
		return badRequest("stop", "stop cannot contain an empty string.")
	}
	return nil
}

// readMessages reads a chat. Content is a string or a list of parts of which
// those with text count.
func (a *ask) readMessages(v []byte) *apiError {
	e := jsonedit.Array(v)
	for e.Next() {
		var m Message
		f := jsonedit.Object(e.Value)
		for f.Next() {
			switch {
			case f.Is("role"):
				m.Role, _ = jsonedit.Text(f.Value)
			case f.Is("content"):
				m.Content = content(f.Value)
			}
		}
		if f.Err() != nil || m.Role == "" {
			return schemaError("missing", "body.messages", "Field required", short(e.Value))
		}
		a.messages = append(a.messages, m)
	}
	if e.Err() != nil {
		return schemaError("list_type", "body.messages", "Input should be a valid list", short(v))
	}
	return nil
}

func content(v []byte) string {
	if t, ok := jsonedit.Text(v); ok {
		return t
	}
	var parts []string
	for e := jsonedit.Array(v); e.Next(); {
		for f := jsonedit.Object(e.Value); f.Next(); {
			if t, ok := jsonedit.Text(f.Value); ok && f.Is("text") {
				parts = append(parts, t)
			}
		}
	}
	return strings.Join(parts, " ")
}

// prompts makes the token ids and checks their number.
func (s *Server) prompts(a *ask, v []byte) *apiError {
	switch {
	case a.chat:
		if a.messages == nil {
			return schemaError("missing", "body.messages", "Field required", "<dict>")
		}
		a.prompts = [][]uint32{s.tok.EncodeChat(nil, a.messages, a.answer)}
	case len(v) > 0 && v[0] == '"':
		a.addText(s.tok, v)
	case len(v) > 0 && v[0] == '[':
		if e := a.addList(s.tok, v); e != nil {
			return e
		}
	}
	if len(a.prompts) == 0 || slices.ContainsFunc(a.prompts, func(p []uint32) bool { return len(p) == 0 }) {
		return badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)")
	}
	if len(a.prompts) > 4096 || len(a.prompts)*a.n > 4096 {
		return badRequest("prompt", "%d prompts with n=%d are more than this server takes", len(a.prompts), a.n)
	}
	for _, p := range a.prompts {
		for _, id := range p {
			if id >= MaxTokenID {
				return badRequest("", "Token id %d is out of vocabulary", id)
			}
		}
		if len(p) >= a.maxLen {
			return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)", a.maxLen, len(p), len(p))
		}
	}
	if a.max == 0 {
		a.max = 16 // what completions have always had
		if a.chat {
			a.max = s.opts.DefaultMaxTokens
		}
	}
	return nil
}

func (a *ask) addText(tok *Tokenizer, v []byte) {
	t, _ := jsonedit.Text(v)
	a.prompts = append(a.prompts, tok.Encode(nil, t))
	a.texts = append(a.texts, t)
}

// addList reads a prompt that is a list: of ids, of texts, or of lists of ids.
func (a *ask) addList(tok *Tokenizer, v []byte) *apiError {
	first := byte(0)
	for e := jsonedit.Array(v); e.Next(); {
		first = e.Value[0]
		break
	}
	if first != '"' && first != '[' {
		return a.addIDs(tok, v)
	}
	e := jsonedit.Array(v)
	for e.Next() {
		switch {
		case first == '"' && e.Value[0] == '"':
			a.addText(tok, e.Value)
		case first == '[' && e.Value[0] == '[':
			if err := a.addIDs(tok, e.Value); err != nil {
				return err
			}
		default:
			return schemaError("list_type", "body.prompt", "Input should be a valid list", short(e.Value))
		}
	}
	if e.Err() != nil {
		return schemaError("list_type", "body.prompt", "Input should be a valid list", short(v))
	}
	return nil
}

func (a *ask) addIDs(tok *Tokenizer, v []byte) *apiError {
	ids, err := jsonedit.AppendUint32s(make([]uint32, 0, len(v)/6), v)
	if err != nil {
		return schemaError("int_type", "body.prompt", "Input should be a valid integer", short(v))
	}
	a.prompts = append(a.prompts, ids)
	if a.echo {
		a.texts = append(a.texts, tok.Decode(ids))
	}
	return nil
}

func text(dst *string, key string, v []byte) *apiError {
	t, ok := jsonedit.Text(v)
	if !ok {
		return schemaError("string_type", "body."+key, "Input should be a valid string", short(v))
	}
	*dst = t
	return nil
}

func number(dst *int, key string, v []byte) *apiError {
	n, ok := jsonedit.Int(v)
	if !ok || n > math.MaxInt32 || n < math.MinInt32 {
		return intError(key, v)
	}
	*dst = int(n)
	return nil
}

func intError(key string, v []byte) *apiError {
	return schemaError("int_parsing", "body."+key, "Input should be a valid integer, unable to parse string as an integer", short(v))
}

func flag(dst *bool, key string, v []byte) *apiError {
	if jsonedit.KindOf(v) != jsonedit.Bool {
		return schemaError("bool_parsing", "body."+key, "Input should be a valid boolean", short(v))
	}
	*dst = jsonedit.True(v)
	return nil
}

// short is a value as an error message shows it.
func short(v []byte) string {
	t, ok := jsonedit.Text(v)
	if !ok {
		t = string(v[:min(len(v), 64)])
	}
	return strings.ToValidUTF8(t[:min(len(t), 64)], "\uFFFD")
}
