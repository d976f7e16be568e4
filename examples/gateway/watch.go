package main

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
	"github.com/stator-go/stator/engine/pool"
	"github.com/stator-go/stator/examples/gateway/internal/page"
	"github.com/stator-go/stator/router"
)

// A watch stands between the handler and the fleet and tells the page of each
// request. It is an engine around another one, as any wrapper in this library.
type watch struct {
	page *page.Page
	next *pool.Pool
	// up is the number of workers that take requests.
	up func() int
	// predict is the number of cached tokens to expect of a decision.
	predict func(*router.Decision) int
	open    sync.Map // *engine.Request to *page.Request, of requests at work
}

// start and end are the handler's hooks.
func (w *watch) start(req *engine.Request) {
	start := time.Now()
	if s := req.Timeline.Spans(); len(s) > 0 {
		start = s[0].Start
	}
	w.open.Store(req, w.page.Begin(req.ID, start, len(req.Tokens), req.Timeline))
}

func (w *watch) end(req *engine.Request, res *openai.Result) {
	if r, ok := w.open.LoadAndDelete(req); ok {
		err := res.Err
		if res.Gone {
			err = page.ErrLeft
		}
		r.(*page.Request).End(res.Usage, err, own(req.Timeline.Spans()))
	}
}

// picked is the pool's hook: it puts the decision on the page.
func (w *watch) picked(req *engine.Request, worker string, d *router.Decision) {
	if r, ok := w.open.Load(req); ok {
		r.(*page.Request).Sent(worker, d.Tokens, w.predict(d))
	}
	p := page.Decision{
		Worker: worker, Tokens: d.Tokens, Reused: d.Hit, Total: d.Cost.Total,
		Cost: page.Cost{Queue: d.Cost.Queue, Prefill: d.Cost.Prefill, Load: d.Cost.Load, Transfer: d.Cost.Transfer,
			Decode: d.Cost.Decode, Memory: d.Cost.Memory, Price: d.Cost.Price},
	}
	for i := range d.Alternates {
		if c := d.Alternates[i].Cost.Total; p.Next == nil || c < *p.Next {
			p.Next = &c
		}
	}
	w.page.Decide(p)
}

// own is the gateway's own share of a request's time.
func own(spans []engine.Span) (o page.Own) {
	for _, s := range spans {
		switch s.Class {
		case engine.Control:
			o.Control += s.End.Sub(s.Start)
		case engine.Data:
			o.Relay += s.End.Sub(s.Start)
		}
	}
	return o
}

// A wrapper must pass on what else the engine can, or the handler cannot see it.
var (
	_ engine.HealthChecker = (*watch)(nil)
	_ engine.ModelLister   = (*watch)(nil)
)

// Health implements engine.HealthChecker: the fleet looks at its workers all the
// time, so nobody has to be asked, and one that hangs delays no answer.
func (w *watch) Health(context.Context) error {
	if w.up() == 0 {
		return engine.ErrUnavailable
	}
	return nil
}

// Models implements engine.ModelLister.
func (w *watch) Models(ctx context.Context) ([]engine.Model, error) { return w.next.Models(ctx) }

// Generate implements engine.Engine.
func (w *watch) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		v, _ := w.open.Load(req)
		r, _ := v.(*page.Request)
		for c, err := range w.next.Generate(ctx, req) {
			if r != nil && err == nil && c.Tokens > 0 {
				r.Tokens(c.Tokens)
			}
			if !yield(c, err) {
				return
			}
		}
	}
}
