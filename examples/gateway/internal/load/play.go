package load

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/internal/report"
	"github.com/stator-go/stator/internal/trace"
)

// Options say what to play, where and how fast.
type Options struct {
	// URL is the server's base URL, without /v1.
	URL string
	// Model is the model to ask for.
	Model string
	// Speed is how many seconds of trace time pass in a second; 0 means 1.
	Speed float64
	// Scale turns wall clock into the time of the figures; 0 means Speed. It is
	// 1 for engines that do not run faster themselves.
	Scale float64
	// Simulated says that the engines are of package sim. Then every request names
	// the same max_tokens, at least [MinBound], and the length of its answer goes
	// in vllm_xargs, which is for the engine only. Else max_tokens is that length.
	Simulated bool
	// Requests in the order of their times.
	Requests []trace.Request
	// Cold is the time that an idle engine needs for a prompt of n tokens,
	// which the limit of a good request grows by; nil means none.
	Cold func(n int) time.Duration
	// MaxActive bounds the requests in flight; a request beyond it waits, and
	// its clock runs. 0 means 4096.
	MaxActive int
	// Limit bounds one request, in wall clock; 0 means ten minutes.
	Limit time.Duration
	// Answered is called after each request with the number done so far; it
	// must be safe for concurrent use. May be nil.
	Answered func(done int)
}

// An Outcome is how one request went.
type Outcome struct {
	report.Sample
	// Late is how long after its time the request was sent: it is part of TTFT,
	// and the fault of the machine that plays, not of the server.
	Late time.Duration
	Err  error // nil if the request was answered in full
}

// Play plays the trace and returns an outcome for each request, in their
// order. It ends when all are answered or ctx is, and leaves nothing running.
func Play(ctx context.Context, o Options) ([]Outcome, error) {
	if !(o.Speed > 0) {
		o.Speed = 1
	}
	if !(o.Scale > 0) {
		o.Scale = o.Speed
	}
	if o.MaxActive <= 0 {
		o.MaxActive = 4096
	}
	if o.Limit <= 0 {
		o.Limit = 10 * time.Minute
	}
	// Prompts are large and many connections start at once, hence the write
	// buffer and the room for idle connections. No proxy: the server is ours.
	tr := &http.Transport{
		MaxIdleConns: o.MaxActive, MaxIdleConnsPerHost: o.MaxActive, IdleConnTimeout: 4 * time.Second,
		DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 8 << 10,
	}
	defer tr.CloseIdleConnections()
	limit := 0
	if o.Simulated {
		limit = bound(o.Requests)
	}
	p := &player{o: o, limit: limit, client: &http.Client{Transport: tr}, out: make([]Outcome, len(o.Requests)), slots: make(chan struct{}, o.MaxActive)}
	return p.out, p.play(ctx)
}

type player struct {
	o      Options
	limit  int // of output, as in appendBody
	client *http.Client
	out    []Outcome
	slots  chan struct{}
	done   atomic.Int64
	bodies sync.Pool
	reader sync.Pool
}

func (p *player) play(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var first time.Duration
	if len(p.o.Requests) > 0 {
		first = p.o.Requests[0].At
	}
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range p.o.Requests {
		// The body is made ahead of its time, so that making it delays nobody.
		r := &p.o.Requests[i]
		body, _ := p.bodies.Get().(*[]byte)
		if body == nil {
			body = new([]byte)
		}
		*body = appendBody((*body)[:0], p.o.Model, r, p.limit)
		due := start.Add(after(r.At-first, p.o.Speed))
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		wg.Go(func() {
			p.out[i] = p.one(ctx, i, r, due, *body)
			if p.out[i].Err == nil {
				// Of a failed request the transport may still be reading the body.
				p.bodies.Put(body)
			}
			<-p.slots
			if done := p.done.Add(1); p.o.Answered != nil {
				p.o.Answered(int(done))
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// after is how long a time of the trace lasts in wall clock.
func after(d time.Duration, speed float64) time.Duration {
	return time.Duration(min(float64(d)/speed, float64(maxWait)))
}

// maxWait is as good as never, and far from overflow.
const maxWait = 100 * 365 * 24 * time.Hour

// one sends a request and measures its answer.
func (p *player) one(ctx context.Context, i int, r *trace.Request, due time.Time, body []byte) (out Outcome) {
	out.Prompt = r.Input
	if p.o.Cold != nil {
		out.Cold = p.o.Cold(r.Input)
	}
	fail := func(err error) Outcome {
		out.Failed, out.Err = true, fmt.Errorf("request %d: %w", i+1, err)
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.o.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", fmt.Sprintf("trace-%05d", i+1))
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) * p.o.Scale) }
	out.Late = scale(time.Since(due))
	resp, err := p.client.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fail(statusError(resp))
	}
	rd, _ := p.reader.Get().(*answer)
	if rd == nil {
		rd = new(answer)
	}
	defer p.reader.Put(rd)
	if err := rd.read(resp.Body); err != nil {
		return fail(err)
	}
	if rd.completion != r.Output {
		return fail(fmt.Errorf("answered %d of %d tokens", rd.completion, r.Output))
	}
	out.TTFT = scale(rd.first.Sub(due))
	if r.Output > 1 {
		out.ITL, out.HasITL = scale(rd.last.Sub(rd.first))/time.Duration(r.Output-1), true
	}
	out.Prompt, out.Cached = rd.prompt, max(0, rd.cached)
	return out
}
