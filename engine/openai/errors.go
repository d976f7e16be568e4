package openai

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// errDraining refuses a request that comes after Drain, and ends one that
// outlives its deadline.
var errDraining = errors.New("openai: server is shutting down")

// errBusy refuses a request over MaxInFlight.
var errBusy = errors.New("openai: too many requests in flight")

// answer is what a client is told about an error: never an address or another
// detail of the inside.
type answer struct {
	status  int
	kind    string
	message string
	param   string
	code    []byte
	after   time.Duration // Retry-After, 0 for none
	body    []byte        // relayed as is when set
}

// explain maps an error to what the client is told. mid is set once the answer
// has begun.
func explain(err error, mid bool) answer {
	var e *engine.Error
	switch {
	case errors.As(err, &e):
		return explainEngine(e, mid)
	case errors.Is(err, errDraining):
		return answer{status: 503, kind: "service_unavailable", message: "server is shutting down", after: time.Second}
	case errors.Is(err, errBusy):
		return answer{status: 429, kind: "overloaded", message: "too many requests in flight", after: time.Second}
	case errors.Is(err, engine.ErrUnavailable):
		return answer{status: 503, kind: "service_unavailable", message: "no worker is available", after: time.Second}
	case errors.Is(err, engine.ErrNotServed):
		return answer{status: 503, kind: "service_unavailable", message: "the engine did not serve the request", after: time.Second}
	case errors.Is(err, engine.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return answer{status: 504, kind: "timeout", message: "the engine did not answer in time"}
	case errors.Is(err, engine.ErrAborted):
		return answer{status: 502, kind: "engine_error", message: "the engine aborted the request"}
	case errors.Is(err, engine.ErrCut):
		return answer{status: 502, kind: "engine_error", message: "the engine's answer was cut off"}
	case errors.Is(err, engine.ErrUnreachable):
		return answer{status: 502, kind: "engine_error", message: "the engine is unreachable"}
	case errors.Is(err, engine.ErrProtocol):
		return answer{status: 502, kind: "engine_error", message: "the engine's answer is malformed"}
	}
	return answer{status: 500, kind: "internal_error", message: "internal error"}
}

// explainEngine passes an engine's own words on. A client's fault keeps its
// status and body; an engine's fault becomes a bad gateway, except overload.
func explainEngine(e *engine.Error, mid bool) answer {
	a := answer{status: e.Status, kind: e.Type, message: e.Message, param: e.Param, code: e.Code, after: e.RetryAfter}
	if a.kind == "" {
		a.kind = "engine_error"
	}
	switch {
	case mid:
	case e.Status >= 400 && e.Status < 500:
		if v, ok, err := jsonedit.Get(e.Body, "error"); err == nil && ok && jsonedit.KindOf(v) == jsonedit.ObjectKind && len(e.Body) < maxErrorBody {
			a.body = e.Body
		}
	case e.Status == 503, e.Status == 504:
	default:
		a.status, a.code = http.StatusBadGateway, nil
	}
	if (a.status == 503 || a.status == 429) && a.after == 0 {
		a.after = time.Second
	}
	if a.message == "" {
		a.message = "the engine answered " + strconv.Itoa(e.Status)
	}
	return a
}

// appendObject appends {"error":{…}} with the fields in vLLM's order.
func (a *answer) appendObject(dst []byte) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = jsonedit.AppendQuoted(dst, a.message)
	dst = append(dst, `,"type":`...)
	dst = jsonedit.AppendQuoted(dst, a.kind)
	dst = append(dst, `,"param":`...)
	if a.param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = jsonedit.AppendQuoted(dst, a.param)
	}
	dst = append(dst, `,"code":`...)
	if a.code != nil {
		dst = append(dst, a.code...)
	} else {
		dst = strconv.AppendInt(dst, int64(a.status), 10)
	}
	return append(dst, "}}"...)
}

// write sends the error as a whole answer.
func (a *answer) write(w http.ResponseWriter) {
	body := a.body
	if body == nil {
		body = append(a.appendObject(nil), '\n')
	}
	h := w.Header()
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if a.after > 0 {
		h.Set("Retry-After", strconv.Itoa(int((a.after+time.Second-1)/time.Second)))
	}
	w.WriteHeader(a.status)
	w.Write(body) // a client that left is noticed by whoever comes next
}
