package page

import (
	_ "embed"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/engine"
)

//go:embed index.html
var indexHTML []byte

// Sizes of the rings.
const (
	maxDecisions = 40
	maxTrips     = 48
	maxWindow    = 512 // requests that latencies are taken over
	maxIntervals = 60
	maxResults   = 16
	maxSpans     = 24   // of one trip
	maxWorkers   = 1024 // listed in one state
	maxError     = 512  // bytes of an error's text
	rateSteps    = 6    // intervals that the output rate is taken over
)

// ErrLeft is a request's end when its client did not wait for it, which is
// nobody's error.
var ErrLeft = errors.New("the client left")

// interval is the length of one step of the history, in trace time.
const interval = 5 * time.Second

// Options configure a Page. The zero value is ready for use.
type Options struct {
	// Speed is how many seconds of trace time pass in a second; 0 means 1.
	Speed float64
	// Model gives the name to show in the page's sample request; nil for none.
	// It must be safe for concurrent use.
	Model func() string
	// Workers lists the workers when somebody looks; nil for none. It must be
	// safe for concurrent use.
	Workers func() []Worker
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A Page collects what the live page shows and serves it. It is safe for
// concurrent use.
type Page struct {
	opts  Options
	start time.Time

	mu        sync.Mutex
	zero      time.Time // start of the run
	policy    string
	run       Run
	totals    Totals
	own       Own // sums over requests
	ended     int // how many
	ttft, itl ring[float64]
	history   ring[sums]
	results   ring[Result]
	decisions ring[Decision]
	trips     ring[*Request]
}

// sums is an Interval in the making.
type sums struct {
	step                             int64
	ended, ttftN, itlN               int
	ttft, itl, own                   float64
	prompt, cached, output, answered int
}

// New returns an empty page.
func New(opts Options) *Page {
	if !(opts.Speed > 0) {
		opts.Speed = 1
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	p := &Page{
		opts: opts,
		ttft: newRing[float64](maxWindow), itl: newRing[float64](maxWindow),
		history: newRing[sums](maxIntervals), results: newRing[Result](maxResults),
		decisions: newRing[Decision](maxDecisions), trips: newRing[*Request](maxTrips),
	}
	p.start = opts.Now()
	p.zero = p.start
	return p
}

// secs turns a wall-clock duration into seconds of trace time.
func (p *Page) secs(d time.Duration) float64 { return d.Seconds() * p.opts.Speed }

// Start begins a run: totals, history, decisions and trips are emptied.
func (p *Page) Start(policy string, run Run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	active := p.totals.Active
	p.zero, p.policy, p.run = p.opts.Now(), policy, run
	p.totals = Totals{Active: active}
	p.own, p.ended = Own{}, 0
	p.ttft.reset()
	p.itl.reset()
	p.history.reset()
	p.decisions.reset()
	p.trips.reset()
}

// Progress says how many requests of the run are done.
func (p *Page) Progress(done int) {
	p.mu.Lock()
	p.run.Done = done
	p.mu.Unlock()
}

// Finish ends a run; its figures stay on the page. r may be nil.
func (p *Page) Finish(title string, r *Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run = Run{Title: title}
	if r != nil {
		p.results.put(*r)
	}
}

// Decide records a pick. At is filled in, and the seconds of the cost are taken
// as trace time already when the router's clock runs in it.
func (p *Page) Decide(d Decision) {
	now := p.opts.Now()
	for _, v := range []*float64{&d.Total, &d.Cost.Queue, &d.Cost.Prefill, &d.Cost.Load, &d.Cost.Transfer, &d.Cost.Decode, &d.Cost.Memory, &d.Cost.Price} {
		if !finite(*v) {
			*v = 0
		}
	}
	d.Next = known(d.Next)
	p.mu.Lock()
	d.At = p.secs(now.Sub(p.zero))
	p.decisions.put(d)
	p.mu.Unlock()
}

// A Request is one request on its way.
type Request struct {
	p        *Page
	id       string
	start    time.Time
	timeline *engine.Timeline
	prompt   int
	output   atomic.Int64

	// Guarded by p.mu.
	worker    string
	predicted int // -1 = not sent yet
	first     time.Time
	end       time.Time
	cached    int
	failed    string
	left      bool
	spans     []engine.Span // set at the end, so that the timeline can go
}

// Begin records a request that arrived at start. Its timeline is read while it
// runs.
func (p *Page) Begin(id string, start time.Time, prompt int, tl *engine.Timeline) *Request {
	r := &Request{p: p, id: id, start: start, timeline: tl, prompt: prompt, predicted: -1, cached: -1}
	p.mu.Lock()
	p.totals.Active++
	p.trips.put(r)
	p.mu.Unlock()
	return r
}

// Sent says which worker the request went to, the last one counting, how many
// tokens its prompt has and how many of them the engine is expected to report as
// cached.
func (r *Request) Sent(worker string, prompt, predicted int) {
	r.p.mu.Lock()
	r.worker, r.prompt, r.predicted = worker, prompt, predicted
	r.p.mu.Unlock()
}

// Tokens adds output tokens. The first call marks the first token.
func (r *Request) Tokens(n int) {
	if r.output.Add(int64(n)) == int64(n) {
		now := r.p.opts.Now()
		r.p.mu.Lock()
		r.first = now
		r.p.mu.Unlock()
	}
}

// End records the end: the usage if the engine told it, the error if there was
// one ([ErrLeft] when the client is gone), and the gateway's own time.
func (r *Request) End(usage *engine.Usage, err error, own Own) {
	p, now := r.p, r.p.opts.Now()
	var spans []engine.Span
	if r.timeline != nil {
		spans = r.timeline.Spans()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.end.IsZero() {
		return
	}
	r.end, r.spans, r.timeline = now, spans[:min(len(spans), maxSpans)], nil
	p.totals.Active--
	p.totals.Requests++
	output := int(r.output.Load())
	if usage != nil {
		output, r.prompt, r.cached = max(output, usage.Completion), max(r.prompt, usage.Prompt), usage.Cached
		r.output.Store(int64(output))
	}
	step := int64(p.secs(now.Sub(p.zero)) / interval.Seconds())
	h := p.history.last()
	if h == nil || h.step != step {
		p.history.put(sums{step: step})
		h = p.history.last()
	}
	h.ended++
	h.output += output
	p.totals.OutputTokens += output
	switch {
	case errors.Is(err, ErrLeft):
		p.totals.Left++
		r.left = true
		return
	case err != nil:
		p.totals.Errors++
		r.failed = err.Error()
		r.failed = r.failed[:min(len(r.failed), maxError)]
		return
	}
	if usage != nil && usage.Cached >= 0 {
		p.totals.PromptTokens += usage.Prompt
		p.totals.CachedTokens += usage.Cached
		h.prompt += usage.Prompt
		h.cached += usage.Cached
	}
	if !r.first.IsZero() {
		v := p.secs(r.first.Sub(r.start))
		p.ttft.put(v)
		h.ttft += v
		h.ttftN++
		if output > 1 {
			v := p.secs(now.Sub(r.first)) / float64(output-1)
			p.itl.put(v)
			h.itl += v
			h.itlN++
		}
	}
	p.own.Control += own.Control
	p.own.Relay += own.Relay
	p.ended++
	h.own += own.Sum().Seconds()
	h.answered++
}

// Own is the gateway's own share of a request's time, wall clock.
type Own struct {
	Control time.Duration // accepting, tokens, picking: before the engine is asked
	Relay   time.Duration // passing chunks on
}

// Sum is all of it.
func (o Own) Sum() time.Duration { return o.Control + o.Relay }

// Own is the mean over the answered requests of this run.
func (p *Page) Own() Own {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := time.Duration(max(1, p.ended))
	return Own{p.own.Control / n, p.own.Relay / n}
}

// State is a snapshot.
func (p *Page) State() State {
	workers := []Worker{}
	if p.opts.Workers != nil {
		workers = append(workers, p.opts.Workers()...)
		workers = workers[:min(len(workers), maxWorkers)]
		for i := range workers {
			workers[i].KV, workers[i].Reuse = known(workers[i].KV), known(workers[i].Reuse)
		}
	}
	model := ""
	if p.opts.Model != nil {
		model = p.opts.Model()
	}
	now := p.opts.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := State{
		Now: p.secs(now.Sub(p.zero)), Speed: p.opts.Speed, Policy: p.policy, Model: model,
		Run: p.run, Totals: p.totals, Workers: workers,
		History: []Interval{}, Results: []Result{}, Decisions: []Decision{}, Requests: []Trip{},
	}
	s.Totals.Window = p.ttft.n
	s.Totals.TTFTMean, s.Totals.TTFTP95 = meanP95(&p.ttft)
	s.Totals.ITLMean, s.Totals.ITLP95 = meanP95(&p.itl)
	s.Totals.OwnWall = ratio(p.own.Sum().Seconds(), p.ended)
	s.Totals.OwnControl = ratio(p.own.Control.Seconds(), p.ended)
	for i := range p.history.n {
		s.History = append(s.History, p.history.at(p.history.n-1-i).interval())
	}
	s.Totals.OutputRate = p.outputRate(int64(s.Now / interval.Seconds()))
	for i := range p.results.n {
		s.Results = append(s.Results, p.results.at(p.results.n-1-i))
	}
	for i := range p.decisions.n {
		s.Decisions = append(s.Decisions, p.decisions.at(i))
	}
	for i := range p.trips.n {
		s.Requests = append(s.Requests, p.trips.at(i).trip(now))
	}
	return s
}

// outputRate is the output over the whole intervals before step, those in which
// nothing ended included. The page's lock is held.
func (p *Page) outputRate(step int64) *float64 {
	sum, n := 0, min(step, rateSteps)
	for i := range p.history.n {
		if h := p.history.at(i); h.step < step && h.step >= step-n {
			sum += h.output
		}
	}
	return ratio(float64(sum)/interval.Seconds(), int(n))
}

// finite reports whether JSON has a number for v.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// known is v unless it stands for no number: what engines report may be
// anything, and one such figure must not make the whole state unreadable.
func known(v *float64) *float64 {
	if v == nil || !finite(*v) {
		return nil
	}
	return v
}

func (h sums) interval() Interval {
	return Interval{
		At: float64(h.step) * interval.Seconds(), Ended: h.ended,
		TTFT: ratio(h.ttft, h.ttftN), ITL: ratio(h.itl, h.itlN), Reuse: ratio(float64(h.cached), h.prompt),
		Output: float64(h.output) / interval.Seconds(), Own: ratio(h.own, h.answered),
	}
}

// trip is the request as the page shows it. The page's lock is held.
func (r *Request) trip(now time.Time) Trip {
	p, end, spans := r.p, r.end, r.spans
	t := Trip{ID: r.id, At: p.secs(r.start.Sub(p.zero)), Worker: r.worker, Prompt: r.prompt, Output: int(r.output.Load()), Error: r.failed, Left: r.left}
	if r.end.IsZero() {
		t.Live, end = true, now
		spans = r.timeline.Spans()
		spans = spans[:min(len(spans), maxSpans)]
	}
	t.Total = p.secs(end.Sub(r.start))
	if n := r.predicted; n >= 0 {
		t.Predicted = &n
	}
	if n := r.cached; n >= 0 {
		t.Cached = &n
	}
	if !r.first.IsZero() {
		v := p.secs(r.first.Sub(r.start))
		t.TTFT = &v
	}
	t.Spans = p.pieces(r, spans, end)
	return t
}

// pieces lays out a trip's spans. Of the engine's time the part after the first
// token is called decode; what no span covers between the last one and the end
// is the engine's as well, since the gateway only waits then.
func (p *Page) pieces(r *Request, spans []engine.Span, end time.Time) []Span {
	out := make([]Span, 0, len(spans)+2)
	add := func(name string, class engine.Class, from, to time.Time, live bool) {
		if from.Before(r.start) {
			from = r.start
		}
		if to.After(end) {
			to = end
		}
		if to.After(from) {
			out = append(out, Span{name, class.String(), p.secs(from.Sub(r.start)), p.secs(to.Sub(r.start)), live})
		}
	}
	split := func(name string, from, to time.Time, live bool) {
		if !r.first.IsZero() && r.first.After(from) && r.first.Before(to) {
			add(name, engine.Compute, from, r.first, false)
			from = r.first
		}
		if !r.first.IsZero() && !from.Before(r.first) {
			name = "decode"
		}
		add(name, engine.Compute, from, to, live)
	}
	covered, computed := r.start, false
	for _, s := range spans {
		if s.Class == engine.Compute {
			split(s.Name, s.Start, s.End, false)
			computed = true
		} else {
			add(s.Name, s.Class, s.Start, s.End, false)
		}
		if s.End.After(covered) {
			covered = s.End
		}
	}
	if !computed || r.end.IsZero() {
		split("engine", covered, end, r.end.IsZero())
	}
	return out
}

// ratio is sum over n, nil when there is nothing to divide by.
func ratio(sum float64, n int) *float64 {
	if n == 0 {
		return nil
	}
	v := sum / float64(n)
	return &v
}

func meanP95(r *ring[float64]) (mean, p95 *float64) {
	if r.n == 0 {
		return nil, nil
	}
	sorted := slices.Clone(r.buf[:r.n])
	slices.Sort(sorted)
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	q := sorted[min(int(math.Floor(0.95*float64(r.n))), r.n-1)]
	return ratio(sum, r.n), &q
}

// Register adds the page and its state to a mux.
func (p *Page) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(indexHTML)
	})
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(p.State())
	})
}
