package sim

import (
	"net/http"
	"strconv"

	"github.com/stator-go/stator/internal/jsonedit"
)

// tokenize answers POST /tokenize for a prompt or a chat.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	a, e := s.tokenRequest(w, r)
	if e != nil {
		writeError(w, e)
		return
	}
	ids := a.prompts[0]
	b := strconv.AppendInt([]byte(`{"count":`), int64(len(ids)), 10)
	b = strconv.AppendInt(append(b, `,"max_model_len":`...), int64(s.opts.MaxModelLen), 10)
	b = appendNumbers(append(b, `,"tokens":`...), ids)
	b = append(b, `,"token_strs":`...)
	if a.tokenStrs {
		b = append(b, '[')
		for i, id := range ids {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, s.tok.AppendWord(nil, id))
		}
		b = append(b, ']')
	} else {
		b = append(b, `null`...)
	}
	writeJSON(w, 200, append(b, '}'))
}

// tokenRequest reads a body that is a chat if it has messages.
func (s *Server) tokenRequest(w http.ResponseWriter, r *http.Request) (*ask, *apiError) {
	body, e := s.body(w, r)
	if e != nil {
		return nil, e
	}
	_, chat, _ := jsonedit.Get(body, "messages")
	return s.parse(body, chat)
}

// detokenize answers POST /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	body, e := s.body(w, r)
	if e != nil {
		writeError(w, e)
		return
	}
	v, ok, err := jsonedit.Get(body, "tokens")
	var ids []uint32
	if err == nil && ok {
		ids, err = jsonedit.AppendUint32s(nil, v)
	}
	if err != nil || !ok {
		writeError(w, schemaError("missing", "body.tokens", "Field required", short(body)))
		return
	}
	b := jsonedit.AppendQuoted([]byte(`{"prompt":`), s.tok.Decode(ids))
	writeJSON(w, 200, append(b, '}'))
}

func appendNumbers(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// render answers with the request as the engine would compute it: a list for
// completions, an object for a chat.
func (s *Server) render(w http.ResponseWriter, r *http.Request, chat bool) {
	if s.opts.NoRender {
		writeError(w, &apiError{403, "PermissionDeniedError", "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.", ""})
		return
	}
	a, e := s.request(w, r, chat)
	if e != nil {
		writeError(w, e)
		return
	}
	id := newID()
	one := func(b []byte, id string, ids []uint32) []byte {
		b = jsonedit.AppendQuoted(append(b, `{"request_id":`...), id)
		b = appendNumbers(append(b, `,"token_ids":`...), ids)
		b = append(b, `,"token_offsets":null,"features":null,"content_parts":null,"sampling_params":`...)
		b = a.appendSampling(b, len(ids))
		b = jsonedit.AppendQuoted(append(b, `,"model":`...), a.model)
		b = append(b, `,"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":`...)
		if a.returnIDs {
			b = append(b, `true`...)
		} else {
			b = append(b, `null`...)
		}
		b = strconv.AppendBool(append(b, `,"output_mode":"tokens","stream":`...), a.stream)
		b = append(b, `,"stream_options":`...)
		if a.options {
			b = strconv.AppendBool(append(b, `{"include_usage":`...), a.usage)
			b = append(strconv.AppendBool(append(b, `,"continuous_usage_stats":`...), a.contin), '}')
		} else {
			b = append(b, `null`...)
		}
		b = append(b, `,"cache_salt":`...)
		if a.salt == "" {
			b = append(b, `null`...)
		} else {
			b = jsonedit.AppendQuoted(b, a.salt)
		}
		b = strconv.AppendInt(append(b, `,"priority":`...), a.priority, 10)
		return append(b, `,"kv_transfer_params":null,"ec_transfer_params":null}`...)
	}
	if chat {
		writeJSON(w, 200, one(nil, "chatcmpl-"+id, a.prompts[0]))
		return
	}
	b := []byte{'['}
	for i, p := range a.prompts {
		name := "cmpl-" + id
		if len(a.prompts) > 1 {
			b, name = append(b, ','), name+"-"+strconv.Itoa(i)
		}
		b = one(b, name, p)
	}
	if len(a.prompts) > 1 { // one comma too many, in front
		b = append(b[:1], b[2:]...)
	}
	writeJSON(w, 200, append(b, ']'))
}

// appendSampling appends the sampling parameters as the engine takes them.
func (a *ask) appendSampling(b []byte, prompt int) []byte {
	b = append(b, `{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":`...)
	b = append(b, promFloat(a.temperature)...)
	if a.temperature > 0 {
		b = append(b, `,"top_p":1.0,"min_p":0.0`...)
	}
	b = append(b, `,"stop":[`...)
	hold := 0
	for i, stop := range a.stop {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsonedit.AppendQuoted(b, stop)
		hold = max(hold, len(stop)-1)
	}
	b = appendNumbers(append(b, `],"stop_token_ids":`...), a.stopIDs)
	if a.maxSaid {
		b = strconv.AppendInt(append(b, `,"max_tokens":`...), int64(a.limit(prompt)), 10)
	}
	kind := `2`
	if a.stream {
		kind = `1`
	}
	b = append(append(b, `,"output_kind":`...), kind...)
	b = append(b, `,"skip_clone":true`...)
	if hold > 0 {
		b = strconv.AppendInt(append(b, `,"output_text_buffer_length":`...), int64(hold), 10)
	}
	return append(b, `,"bad_words":[],"skip_reading_prefix_cache":false}`...)
}
