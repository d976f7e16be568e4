package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/stator-go/stator/internal/zmtp"
)

// ErrClosed is returned for requests that come when the server has ended.
var ErrClosed = errors.New("sim: server closed")

// errBusy: Options.MaxRequests are in the server.
var errBusy = errors.New("sim: too many requests")

// A Server is a simulated engine behind the wire forms of vLLM 0.32: OpenAI
// HTTP, KV events by ZeroMQ with replay, Prometheus text. Its habits are those
// of the real one as far as clients can see them; the time of every step is the
// core's, divided by Options.Speed.
//
// One goroutine drives the engine; requests have the goroutines of net/http.
// All methods are safe for concurrent use.
type Server struct {
	opts    Options
	tok     *Tokenizer
	http    *http.Server
	events  publisher
	started time.Time
	wake    chan struct{} // has room for one
	stop    chan struct{} // closed by Close
	once    sync.Once
	wg      sync.WaitGroup

	mu       sync.Mutex
	core     *Core
	next     float64 // when Step is to be called
	nextID   uint64
	calls    map[*call]struct{}
	draining bool
	closed   bool
	stopped  uint64 // sequences that ended with "stop"
	length   uint64 // and with "length"
	lat      latencies
	idle     chan struct{} // closed when draining and no call is left
}

// NewServer opens the listeners that the options do not bring and starts. After
// an error the options' own listeners are still open.
func NewServer(opts *Options) (*Server, error) {
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	core, err := NewCore(o.Config)
	if err != nil {
		return nil, err
	}
	var opened []net.Listener
	open := func(l *net.Listener) {
		if *l != nil || err != nil {
			return
		}
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			opened = append(opened, *l)
		}
	}
	open(&o.HTTP)
	if !o.NoEvents {
		open(&o.Events)
		open(&o.Replay)
	}
	if err != nil {
		for _, l := range opened {
			_ = l.Close()
		}
		return nil, fmt.Errorf("sim: %w", err)
	}
	if o.Topic == "" {
		o.Topic = "kv@" + o.HTTP.Addr().String() + "@" + o.Model
	}
	s := &Server{
		opts: o, core: core, tok: NewTokenizer(), started: time.Now(), next: math.Inf(1),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), idle: make(chan struct{}),
		calls: map[*call]struct{}{}, lat: newLatencies(),
	}
	s.events = publisher{topic: []byte(o.Topic), maxSteps: o.BufferSteps, maxBytes: o.BufferBytes}
	if o.Events != nil {
		s.events.pub = zmtp.NewPub(o.Events, nil)
	}
	if o.Replay != nil {
		s.events.sock = zmtp.NewRouterSock(o.Replay, nil, s.events.replay)
	}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       5 * time.Second, // as the real one closes idle connections
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	s.wg.Go(s.drive)
	s.wg.Go(func() { _ = s.http.Serve(o.HTTP) })
	return s, nil
}

// URL is the base of the HTTP endpoints.
func (s *Server) URL() string { return "http://" + s.opts.HTTP.Addr().String() }

// EventsEndpoint is where subscribers connect, "" without events.
func (s *Server) EventsEndpoint() string { return endpoint(s.opts.Events) }

// ReplayEndpoint is where replay requests go, "" without events.
func (s *Server) ReplayEndpoint() string { return endpoint(s.opts.Replay) }

func endpoint(l net.Listener) string {
	switch {
	case l == nil:
		return ""
	case strings.HasPrefix(l.Addr().Network(), "unix"):
		return "ipc://" + l.Addr().String()
	}
	return "tcp://" + l.Addr().String()
}

// Model is the served model's name.
func (s *Server) Model() string { return s.opts.Model }

// Tokenizer is the server's, which knows the words that it has seen.
func (s *Server) Tokenizer() *Tokenizer { return s.tok }

// Stats returns the engine's figures.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Stats()
}

// Reset empties the prefix cache, as POST /reset_prefix_cache does; false if it
// could not because requests are running.
func (s *Server) Reset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Reset()
}

// now is the engine's clock.
func (s *Server) now() float64 { return time.Since(s.started).Seconds() * s.opts.Speed }

// drive steps the engine in time. The engine's own times do not depend on how
// late this goroutine wakes: a step that is due begins when the one before
// ended, so lateness delays what clients see and never adds up.
func (s *Server) drive() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.advance()
		next := s.next
		s.mu.Unlock()
		wait := time.Hour
		if !math.IsInf(next, 1) {
			wait = time.Duration((next-s.now())/s.opts.Speed*1e9) + 1 // rounded up, or a step that is due in less than a nanosecond would spin
		}
		timer.Reset(wait)
		select {
		case <-s.stop:
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// advance does the steps that are due. s.mu is held, as in all that follow.
func (s *Server) advance() {
	for now := s.now(); s.next <= now; {
		s.step(s.next)
	}
}

func (s *Server) step(now float64) {
	next, out := s.core.Step(now)
	s.next = next
	for i := range out.Tokens {
		t := &out.Tokens[i]
		q := t.Req.Data.(*sequence)
		finish := ""
		if t.Done {
			finish = finishLength
			if t.Stopped {
				finish = finishStop
				s.stopped++
			} else {
				s.length++
			}
		}
		s.lat.token(q, out.At, t.First(), t.Done)
		q.call.token(q, t, finish)
		if t.Done {
			s.ended(q.call)
		}
	}
	if len(out.Cache) > 0 && !s.opts.NoEvents {
		ts := float64(time.Now().UnixMicro()) / 1e6
		s.events.publish(appendBatch(make([]byte, 0, batchSize(out.Cache)), ts, out.Cache, 0, s.opts.Adapters))
	}
}

// batchSize estimates a payload's size, to allocate it once.
func batchSize(events []CacheEvent) int {
	n := 32
	for i := range events {
		n += 240 + 10*len(events[i].Hashes) + 4*len(events[i].Tokens)
	}
	return n
}

// submit starts all sequences of a call at once.
func (s *Server) submit(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.draining {
		return ErrClosed
	}
	if len(s.calls) >= s.opts.MaxRequests {
		return errBusy
	}
	s.advance()
	now := s.now()
	for i := range c.seqs {
		q := &c.seqs[i]
		s.nextID++
		q.req.ID, q.arrived = s.nextID, now
		if err := s.core.Add(&q.req); err != nil {
			for j := range i {
				s.core.Cancel(c.seqs[j].req.ID)
			}
			return err
		}
	}
	c.open = len(c.seqs)
	s.calls[c] = struct{}{}
	if s.core.Idle() {
		s.step(now)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// ended counts a sequence of a call as over.
func (s *Server) ended(c *call) {
	if c.open--; c.open == 0 {
		delete(s.calls, c)
		if s.draining && len(s.calls) == 0 {
			close(s.idle)
		}
	}
}

// finish ends sequences from outside: stop strings, aborts, clients that left.
func (s *Server) finish(c *call, reason string, which func(*sequence) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(c, reason, which)
}

func (s *Server) finishLocked(c *call, reason string, which func(*sequence) bool) {
	for i := range c.seqs {
		q := &c.seqs[i]
		if (which == nil || which(q)) && s.core.Cancel(q.req.ID) {
			if reason == finishStop {
				s.stopped++
			}
			c.token(q, nil, reason)
			s.ended(c)
		}
	}
}

// abort ends every sequence that has one of the external ids.
func (s *Server) abort(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		s.finishLocked(c, finishAbort, func(q *sequence) bool {
			ext := c.id
			if !c.ask.chat {
				ext = fmt.Sprintf("%s-%d", c.id, q.prompt)
			}
			for _, id := range ids {
				if id == ext {
					return true
				}
			}
			return false
		})
	}
}

// Close ends the server as a killed process ends: all connections are cut at
// once. It waits for the server's goroutines and may be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.calls {
		c.cut()
	}
	s.mu.Unlock()
	s.once.Do(func() { close(s.stop) })
	err := s.http.Close()
	s.events.close()
	s.wg.Wait()
	return err
}

// Shutdown ends the server as SIGTERM ends a vLLM with its default settings: no
// new connections, running requests end with finish_reason "abort" and a proper
// end of the stream. When ctx ends first, the rest is cut.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for c := range s.calls {
		s.finishLocked(c, finishAbort, nil)
	}
	s.mu.Unlock()
	err := s.http.Shutdown(ctx)
	return errors.Join(err, s.Close())
}

// Drain ends the server as SIGTERM ends a vLLM with a shutdown timeout: running
// requests finish while new ones are answered with nothing in them and /health
// stays 200; then Shutdown. When ctx ends first, running requests are aborted.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		if len(s.calls) == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return s.Shutdown(ctx)
	case <-ctx.Done():
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return errors.Join(ctx.Err(), s.Shutdown(short))
	case <-s.stop:
		return ErrClosed
	}
}

// isDraining tells whether new requests are to be answered with nothing.
func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}
