package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stator-go/stator/engine"
)

// A Harness drives one engine. All funcs must be safe for concurrent use.
type Harness struct {
	// New starts an engine for one subtest and stops it by t.Cleanup.
	New func(t *testing.T) Instance
	// Request makes a request that the engine answers in full, with at least
	// tokens output tokens in each of n choices. Each call returns a request of
	// its own, with its own body.
	Request func(stream bool, n, tokens int) *engine.Request
	// Bad makes a request that the engine must refuse as the client's fault; nil
	// for an engine that refuses nothing.
	Bad func() *engine.Request
	// Patience is how long to wait for a cancelled request to end on the engine;
	// 0 means 10 s.
	Patience time.Duration
}

// An Instance is a running engine.
type Instance struct {
	Engine engine.Engine
	// Active is the number of requests that the engine itself works on now, seen
	// from the far side where there is one. nil when it cannot be told: then the
	// engine's side of cancellation is not checked.
	Active func() int
}

// Run runs the suite, one subtest a promise.
func Run(t *testing.T, h Harness) {
	if h.New == nil || h.Request == nil {
		t.Fatal("enginetest: Harness needs New and Request")
	}
	if h.Patience == 0 {
		h.Patience = 10 * time.Second
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, *Harness, Instance)
	}{
		{"Stream", stream},
		{"Whole", whole},
		{"Choices", choices},
		{"Usage", usage},
		{"TextOrNot", textOrNot},
		{"BreakOff", breakOff},
		{"Cancel", cancelled},
		{"CancelledBefore", cancelledBefore},
		{"DeadlinePassed", deadlinePassed},
		{"ClientFault", clientFault},
		{"RequestUntouched", untouched},
		{"RequestReused", reused},
		{"Concurrent", concurrent},
		{"Again", again},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := h.New(t)
			c.run(t, &h, in)
			h.idle(t, in)
		})
	}
}

// idle waits until the engine works on nothing.
func (h *Harness) idle(t *testing.T, in Instance) {
	if in.Active == nil {
		return
	}
	for end := time.Now().Add(h.Patience); in.Active() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests still at work %v after their iterations ended", in.Active(), h.Patience)
		}
	}
}

// An answer is what a generation yielded, with memory of its own.
type answer struct {
	raws   [][]byte
	form   form
	text   map[int]string
	tokens int
	finish map[int]string
	usage  *engine.Usage
	shown  bool // usage came in a chunk that is not hidden
	hidden int
	chunks int
}

// A form says whether an engine brings the JSON of its answer itself.
type form uint8

const (
	formUnknown form = iota
	formRaw
	formPlain // chunks have no Raw: whoever serves them makes the JSON
)

// generate runs a request to its end and checks what holds for every answer.
func generate(ctx context.Context, e engine.Engine, req *engine.Request) (*answer, error) {
	a := &answer{text: map[int]string{}, finish: map[int]string{}}
	var last error
	ended := false
	for c, err := range e.Generate(ctx, req) {
		if ended {
			return a, errors.New("something was yielded after an error")
		}
		if err != nil {
			if c != nil {
				return a, errors.New("a chunk was yielded with an error")
			}
			last, ended = err, true
			continue
		}
		if err := a.add(c, req); err != nil {
			return a, err
		}
	}
	if last != nil {
		return a, last
	}
	n := max(req.N, 1) * max(req.Prompts, 1)
	for i := range n {
		switch f := a.finish[i]; f {
		case "":
			return a, fmt.Errorf("the sequence ended without an error, but choice %d of %d is not finished", i, n)
		case "abort", "error":
			return a, fmt.Errorf("the sequence ended without an error, but choice %d with %q", i, f)
		}
	}
	return a, nil
}

func (a *answer) add(c *engine.Chunk, req *engine.Request) error {
	a.chunks++
	n := max(req.N, 1) * max(req.Prompts, 1)
	switch {
	case c == nil:
		return errors.New("neither chunk nor error")
	case c.Choice < -1 || c.Choice >= n:
		return fmt.Errorf("choice %d of %d", c.Choice, n)
	case c.Choice == -1 && (c.Tokens != 0 || c.Finish != "" || c.Text != ""):
		return errors.New("a chunk without a choice has tokens, text or a finish reason")
	case c.TokenIDs != nil && c.Tokens != len(c.TokenIDs):
		return fmt.Errorf("%d tokens with %d ids", c.Tokens, len(c.TokenIDs))
	case c.Text != "" && c.Tokens < 1:
		return errors.New("a chunk with text counts no token")
	case c.Part && c.Raw != nil:
		return errors.New("a part carries Raw")
	case !c.Part && c.Raw != nil && !json.Valid(c.Raw):
		return fmt.Errorf("the bytes of a chunk are not JSON: %.100q", c.Raw)
	}
	if !c.Hidden {
		f := formPlain
		if c.Part || c.Raw != nil {
			f = formRaw
		}
		if a.form != formUnknown && a.form != f {
			return errors.New("chunks with Raw and chunks without it in one answer")
		}
		a.form = f
	}
	if a.form == formPlain && c.Choice >= 0 && a.finish[c.Choice] != "" && (c.Text != "" || len(c.TokenIDs) > 0 || c.Finish != "") {
		return fmt.Errorf("choice %d goes on after its finish", c.Choice)
	}
	if c.Raw != nil {
		a.raws = append(a.raws, bytes.Clone(c.Raw))
	}
	if c.Hidden {
		a.hidden++
	}
	if c.Usage != nil {
		u := *c.Usage
		a.usage, a.shown = &u, !c.Hidden
	}
	if c.Choice >= 0 {
		a.text[c.Choice] += c.Text
		a.tokens += c.Tokens
		if c.Finish != "" {
			a.finish[c.Choice] = c.Finish
		}
	}
	return nil
}

func stream(t *testing.T, h *Harness, in Instance) {
	a, err := generate(t.Context(), in.Engine, h.Request(true, 1, 5))
	if err != nil {
		t.Fatal(err)
	}
	if a.tokens < 1 || a.chunks < 1 {
		t.Fatalf("%d chunks, %d tokens", a.chunks, a.tokens)
	}
}

func whole(t *testing.T, h *Harness, in Instance) {
	a, err := generate(t.Context(), in.Engine, h.Request(false, 1, 5))
	if err != nil {
		t.Fatal(err)
	}
	if a.form == formPlain {
		return // in as many chunks as it likes
	}
	if len(a.raws) != 1 {
		t.Fatalf("%d bodies for a request that does not stream", len(a.raws))
	}
	if a.hidden > 0 {
		t.Fatal("the only body is hidden")
	}
}

func choices(t *testing.T, h *Harness, in Instance) {
	for _, streams := range []bool{true, false} {
		a, err := generate(t.Context(), in.Engine, h.Request(streams, 3, 4))
		if err != nil {
			t.Fatalf("stream %v: %v", streams, err)
		}
		if len(a.finish) != 3 || a.tokens < 3 {
			t.Fatalf("stream %v: %d choices, %d tokens", streams, len(a.finish), a.tokens)
		}
	}
}

// usage: what the client asked for is shown, what it did not ask for is hidden.
// An engine without Raw shows nothing itself.
func usage(t *testing.T, h *Harness, in Instance) {
	req := h.Request(true, 1, 5)
	a, err := generate(t.Context(), in.Engine, req)
	if err != nil {
		t.Fatal(err)
	}
	if a.form == formRaw && a.usage != nil && a.shown != req.IncludeUsage {
		t.Fatalf("usage shown: %v, asked for: %v", a.shown, req.IncludeUsage)
	}
	if u := a.usage; u != nil && (u.Completion < 1 || u.Cached < -1 || u.Cached > u.Prompt) {
		t.Fatalf("usage %+v", *u)
	}
}

// textOrNot: a caller that relays bytes may be spared text, never the count. One
// that gets no bytes needs the text all the same.
func textOrNot(t *testing.T, h *Harness, in Instance) {
	with, without := h.Request(true, 1, 5), h.Request(true, 1, 5)
	with.RawOnly, without.RawOnly = false, true
	a, err := generate(t.Context(), in.Engine, with)
	if err != nil {
		t.Fatal(err)
	}
	b, err := generate(t.Context(), in.Engine, without)
	if err != nil {
		t.Fatal(err)
	}
	if a.tokens > 0 != (b.tokens > 0) {
		t.Fatalf("%d tokens with text, %d without", a.tokens, b.tokens)
	}
	if b.form == formPlain && a.text[0] != "" && b.text[0] == "" {
		t.Fatal("neither Raw nor text for a request with RawOnly")
	}
}

func breakOff(t *testing.T, h *Harness, in Instance) {
	n := 0
	for _, err := range in.Engine.Generate(t.Context(), h.Request(true, 1, 400)) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 1 {
			break
		}
	}
	if n != 1 {
		t.Fatalf("%d chunks", n)
	}
}

func cancelled(t *testing.T, h *Harness, in Instance) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range in.Engine.Generate(ctx, h.Request(true, 1, 400)) {
		last = err
		cancel()
	}
	// An engine may have finished before it saw the cancellation.
	if last != nil && !errors.Is(last, context.Canceled) {
		t.Fatalf("the error of a cancelled request is %v", last)
	}
	if engine.Retryable(last) {
		t.Fatalf("%v: a cancelled request is not to be sent again", last)
	}
}

func cancelledBefore(t *testing.T, h *Harness, in Instance) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a, err := generate(ctx, in.Engine, h.Request(true, 1, 5))
	if !errors.Is(err, context.Canceled) || a.chunks > 0 {
		t.Fatalf("%d chunks, error %v", a.chunks, err)
	}
}

func deadlinePassed(t *testing.T, h *Harness, in Instance) {
	req := h.Request(true, 1, 5)
	req.Deadline = time.Now().Add(-time.Second)
	a, err := generate(t.Context(), in.Engine, req)
	if err == nil || a.chunks > 0 {
		t.Fatalf("%d chunks, error %v", a.chunks, err)
	}
}

func clientFault(t *testing.T, h *Harness, in Instance) {
	if h.Bad == nil {
		return
	}
	a, err := generate(t.Context(), in.Engine, h.Bad())
	var e *engine.Error
	if !errors.As(err, &e) || e.Status < 400 || e.Status > 499 || e.Message == "" {
		t.Fatalf("a faulty request gives %v, want an engine.Error of status 4xx with a message", err)
	}
	if a.chunks > 0 || engine.Retryable(err) {
		t.Fatalf("%d chunks, retryable %v", a.chunks, engine.Retryable(err))
	}
}

func untouched(t *testing.T, h *Harness, in Instance) {
	req := h.Request(true, 1, 5)
	req.Header = map[string][]string{"Traceparent": {"00-1"}}
	before, body, tokens := *req, bytes.Clone(req.Body), len(req.Tokens)
	if _, err := generate(t.Context(), in.Engine, req); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(req.Body, body) {
		t.Fatal("the body was changed")
	}
	if len(req.Header) != 1 || len(req.Tokens) != tokens || req.ID != before.ID || req.Stream != before.Stream || req.Rank != before.Rank {
		t.Fatalf("the request was changed: %+v", *req)
	}
}

// reused: after the iteration the caller may do with the request what it likes,
// also when it broke off or was refused.
func reused(t *testing.T, h *Harness, in Instance) {
	for i := range 20 {
		req := h.Request(i%2 == 0, 1, 20)
		for range in.Engine.Generate(t.Context(), req) {
			if i%3 == 0 {
				break
			}
		}
		for j := range req.Body {
			req.Body[j] = 'x'
		}
		*req = engine.Request{}
	}
}

func concurrent(t *testing.T, h *Harness, in Instance) {
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 4 {
				if _, err := generate(t.Context(), in.Engine, h.Request(i%2 == 0, 1, 5)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// again: failures and cancellations leave the engine as good as it was.
func again(t *testing.T, h *Harness, in Instance) {
	if h.Bad != nil {
		generate(t.Context(), in.Engine, h.Bad())
	}
	breakOff(t, h, in)
	if _, err := generate(t.Context(), in.Engine, h.Request(false, 1, 5)); err != nil {
		t.Fatal(err)
	}
}
