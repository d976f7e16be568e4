package sim

import (
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/stator-go/stator/internal/jsonedit"
)

// routes are the endpoints of vLLM 0.32 that a gateway uses.
func (s *Server) routes() http.Handler {
	post := map[string]http.HandlerFunc{
		"/v1/completions":             func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, false) },
		"/v1/chat/completions":        func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, true) },
		"/v1/completions/render":      func(w http.ResponseWriter, r *http.Request) { s.render(w, r, false) },
		"/v1/chat/completions/render": func(w http.ResponseWriter, r *http.Request) { s.render(w, r, true) },
		"/tokenize":                   s.tokenize,
		"/detokenize":                 s.detokenize,
		"/inference/v1/abort_requests": func(w http.ResponseWriter, r *http.Request) {
			s.abortRequests(w, r)
		},
		"/reset_prefix_cache": func(w http.ResponseWriter, r *http.Request) { s.Reset() },
	}
	get := map[string]http.HandlerFunc{
		"/health":  func(http.ResponseWriter, *http.Request) {},
		"/ping":    func(http.ResponseWriter, *http.Request) {},
		"/version": func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 200, []byte(`{"version":"`+version+`"}`)) },
		"/load":    func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 200, []byte(`{"server_load":0}`)) },
		"/v1/models": func(w http.ResponseWriter, r *http.Request) {
			writeJSON(w, 200, s.models())
		},
		"/kv_event_sources": func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 200, s.eventSources()) },
		"/metrics":          s.metrics,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			panic(http.ErrAbortHandler) // cut the connection
		}
		s.wg.Add(1) // closed is not set, so nobody waits yet
		s.mu.Unlock()
		defer s.wg.Done()
		h, allow := post[r.URL.Path], "POST"
		if h == nil {
			h, allow = get[r.URL.Path], "GET"
		}
		switch {
		case h == nil:
			writeJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		case r.Method != allow:
			w.Header().Set("Allow", allow)
			writeJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
		default:
			h(w, r)
		}
	})
}

func writeJSON(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

func writeError(w http.ResponseWriter, e *apiError) {
	b := jsonedit.AppendQuoted([]byte(`{"error":{"message":`), e.msg)
	b = jsonedit.AppendQuoted(append(b, `,"type":`...), e.typ)
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, `null`...)
	} else {
		b = jsonedit.AppendQuoted(b, e.param)
	}
	b = strconv.AppendInt(append(b, `,"code":`...), int64(e.status), 10)
	writeJSON(w, e.status, append(b, `}}`...))
}

// models lists the base model and, with its name as parent, every adapter.
func (s *Server) models() []byte {
	b := []byte(`{"object":"list","data":[`)
	entry := func(id, root, parent string, maxLen int) {
		b = jsonedit.AppendQuoted(append(b, `{"id":`...), id)
		b = strconv.AppendInt(append(b, `,"object":"model","created":`...), s.started.Unix(), 10)
		b = jsonedit.AppendQuoted(append(b, `,"owned_by":"vllm","root":`...), root)
		b = append(b, `,"parent":`...)
		if parent == "" {
			b = strconv.AppendInt(append(b, `null,"max_model_len":`...), int64(maxLen), 10)
		} else {
			b = append(jsonedit.AppendQuoted(b, parent), `,"max_model_len":null`...)
		}
		b = append(b, `,"permission":[{"id":"modelperm-`+newID()+`","object":"model_permission","created":`...)
		b = strconv.AppendInt(b, s.started.Unix(), 10)
		b = append(b, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`...)
	}
	entry(s.opts.Model, s.opts.Model, "", s.opts.MaxModelLen)
	for _, a := range s.opts.Adapters {
		b = append(b, ',')
		entry(a.Name, a.Path, s.opts.Model, 0)
	}
	return append(b, `]}`...)
}

// eventSources tells where the events are, as the engine was configured: the
// host is a star, to be replaced by the one that was asked.
func (s *Server) eventSources() []byte {
	port := func(l net.Listener) string {
		if l == nil {
			return "null"
		}
		if _, p, err := net.SplitHostPort(l.Addr().String()); err == nil {
			return `"tcp://*:` + p + `"`
		}
		return string(jsonedit.AppendQuoted(nil, endpoint(l)))
	}
	if s.opts.Events == nil {
		return []byte(`{}`)
	}
	b := fmt.Appendf(nil, `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%s,"replay_endpoint":%s,"buffer_steps":%d,"hwm":100000,"max_queue_size":100000,"topic":`,
		port(s.opts.Events), port(s.opts.Replay), s.opts.BufferSteps)
	return append(jsonedit.AppendQuoted(b, s.opts.Topic), `}}`...)
}

// abortRequests ends requests by their external ids. Unknown ones are no error.
func (s *Server) abortRequests(w http.ResponseWriter, r *http.Request) {
	body, e := s.body(w, r)
	if e != nil {
		writeError(w, e)
		return
	}
	var ids []string
	f := jsonedit.Object(body)
	for f.Next() {
		if f.Is("request_ids") {
			for v := jsonedit.Array(f.Value); v.Next(); {
				if id, ok := jsonedit.Text(v.Value); ok {
					ids = append(ids, id)
				}
			}
		}
	}
	if err := f.Err(); err != nil {
		writeError(w, jsonError(err))
		return
	}
	s.abort(ids)
}
