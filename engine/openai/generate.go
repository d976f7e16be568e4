package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"time"

	"github.com/stator-go/stator/engine"
)

// generation is the state of one running request. It is pooled.
type generation struct {
	c   *Client
	req *engine.Request

	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // of the deadline, nil without one
	timer  *time.Timer        // first event, then idle; nil without limits
	resp   *http.Response
	bodies []*sendBody // every one given to the transport
	began  time.Time
	first  time.Time // the first chunk with tokens

	events  sse
	parse   parser
	chunk   engine.Chunk
	usage   engine.Usage
	scratch []byte // the edited request
	answer  []byte // a body that does not stream

	finished []bool // by choice
	open     int    // choices expected or seen that have not finished
	any      bool   // a choice was seen
	chunks   int    // yielded
	tokens   int    // in them
}

// errBroken says that the consumer broke off.
var errBroken = errors.New("openai: broken off")

// Generate implements [engine.Engine] by one POST. Only req.Body, req.API and
// the fields that say what to expect (Stream, IncludeUsage, N, Prompts) matter,
// and ID, Header, Rank and Deadline. While a chunk is being consumed nothing is
// read from the engine.
func (c *Client) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		g := c.state.Get().(*generation)
		err := g.do(ctx, c, req, yield)
		if err != nil && g.chunks > 0 {
			err = &engine.StreamError{Err: err, Chunks: g.chunks, Tokens: g.tokens}
		}
		broken := errors.Is(err, errBroken)
		g.release()
		if err != nil && !broken {
			yield(nil, err)
		}
	}
}

func (g *generation) do(ctx context.Context, c *Client, req *engine.Request, yield func(*engine.Chunk, error) bool) error {
	g.c, g.req = c, req
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.stop = nil
	if !req.Deadline.IsZero() {
		g.ctx, g.stop = context.WithDeadline(g.ctx, req.Deadline)
	}
	g.timer, g.resp, g.any, g.chunks, g.tokens, g.first = nil, nil, false, 0, 0, time.Time{}
	g.open = min(max(req.N, 1)*max(req.Prompts, 1), maxChoices)
	g.finished = append(g.finished[:0], make([]bool, g.open)...)
	g.parse.text = !req.RawOnly
	g.parse.forget()
	g.began = time.Now()
	defer g.end()
	return g.run(yield)
}

// end frees what the network holds. Cancelling comes first: a connection that
// is not at its end is closed by it at once.
func (g *generation) end() {
	if g.timer != nil {
		g.timer.Stop()
	}
	g.cancel(context.Canceled)
	if g.stop != nil {
		g.stop()
	}
	for i, b := range g.bodies {
		b.detach()
		g.bodies[i] = nil
	}
	g.bodies = g.bodies[:0]
	if g.resp != nil {
		g.resp.Body.Close()
	}
	if t := g.req.Timeline; t != nil {
		now := time.Now()
		if g.first.IsZero() {
			t.Add("engine", engine.Compute, g.began, now)
		} else {
			t.Add("prefill", engine.Compute, g.began, g.first)
			t.Add("decode", engine.Compute, g.first, now)
		}
	}
}

// keepBuffer is the largest buffer that a pooled generation keeps.
const keepBuffer = 256 << 10

func (g *generation) release() {
	c := g.c
	if cap(g.events.buf) > keepBuffer {
		g.events.buf = nil
	}
	if cap(g.events.joined) > keepBuffer {
		g.events.joined = nil
	}
	if cap(g.scratch) > keepBuffer {
		g.scratch = nil
	}
	if cap(g.answer) > keepBuffer {
		g.answer = nil
	}
	if cap(g.parse.ids)*4 > keepBuffer {
		g.parse.ids = nil
	}
	g.events.r, g.chunk, g.parse.failure = nil, engine.Chunk{}, nil
	g.c, g.req, g.ctx, g.cancel, g.stop, g.timer, g.resp = nil, nil, nil, nil, nil, nil, nil
	c.state.Put(g)
}

func (g *generation) run(yield func(*engine.Chunk, error) bool) error {
	if int(g.req.API) >= len(g.c.urls) || g.c.urls[g.req.API] == nil {
		return fmt.Errorf("openai: unknown API %d", g.req.API)
	}
	body, buf, err := g.c.prepare(g.scratch, g.req)
	g.scratch = buf
	if err != nil {
		return &engine.Error{Status: http.StatusBadRequest, Type: "BadRequestError", Message: err.Error()}
	}
	if err := g.send(body); err != nil {
		return err
	}
	resp := g.resp
	if resp.StatusCode != http.StatusOK {
		if resp.StatusCode >= 200 && resp.StatusCode < 400 {
			return fmt.Errorf("%w: status %d", engine.ErrProtocol, resp.StatusCode)
		}
		return readFailure(resp)
	}
	events := isEvents(resp.Header.Get("Content-Type"), g.req.Stream)
	if !events {
		return g.whole(yield)
	}
	if !g.req.Stream {
		return fmt.Errorf("%w: event stream for a request that does not stream", engine.ErrProtocol)
	}
	g.events.reset(resp.Body, g.c.opts.MaxEvent)
	return g.stream(yield)
}

func isEvents(contentType string, def bool) bool {
	if contentType == "" {
		return def
	}
	if contentType == "text/event-stream; charset=utf-8" {
		return true
	}
	t, _, _ := mime.ParseMediaType(contentType)
	return t == "text/event-stream"
}

// send makes the exchange up to the answer's header.
func (g *generation) send(body []byte) error {
	if d := g.c.opts.FirstByteTimeout; d > 0 {
		g.limit(d)
	}
	u := g.c.urls[g.req.API]
	attach := func() (io.ReadCloser, error) {
		b := &sendBody{data: body}
		g.bodies = append(g.bodies, b)
		return b, nil
	}
	first, _ := attach()
	hr := (&http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: g.c.sendHeader(g.req), Body: first, GetBody: attach, ContentLength: int64(len(body)),
	}).WithContext(g.ctx)
	resp, err := g.c.rt.RoundTrip(hr)
	if err != nil {
		return g.fault(engine.ErrUnreachable, err)
	}
	g.resp = resp
	return nil
}

// limit lets the generation fail with ErrTimeout unless it is moved on within d.
func (g *generation) limit(d time.Duration) {
	cancel := g.cancel // not g: it is reused
	g.timer = time.AfterFunc(d, func() { cancel(engine.ErrTimeout) })
}

// progress moves the time limit on: an event came.
func (g *generation) progress() {
	switch idle := g.c.opts.IdleTimeout; {
	case idle == 0 && g.timer != nil && !g.any:
		g.timer.Stop()
	case idle > 0 && g.timer == nil:
		g.limit(idle)
	case idle > 0:
		g.timer.Reset(idle)
	}
}

// fault names a failure of the connection. Our own limits and the caller's
// context come before what the connection says about being closed.
func (g *generation) fault(kind, err error) error {
	if g.ctx.Err() != nil {
		if errors.Is(context.Cause(g.ctx), engine.ErrTimeout) {
			return engine.ErrTimeout
		}
		return g.ctx.Err()
	}
	if errors.Is(err, engine.ErrProtocol) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// stream relays events until the end.
func (g *generation) stream(yield func(*engine.Chunk, error) bool) error {
	for {
		data, err := g.events.next()
		if err != nil {
			return g.fault(engine.ErrCut, err)
		}
		g.progress()
		if g.parse.same(data, &g.chunk) {
			if err := g.ordinary(data, yield); err != nil {
				return err
			}
			continue
		}
		if string(data) == "[DONE]" {
			return g.done()
		}
		if err := g.parse.begin(data); err != nil {
			return err
		}
		if g.parse.failure != nil {
			return g.parse.failure
		}
		if err := g.event(data, yield); err != nil {
			return err
		}
	}
}

// ordinary yields an event's one chunk, which was read by the template.
func (g *generation) ordinary(data []byte, yield func(*engine.Chunk, error) bool) error {
	c := &g.chunk
	c.Raw, c.Usage, c.Part, c.Hidden, c.More = data, nil, false, false, g.events.ready()
	if c.Choice >= len(g.finished) {
		g.grow(c.Choice)
	}
	return g.yield(c, yield)
}

// event yields the chunks of one event, which is no error.
func (g *generation) event(data []byte, yield func(*engine.Chunk, error) bool) error {
	c, p := &g.chunk, &g.parse
	if !p.some {
		if !g.any && p.hasUse {
			// Usage before any choice is how a draining vLLM answers.
			return engine.ErrNotServed
		}
		*c = engine.Chunk{Choice: -1, Raw: data, Hidden: p.hasUse && !g.req.IncludeUsage}
		g.setUsage(c)
		c.More = g.events.ready()
		return g.yield(c, yield)
	}
	for {
		ok, err := p.next(c)
		if err != nil || !ok {
			return err
		}
		c.Raw, c.Usage, c.Part, c.Hidden, c.More = nil, nil, !p.choices.Last(), false, true
		if !c.Part {
			c.Raw, c.More = data, g.events.ready()
			g.setUsage(c)
			p.learn(data, c)
		}
		g.any = true
		if c.Finish != "" {
			if failed(c.Finish) {
				return g.aborted(c, yield)
			}
			g.finish(c.Choice)
		} else if c.Choice >= len(g.finished) {
			g.grow(c.Choice)
		}
		if err := g.yield(c, yield); err != nil {
			return err
		}
	}
}

func (g *generation) yield(c *engine.Chunk, yield func(*engine.Chunk, error) bool) error {
	if c.Tokens > 0 {
		if g.first.IsZero() {
			g.first = time.Now()
		}
		g.tokens += c.Tokens
	}
	g.chunks++
	if !yield(c, nil) {
		return errBroken
	}
	return nil
}

func (g *generation) setUsage(c *engine.Chunk) {
	if g.parse.hasUse {
		g.usage = g.parse.usage
		c.Usage = &g.usage
	}
}

// grow makes room for choices that the request did not announce; they have to
// finish like the others.
func (g *generation) grow(choice int) {
	g.open += choice + 1 - len(g.finished)
	g.finished = append(g.finished, make([]bool, choice+1-len(g.finished))...)
}

func (g *generation) finish(choice int) {
	if choice >= len(g.finished) {
		g.grow(choice)
	}
	if !g.finished[choice] {
		g.finished[choice] = true
		g.open--
	}
}

// aborted ends an answer that the engine gave up. Its last chunk may carry
// tokens, which whoever continues the answer needs; when they would be the
// first ones nothing is yielded, so that the request can go elsewhere.
func (g *generation) aborted(c *engine.Chunk, yield func(*engine.Chunk, error) bool) error {
	if g.tokens == 0 && c.Tokens == 0 {
		return engine.ErrNotServed
	}
	if g.tokens > 0 && c.Tokens > 0 {
		if err := g.yield(c, yield); err != nil {
			return err
		}
	}
	return engine.ErrAborted
}

// done judges an answer that ended with [DONE], and reads the connection to its
// end so that it can be used again.
func (g *generation) done() error {
	switch {
	case !g.any:
		return engine.ErrNotServed
	case g.open > 0:
		return fmt.Errorf("%w: [DONE] with %d choices unfinished", engine.ErrCut, g.open)
	}
	g.settle()
	return nil
}

// settle waits a moment for the end of the body after [DONE].
func (g *generation) settle() {
	cancel := g.cancel
	t := time.AfterFunc(settleTime, func() { cancel(context.Canceled) })
	defer t.Stop()
	for range 4 {
		if _, err := g.resp.Body.Read(g.events.buf); err != nil {
			return
		}
	}
}

// settleTime is how long the end of a body may trail [DONE] before the
// connection is given up.
const settleTime = 50 * time.Millisecond

// whole relays an answer that does not stream.
func (g *generation) whole(yield func(*engine.Chunk, error) bool) error {
	if err := g.readAnswer(); err != nil {
		return err
	}
	p, c := &g.parse, &g.chunk
	if err := p.begin(g.answer); err != nil {
		return err
	}
	switch {
	case p.failure != nil:
		return p.failure
	case !p.some:
		return engine.ErrNotServed
	case g.req.Stream:
		return fmt.Errorf("%w: one JSON object for a request that streams", engine.ErrProtocol)
	}
	// All choices are judged before the first is yielded: after a failure the
	// request can still go elsewhere.
	choices, total, failures := p.choices, 0, false
	for {
		ok, err := p.next(c)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		total += c.Tokens
		if failed(c.Finish) {
			failures = true
		} else if c.Finish != "" {
			g.finish(c.Choice)
		} else if c.Choice >= len(g.finished) {
			g.grow(c.Choice)
		}
	}
	switch {
	case failures && total == 0:
		return engine.ErrNotServed
	case failures:
		return engine.ErrAborted
	case g.open > 0:
		return fmt.Errorf("%w: %d choices unfinished", engine.ErrCut, g.open)
	}
	p.choices = choices
	given := 0
	for {
		ok, err := p.next(c)
		if err != nil || !ok {
			return err
		}
		c.Raw, c.Usage, c.Part, c.Hidden, c.More = nil, nil, !p.choices.Last(), false, true
		if !c.Part {
			c.Raw, c.More = g.answer, false
			g.setUsage(c)
			if c.Usage != nil && c.TokenIDs == nil {
				// Usage is of all choices together.
				c.Tokens = max(c.Tokens, c.Usage.Completion-given)
			}
		}
		given += c.Tokens
		if err := g.yield(c, yield); err != nil {
			return err
		}
	}
}

// firstAnswer is the most memory in bytes that an answer gets on the promise of
// its length.
const firstAnswer = 4 << 20

// readAnswer reads the whole body into g.answer.
func (g *generation) readAnswer() error {
	limit := g.c.opts.MaxBody
	if n := g.resp.ContentLength; n > int64(limit) {
		return fmt.Errorf("%w: answer of %d bytes exceeds MaxBody of %d", engine.ErrProtocol, n, limit)
	} else if n = min(n, firstAnswer); n >= int64(cap(g.answer)) {
		g.answer = make([]byte, 0, n+1)
	}
	g.answer = g.answer[:0]
	for {
		if len(g.answer) == cap(g.answer) {
			g.answer = append(g.answer, 0)[:len(g.answer)]
		}
		n, err := g.resp.Body.Read(g.answer[len(g.answer):cap(g.answer)])
		g.answer = g.answer[:len(g.answer)+n]
		if n > 0 {
			g.progress()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return g.fault(engine.ErrCut, err)
		case len(g.answer) > limit:
			return fmt.Errorf("%w: answer exceeds MaxBody of %d bytes", engine.ErrProtocol, limit)
		}
	}
}
