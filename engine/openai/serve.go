package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-go/stator/engine"
)

// call is the state of one request being served. It is pooled; an engine must
// not keep the request or its body.
type call struct {
	h    *Handler
	w    http.ResponseWriter
	rc   *http.ResponseController
	req  engine.Request
	line engine.Timeline
	res  Result

	body  []byte
	out   []byte // events that wait, or the answer that does not stream
	usage engine.Usage
	ends  ends
	made  composer // used when chunks come without Raw

	began    time.Time // of the engine's work
	started  bool      // status and header are out
	deadline time.Time // of writes, as last set
	tokens   []uint32  // memory of req.Tokens
}

// generate serves one completion or chat completion.
func (h *Handler) generate(w http.ResponseWriter, r *http.Request, api engine.API) {
	start := time.Now()
	id := requestID(r.Header)
	w.Header()["X-Request-Id"] = []string{id}
	if err := h.flight.enter(h.opts.MaxInFlight); err != nil {
		w.Header().Set("Connection", "close")
		h.refuse(w, explain(err, false))
		return
	}
	defer h.flight.leave()

	c := h.calls.Get().(*call)
	c.h, c.w, c.rc, c.res = h, w, http.NewResponseController(w), Result{Start: start}
	c.started, c.deadline = false, time.Time{}
	defer c.release()

	if a := c.accept(r, api); a.status != 0 {
		h.refuse(w, a)
		return
	}
	req := &c.req
	req.ID = id
	req.Header = clean(r.Header, h.opts.DropHeaders, h.opts.ForwardAuthorization)
	if tooMuch(req.Header) {
		h.refuse(w, answer{
			status: 431, kind: "invalid_request_error",
			message: fmt.Sprintf("header exceeds the limit of %d lines and %d bytes", maxHeaderLines, maxHeaderBytes),
		})
		return
	}
	if s := session(r.Header.Get("X-Session-Id")); s != "" {
		req.Session = s
	}
	req.RawOnly = true
	req.Timeline = &c.line
	if h.opts.RequestTimeout > 0 {
		req.Deadline = start.Add(h.opts.RequestTimeout)
	}
	c.began = time.Now()
	c.line.Add("accept", engine.Control, start, c.began)
	h.stats.requests.Add(1)
	h.stats.bytesIn.Add(uint64(c.res.BytesIn))
	if req.Stream {
		h.stats.streams.Add(1)
	}
	if f := h.opts.Hooks.Start; f != nil {
		f(req)
	}

	ended := false
	defer func() {
		if !ended { // panicking
			h.stats.failed.Add(1)
			c.account(errPanic, time.Now())
		}
	}()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	if !req.Deadline.IsZero() {
		var done context.CancelFunc
		ctx, done = context.WithDeadline(ctx, req.Deadline)
		defer done()
	}
	stop := context.AfterFunc(h.flight.kill, func() { cancel(errDraining) })
	defer stop()
	at, err := c.finish(ctx, r.Context(), c.relay(ctx))
	ended = true
	c.account(err, at)
}

// errPanic is what a request ended with whose engine panicked. The panic goes on
// to the server.
var errPanic = errors.New("openai: panic")

// accept reads and parses the body. An answer with a status refuses it.
func (c *call) accept(r *http.Request, api engine.API) answer {
	o := &c.h.opts
	if t := r.Header.Get("Content-Type"); t != "" && t != "application/json" {
		if m, _, err := mime.ParseMediaType(t); err != nil || m != "application/json" {
			return wrongType(t)
		}
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return explain(badRequest("", "content encoding %q is not supported", e), false)
	}
	tooLarge := answer{
		status: 413, kind: "invalid_request_error",
		message: fmt.Sprintf("body exceeds the limit of %d bytes", o.MaxBody),
	}
	if r.ContentLength > int64(o.MaxBody) {
		return tooLarge
	}
	// Not every writer knows deadlines (tests); then the server's own hold.
	c.rc.SetReadDeadline(c.res.Start.Add(o.ReadTimeout))
	var err error
	c.body, err = readAll(c.body[:0], r.Body, r.ContentLength, o.MaxBody)
	c.rc.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, errTooLong):
		return tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.w.Header().Set("Connection", "close")
		return answer{status: 408, kind: "invalid_request_error", message: "the body could not be read within " + o.ReadTimeout.String()}
	case err != nil:
		c.w.Header().Set("Connection", "close")
		return explain(badRequest("", "the body is cut off or its encoding is broken"), false)
	}
	c.res.BytesIn = int64(len(c.body))
	c.req.Tokens = c.tokens
	c.res.Stripped, err = parseRequest(&c.req, api, c.body, Limits{MaxChoices: o.MaxChoices})
	if c.req.Tokens != nil {
		c.tokens = c.req.Tokens[:0]
	}
	if err != nil {
		return explain(err, false)
	}
	if c.res.Stripped {
		c.h.stats.stripped.Add(1)
	}
	return answer{}
}

// wrongType refuses a body that does not say that it is JSON. curl -d is how
// most meet it, so its fault is told with the cure.
func wrongType(got string) answer {
	a := answer{
		status: http.StatusUnsupportedMediaType, kind: "invalid_request_error",
		message: fmt.Sprintf("Content-Type must be application/json, got %.100q", got),
	}
	if strings.HasPrefix(got, "application/x-www-form-urlencoded") {
		a.message += "; with curl add -H 'Content-Type: application/json'"
	}
	return a
}

var errTooLong = errors.New("openai: body too long")

// readAll reads r to its end into dst, at most limit bytes. size is the
// expected length, -1 if unknown. It is believed up to firstRead: memory must
// have been paid for with bytes, not with the promise of them.
func readAll(dst []byte, r io.Reader, size int64, limit int) ([]byte, error) {
	if first := min(size, firstRead); first >= int64(cap(dst)) {
		dst = make([]byte, 0, first+1) // one more: room to see the end
	}
	for {
		if n := len(dst); n == cap(dst) {
			more := max(n, 512)
			if int64(n) <= size {
				more = int(min(int64(more), size-int64(n)+1)) // n > 0: no overflow
			}
			dst = slices.Grow(dst, more)
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) > limit:
			return dst, errTooLong
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return dst, err
		}
	}
}

// firstRead is the most memory in bytes that a body gets before any of it came.
const firstRead = 256 << 10

// relay runs the engine and passes its chunks on.
func (c *call) relay(ctx context.Context) error {
	stream := c.req.Stream
	c.out = c.out[:0]
	c.ends.begin(&c.req)
	for chunk, err := range c.h.eng.Generate(ctx, &c.req) {
		if err != nil {
			return err
		}
		if chunk == nil {
			return fmt.Errorf("%w: neither chunk nor error", engine.ErrProtocol)
		}
		c.res.Tokens += chunk.Tokens
		if chunk.Usage != nil {
			c.usage = *chunk.Usage
			c.res.Usage = &c.usage
		}
		if err := c.ends.follow(chunk); err != nil {
			return err
		}
		switch {
		case chunk.Part:
		case stream:
			err = c.event(chunk)
		case !chunk.Hidden:
			err = c.keep(chunk)
		}
		if err != nil {
			return err
		}
	}
	if err := c.ends.judge(ctx, stream); err != nil || !c.made.on {
		return err
	}
	switch {
	case !stream:
		c.out = c.made.appendWhole(c.out, c.res.Usage)
		c.res.Chunks++
	case c.req.IncludeUsage && c.res.Usage != nil:
		c.out = c.made.appendUsageEvent(c.out, c.res.Usage)
		c.res.Chunks++
	}
	return nil
}

// keep puts off what does not stream until the engine says that all is well.
func (c *call) keep(chunk *engine.Chunk) error {
	switch {
	case c.ends.form == formComposed:
		return c.compose(chunk)
	case c.ends.whole:
		return fmt.Errorf("%w: several bodies for a request that does not stream", engine.ErrProtocol)
	}
	c.ends.whole = true
	c.out = append(c.out, chunk.Raw...)
	c.res.Chunks++
	return nil
}

// compose makes the JSON of a chunk that brought none.
func (c *call) compose(chunk *engine.Chunk) error {
	if !c.made.on {
		c.made.begin(&c.req, len(c.ends.done), c.res.Start.Unix(), c.h.opts.MaxAnswer)
	}
	out, said, err := c.made.chunk(c.out, chunk)
	c.out = out
	if said {
		c.sent(chunk)
	}
	return err
}

// errGone says that the client takes no bytes any more.
var errGone = errors.New("openai: client left")

// maxUnsaid is how much may wait in c.out for the next chunk.
const maxUnsaid = 16 << 10

// event puts one chunk into c.out and, unless the next one is already there,
// sends what waits.
func (c *call) event(chunk *engine.Chunk) error {
	switch {
	case chunk.Hidden:
	case len(chunk.Raw) > 0:
		c.out = appendEvent(c.out, chunk.Raw)
		c.sent(chunk)
	default:
		if err := c.compose(chunk); err != nil {
			return err
		}
	}
	if len(c.out) == 0 || chunk.More && len(c.out) < maxUnsaid {
		return nil
	}
	return c.flush()
}

// sent counts an event that went into c.out.
func (c *call) sent(chunk *engine.Chunk) {
	c.res.Chunks++
	if chunk.Tokens > 0 && c.res.FirstToken.IsZero() {
		c.res.FirstToken = time.Now()
	}
}

// flush sends what waits in c.out.
func (c *call) flush() error {
	before := time.Now()
	if !c.started {
		c.begin("text/event-stream; charset=utf-8", -1)
	}
	c.allow(before)
	n, err := c.w.Write(c.out)
	c.res.BytesOut += int64(n)
	c.out = c.out[:0]
	if err == nil {
		err = c.rc.Flush()
	}
	c.res.Relay += time.Since(before)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// allow moves the write deadline on, not at every chunk.
func (c *call) allow(now time.Time) {
	limit := c.h.opts.WriteTimeout
	if next := now.Add(limit); next.Sub(c.deadline) > min(time.Second, limit/4) {
		c.deadline = next
		c.rc.SetWriteDeadline(next)
	}
}

// appendEvent appends raw as one server-sent event.
func appendEvent(dst, raw []byte) []byte {
	for {
		line, rest, more := bytes.Cut(raw, []byte("\n"))
		dst = append(dst, "data: "...)
		dst = append(dst, line...)
		dst = append(dst, '\n')
		if !more {
			return append(dst, '\n')
		}
		raw = rest
	}
}

// begin sends status and header. size is the body's length, -1 for a stream.
func (c *call) begin(contentType string, size int) {
	h := c.w.Header()
	h["Content-Type"] = []string{contentType}
	if size >= 0 {
		h["Content-Length"] = []string{strconv.Itoa(size)}
	} else {
		h["Cache-Control"] = noCache
		h["X-Accel-Buffering"] = noBuffer
	}
	c.started = true
	c.res.Status = http.StatusOK
	c.w.WriteHeader(http.StatusOK)
}

// Constant header values; nothing may write to them.
var (
	noCache  = []string{"no-cache"}
	noBuffer = []string{"no"}
)

const doneEvent = "data: [DONE]\n\n"

// finish ends the answer. It returns when the engine was done and what the
// request ended with.
func (c *call) finish(ctx, client context.Context, err error) (time.Time, error) {
	h := c.h
	if client.Err() != nil || errors.Is(err, errGone) {
		c.res.Gone = true
		h.stats.gone.Add(1)
		if err == nil || errors.Is(err, errGone) {
			err = context.Canceled
		}
	} else if err != nil && errors.Is(context.Cause(ctx), errDraining) {
		err = errDraining
	}
	before := time.Now()
	c.allow(before)
	switch {
	case c.res.Gone:
		if !c.started {
			// Nobody reads it, but logs around us want a status.
			c.w.WriteHeader(statusClientClosed)
		}
	case err == nil && c.req.Stream:
		c.out = append(c.out, doneEvent...)
		c.flush() // nobody is left to tell of a failure
	case err == nil:
		c.begin("application/json", len(c.out))
		c.res.FirstToken = before
		c.flush()
	case c.started || len(c.out) > 0 && c.req.Stream:
		h.stats.broken.Add(1)
		a := explain(err, true)
		c.out = a.appendObject(append(c.out, "data: "...))
		c.out = append(c.out, "\n\n"+doneEvent...)
		c.flush()
	default:
		h.stats.failed.Add(1)
		a := explain(err, false)
		c.res.Status = a.status
		a.write(c.w)
	}
	c.rc.SetWriteDeadline(time.Time{})
	return before, err
}

// account writes down how the request went. done is when the engine was.
func (c *call) account(err error, done time.Time) {
	h := c.h
	c.res.End, c.res.Err = time.Now(), err
	if !c.line.Has(engine.Compute) {
		c.line.Add("engine", engine.Compute, c.began, done)
	}
	c.line.Add("relay", engine.Data, c.res.End.Add(-c.res.Relay), c.res.End)
	h.stats.chunks.Add(uint64(c.res.Chunks))
	h.stats.bytesOut.Add(uint64(c.res.BytesOut))
	if u := c.res.Usage; u != nil && u.Completion > 0 {
		c.res.Tokens = u.Completion
	}
	h.stats.tokens.Add(uint64(c.res.Tokens))
	if f := h.opts.Hooks.End; f != nil {
		f(&c.req, &c.res)
	}
}

// statusClientClosed is nginx's code for a client that left.
const statusClientClosed = 499

// release returns the call to the pool with buffers of a sane size.
func (c *call) release() {
	if cap(c.body) > keepBody {
		c.body = nil
	}
	if cap(c.out) > keepBuffer {
		c.out = nil
	}
	if cap(c.tokens)*4 > keepBody {
		c.tokens = nil
	}
	c.made.release()
	h := c.h
	c.h, c.w, c.rc, c.req, c.res = nil, nil, nil, engine.Request{}, Result{}
	c.line.Reset()
	h.calls.Put(c)
}

// keepBody is the largest body buffer that a pooled call keeps.
const keepBody = 1 << 20

// maxID bounds a client's request id.
const maxID = 128

// requestID is the client's X-Request-Id when it is harmless in a header and a
// log, else a new one.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	ok := id != "" && len(id) <= maxID
	for i := 0; i < len(id) && ok; i++ {
		c := id[i]
		ok = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '_' || c == '.' || c == ':'
	}
	if ok {
		return id
	}
	const digits = "0123456789abcdef"
	var b [32]byte
	for i := 0; i < len(b); i += 16 {
		for j, x := 0, rand.Uint64(); j < 16; j, x = j+1, x>>4 {
			b[i+j] = digits[x&15]
		}
	}
	return string(b[:])
}
