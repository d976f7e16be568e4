package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// ServerOptions tunes a [Handler]. The zero value, and nil, are ready for use.
type ServerOptions struct {
	// Models lists what clients are told the server has. nil means the engine's
	// own list where it is an engine.ModelLister, else an empty one.
	Models func(ctx context.Context) ([]engine.Model, error)
	// MaxBody bounds a request's body in bytes. 0 means 32 MiB.
	MaxBody int
	// MaxChoices bounds n times the number of prompts. 0 means 1024.
	MaxChoices int
	// MaxAnswer bounds, in bytes of text and of token ids asked for, an answer
	// that is gathered here: one that does not stream, of an engine whose chunks
	// have no Raw. 0 means 64 MiB.
	MaxAnswer int
	// MaxInFlight bounds the requests at work at once; more are refused with
	// 429. 0 means 10,000.
	MaxInFlight int
	// ReadTimeout bounds the time to read a request's body. 0 means 30 s.
	ReadTimeout time.Duration
	// RequestTimeout bounds a whole request. 0 means no limit.
	RequestTimeout time.Duration
	// WriteTimeout is how long a client may take no bytes before it is given
	// up. 0 means 60 s.
	WriteTimeout time.Duration
	// ForwardAuthorization lets the client's Authorization header go upstream.
	// By default it stays here: keys of a gateway are not keys of an engine.
	ForwardAuthorization bool
	// DropHeaders names further headers of clients that must not go upstream.
	DropHeaders []string
	// Hooks observes requests. Each func may be nil and must not block.
	Hooks ServerHooks
}

// ServerHooks observes a [Handler]'s requests (control path). The pointers are
// valid during the call only.
type ServerHooks struct {
	// Start is called when a generation was accepted, with the parsed request.
	Start func(req *engine.Request)
	// End is called once for each generation that Start was called for, also when
	// its engine panics.
	End func(req *engine.Request, res *Result)
}

// A Result is how one request went.
type Result struct {
	// Status is the HTTP status that the client was sent, 0 when it had left
	// before.
	Status int
	// Start is the arrival, FirstToken the moment the first chunk with tokens
	// came from the engine (zero without one; that of the whole answer when it
	// does not stream), End the last byte.
	Start, FirstToken, End time.Time
	// Chunks and Tokens count what was relayed; Tokens is exact when the engine
	// reports ids or usage.
	Chunks, Tokens int
	// Usage is the engine's own account, nil if it gave none.
	Usage *engine.Usage
	// BytesIn is the size of the body, BytesOut that of the answer's payload.
	BytesIn, BytesOut int64
	// Relay is the time spent writing to the client (data path).
	Relay time.Duration
	// Stripped says that fields were taken out of the body.
	Stripped bool
	// Gone says that the client left before the end.
	Gone bool
	// Err is why the request failed, nil if it did not.
	Err error
}

func (o *ServerOptions) withDefaults() ServerOptions {
	var c ServerOptions
	if o != nil {
		c = *o
	}
	c.MaxBody = cmp.Or(c.MaxBody, 32<<20)
	c.MaxChoices = cmp.Or(c.MaxChoices, 1024)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, 64<<20)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 10_000)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 30*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, time.Minute)
	c.DropHeaders = slices.Clone(c.DropHeaders)
	for i, h := range c.DropHeaders {
		c.DropHeaders[i] = textproto.CanonicalMIMEHeaderKey(h)
	}
	return c
}

func (o *ServerOptions) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"MaxBody", int64(o.MaxBody)}, {"MaxChoices", int64(o.MaxChoices)}, {"MaxAnswer", int64(o.MaxAnswer)}, {"MaxInFlight", int64(o.MaxInFlight)},
		{"ReadTimeout", int64(o.ReadTimeout)}, {"RequestTimeout", int64(o.RequestTimeout)}, {"WriteTimeout", int64(o.WriteTimeout)},
	} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("openai: ServerOptions.%s is %d, must not be negative", f.name, f.v))
		}
	}
	return errors.Join(errs...)
}

// A Handler serves an engine to OpenAI clients. Its routes are
//
//	POST /v1/completions
//	POST /v1/chat/completions
//	GET  /v1/models, /v1/models/{id}
//	GET  /health, /healthz
//
// and every other answer is an error in OpenAI's form. It is safe for
// concurrent use and starts no goroutine. It sees a request when its header is
// complete: give the http.Server around it a ReadHeaderTimeout.
//
// # Statuses
//
// What the engine fails with before the first byte becomes a status; after it,
// an error event whose code is that status, and [DONE]. The first line that
// holds counts:
//
//	*engine.Error, status 4xx               that status, and the engine's body if
//	                                        that is an OpenAI error
//	*engine.Error, status 503 or 504        that status
//	*engine.Error, any other status         502 (in an event: the engine's code)
//	engine.ErrUnavailable                   503, Retry-After
//	engine.ErrNotServed                     503, Retry-After
//	engine.ErrTimeout, a deadline           504
//	engine.ErrAborted                       502
//	engine.ErrCut                           502
//	engine.ErrUnreachable                   502
//	engine.ErrProtocol                      502
//	any other error                         500, not in its words
//
// A sequence that ends without an error is checked all the same. It failed with
// ErrCut unless each of the n × prompts choices had a [engine.Chunk.Finish]
// (so an engine that yields nothing did), with ErrAborted when one of these was
// "abort" or "error", and with ErrProtocol when it mixed chunks with and without
// Raw, or had not exactly one Raw for a request that does not stream.
//
// A request is refused with 400 for a faulty field, 408 for a body that takes
// longer than ReadTimeout, 413 over MaxBody, 429 over MaxInFlight, 431 for too
// much header and 503 while draining. Its Content-Type must be application/json
// or missing; every other is refused with 415, which names it: curl -d sends
// application/x-www-form-urlencoded unless told otherwise. (vLLM answers 400 to
// that.)
type Handler struct {
	eng     engine.Engine
	opts    ServerOptions
	created int64 // of the models, Unix seconds
	calls   sync.Pool
	flight  flight
	stats   counters
}

// NewHandler makes a handler for eng.
func NewHandler(eng engine.Engine, opts *ServerOptions) (*Handler, error) {
	o := opts.withDefaults()
	err := o.validate()
	if eng == nil {
		err = errors.Join(errors.New("openai: NewHandler needs an engine"), err)
	}
	if err != nil {
		return nil, err
	}
	h := &Handler{eng: eng, opts: o, created: time.Now().Unix()}
	h.calls.New = func() any { return new(call) }
	h.flight.init()
	return h, nil
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := http.MethodGet
	var api engine.API
	switch r.URL.Path {
	case "/v1/completions":
		want, api = http.MethodPost, engine.APICompletions
	case "/v1/chat/completions":
		want, api = http.MethodPost, engine.APIChat
	case "/v1/models", "/health", "/healthz":
	default:
		if !strings.HasPrefix(r.URL.Path, "/v1/models/") {
			h.refuse(w, answer{status: 404, kind: "not_found_error", message: "no route " + r.Method + " " + r.URL.Path})
			return
		}
	}
	if r.Method != want && !(want == http.MethodGet && r.Method == http.MethodHead) {
		w.Header().Set("Allow", want)
		h.refuse(w, answer{status: 405, kind: "invalid_request_error", message: r.Method + " is not allowed on " + r.URL.Path + ", use " + want})
		return
	}
	switch {
	case api != 0:
		h.generate(w, r, api)
	case strings.HasPrefix(r.URL.Path, "/v1/models"):
		h.models(w, r)
	default:
		h.health(w, r)
	}
}

// refuse answers a request that never became a generation.
func (h *Handler) refuse(w http.ResponseWriter, a answer) {
	h.stats.refused.Add(1)
	a.write(w)
}

// healthTimeout bounds the question to the engine.
const healthTimeout = 5 * time.Second

func (h *Handler) health(w http.ResponseWriter, r *http.Request) {
	if h.flight.isDraining() {
		a := explain(errDraining, false)
		a.write(w)
		return
	}
	if hc, ok := h.eng.(engine.HealthChecker); ok {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		if hc.Health(ctx) != nil {
			a := answer{status: 503, kind: "service_unavailable", message: "the engine is not healthy"}
			a.write(w)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

func (h *Handler) models(w http.ResponseWriter, r *http.Request) {
	list := h.opts.Models
	if l, ok := h.eng.(engine.ModelLister); ok && list == nil {
		list = l.Models
	}
	var models []engine.Model
	if list != nil {
		var err error
		if models, err = list(r.Context()); err != nil {
			a := explain(err, false)
			a.write(w)
			return
		}
	}
	id, one := strings.CutPrefix(r.URL.Path, "/v1/models/")
	out := []byte(`{"object":"list","data":[`)
	for i, m := range models {
		if one {
			if m.ID == id {
				h.writeJSON(w, h.appendModel(nil, m))
				return
			}
			continue
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = h.appendModel(out, m)
	}
	if one {
		h.refuse(w, answer{status: 404, kind: "not_found_error", param: "model", message: "the model " + strconv.Quote(id) + " does not exist"})
		return
	}
	h.writeJSON(w, append(out, "]}"...))
}

func (h *Handler) writeJSON(w http.ResponseWriter, body []byte) {
	w.Header()["Content-Type"] = jsonType
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body) // nobody is left to tell of a failure
}

// appendModel writes an entry in vLLM's form without its "root", which would
// show a path of the engine's host.
func (h *Handler) appendModel(dst []byte, m engine.Model) []byte {
	dst = append(dst, `{"id":`...)
	dst = jsonedit.AppendQuoted(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, h.created, 10)
	dst = append(dst, `,"owned_by":"stator","parent":`...)
	if m.Parent == "" {
		dst = append(dst, "null"...)
	} else {
		dst = jsonedit.AppendQuoted(dst, m.Parent)
	}
	dst = append(dst, `,"max_model_len":`...)
	if m.MaxLen == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = strconv.AppendInt(dst, int64(m.MaxLen), 10)
	}
	return append(dst, '}')
}
