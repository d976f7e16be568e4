package openai

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// flight counts the requests at work and lets them go out.
type flight struct {
	mu       sync.Mutex
	count    int
	draining bool
	idle     chan struct{} // closed once draining and empty

	kill   context.Context // ends the requests that outlive a drain
	doKill context.CancelFunc
}

func (f *flight) init() {
	f.idle = make(chan struct{})
	f.kill, f.doKill = context.WithCancel(context.Background())
}

// enter counts a request in, unless the handler is draining or full.
func (f *flight) enter(limit int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.draining:
		return errDraining
	case f.count >= limit:
		return errBusy
	}
	f.count++
	return nil
}

func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count--; f.count == 0 && f.draining {
		close(f.idle)
	}
}

func (f *flight) isDraining() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.draining
}

func (f *flight) inFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// Drain refuses new generations with 503 and Retry-After and waits for those at
// work. When ctx ends first they are cancelled, their clients are told, and
// Drain returns an error with their number without waiting for them. The
// handler stays closed; /health answers 503. Drain may be called again.
func (h *Handler) Drain(ctx context.Context) error {
	f := &h.flight
	f.mu.Lock()
	if !f.draining {
		f.draining = true
		if f.count == 0 {
			close(f.idle)
		}
	}
	f.mu.Unlock()
	select {
	case <-f.idle:
		return nil
	default:
	}
	select {
	case <-f.idle:
		return nil
	case <-ctx.Done():
		n := f.inFlight()
		f.doKill()
		return fmt.Errorf("openai: drain: %d requests cut off: %w", n, ctx.Err())
	}
}

// counters are a handler's figures.
type counters struct {
	requests, streams, refused, failed, broken, gone, stripped atomic.Uint64
	chunks, tokens, bytesIn, bytesOut                          atomic.Uint64
}

// Stats are a [Handler]'s figures since it was made. Control path first, then
// data path.
type Stats struct {
	InFlight int    // generations at work
	Draining bool   // no new ones are taken
	Requests uint64 // generations accepted
	Streams  uint64 // of these, streamed
	Refused  uint64 // faulty, over a limit, while draining, or on no route
	Failed   uint64 // generations that ended in an error before their first byte
	Broken   uint64 // generations that ended in an error after it
	Gone     uint64 // generations whose client left
	Stripped uint64 // bodies from which fields were taken out

	Chunks   uint64 // events relayed
	Tokens   uint64 // output tokens in them
	BytesIn  uint64 // request bodies
	BytesOut uint64 // answers' payload
}

// Stats returns the figures; they are not one consistent moment.
func (h *Handler) Stats() Stats {
	c := &h.stats
	return Stats{
		InFlight: h.flight.inFlight(), Draining: h.flight.isDraining(),
		Requests: c.requests.Load(), Streams: c.streams.Load(), Refused: c.refused.Load(),
		Failed: c.failed.Load(), Broken: c.broken.Load(), Gone: c.gone.Load(), Stripped: c.stripped.Load(),
		Chunks: c.chunks.Load(), Tokens: c.tokens.Load(), BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
	}
}
