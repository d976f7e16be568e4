package vllm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
)

// A Sink takes what a Subscriber receives. [kvindex.Stream] is one. Its methods
// are called by one goroutine, that of [Subscriber.Run], and the batches are
// valid until they return.
type Sink interface {
	// Apply takes a live message, in the order of arrival.
	Apply(*kvindex.Batch) kvindex.Result
	// Replay takes a message of the reply to a replay.
	Replay(*kvindex.Batch) kvindex.Result
	// ReplayEnd takes the end of the reply; ok says that it was complete.
	ReplayEnd(ok bool) kvindex.Result
	// Tick lets time pass.
	Tick(now time.Time) kvindex.Result
}

// SubscriberOptions tune a Subscriber. The zero value of each field is a good
// default.
type SubscriberOptions struct {
	// Replay is the endpoint of the engine's replay socket. Empty means that it
	// has none: each replay that the Sink wants fails at once, and a
	// kvindex.Stream should have NoReplay set.
	Replay string
	// Topic is the prefix of the topics to follow; empty means all.
	Topic string
	// OnlyRank drops messages that say another data-parallel rank than Rank. It
	// is for forwarders that carry the messages of several ranks, each with the
	// numbers of its own sequence; vLLM has one publisher a rank.
	OnlyRank bool
	Rank     int

	// DialTimeout bounds connecting with handshake; 0 means 5 s.
	DialTimeout time.Duration
	// MinBackoff and MaxBackoff are the waits between attempts to connect: they
	// double from one to the other, each shortened at random by up to a half.
	// 0 means 100 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// ReplayTimeout bounds one replay, ReplayIdle the wait for its next message.
	// 0 means 30 s and 5 s.
	ReplayTimeout, ReplayIdle time.Duration
	// ReplayCooldown is the least time between the beginnings of two replays; 0
	// means 500 ms.
	ReplayCooldown time.Duration
	// Gate bounds the replays of all subscribers that share it: one holds an
	// element of the channel while it runs. nil means no bound.
	Gate chan struct{}
	// MaxMessage bounds one message in bytes; 0 means 16 MiB.
	MaxMessage int

	// Dial opens connections; nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Rand gives numbers from 0 to 1 for the backoff; nil means math/rand/v2.
	Rand func() float64

	Hooks SubscriberHooks
}

// SubscriberHooks are called by the subscriber's goroutines; they must not
// block. Each may be nil.
type SubscriberHooks struct {
	// Connected is called when the live channel stands.
	Connected func()
	// Disconnected is called when it broke, or could not be had.
	Disconnected func(err error)
	// Replayed is called after each replay that was not replaced by another, with
	// the number of messages that the Sink got.
	Replayed func(from uint64, messages int, err error)
	// BadMessage is called for a message that was dropped because it cannot be
	// read.
	BadMessage func(err error)
}

func (o *SubscriberOptions) withDefaults() SubscriberOptions {
	var c SubscriberOptions
	if o != nil {
		c = *o
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.DialTimeout, 5*time.Second)
	def(&c.MinBackoff, 100*time.Millisecond)
	def(&c.MaxBackoff, 5*time.Second)
	def(&c.ReplayTimeout, 30*time.Second)
	def(&c.ReplayIdle, 5*time.Second)
	def(&c.ReplayCooldown, 500*time.Millisecond)
	if c.MaxMessage == 0 {
		c.MaxMessage = 16 << 20
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

func (o *SubscriberOptions) validate(endpoint string) error {
	var errs []error
	check := func(field, endpoint string) {
		if _, _, err := zmtp.ParseEndpoint(endpoint); err != nil {
			errs = append(errs, fmt.Errorf("vllm: %s: %w", field, err))
		}
	}
	check("endpoint", endpoint)
	if o.Replay != "" {
		check("SubscriberOptions.Replay", o.Replay)
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"DialTimeout", int64(o.DialTimeout)}, {"MinBackoff", int64(o.MinBackoff)}, {"MaxBackoff", int64(o.MaxBackoff)},
		{"ReplayTimeout", int64(o.ReplayTimeout)}, {"ReplayIdle", int64(o.ReplayIdle)}, {"ReplayCooldown", int64(o.ReplayCooldown)},
		{"MaxMessage", int64(o.MaxMessage)}, {"Rank", int64(o.Rank)},
	} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("vllm: SubscriberOptions.%s is %d, must not be negative", f.name, f.v))
		}
	}
	if o.MaxBackoff < o.MinBackoff {
		errs = append(errs, fmt.Errorf("vllm: SubscriberOptions.MaxBackoff %v is below MinBackoff %v", o.MaxBackoff, o.MinBackoff))
	}
	if o.Gate != nil && cap(o.Gate) == 0 {
		errs = append(errs, errors.New("vllm: SubscriberOptions.Gate has no room"))
	}
	return errors.Join(errs...)
}

// SubscriberStats is a picture of a Subscriber: totals since New. All figures
// are of the control path.
type SubscriberStats struct {
	Connected      bool      // the live channel stands
	Connects       uint64    // times that it was established
	Failures       uint64    // times that it broke or could not be had
	LastError      string    // of the last failure
	LastMessage    time.Time // arrival of the last live message; zero if none came
	Messages       uint64    // live messages handed to the Sink
	BadMessages    uint64    // live or replayed messages dropped: wrong frames or payload
	OtherRank      uint64    // messages dropped because they are another rank's
	Replays        uint64    // replays begun
	ReplayMessages uint64    // messages of replays handed to the Sink
	ReplayFailures uint64    // replays that ended with an error
}

// A Subscriber follows the KV events of one engine rank.
type Subscriber struct {
	endpoint string
	opts     SubscriberOptions
	do       chan func(Sink) kvindex.Result

	connected                           atomic.Bool
	connects, failures, messages        atomic.Uint64
	bad, otherRank                      atomic.Uint64
	replays, replayMessages, replayFail atomic.Uint64
	lastMessage                         atomic.Int64 // Unix nanoseconds
	lastErr                             atomic.Pointer[string]
}

// NewSubscriber returns a Subscriber to the publisher at endpoint, which is
// "tcp://host:port" or "ipc://path".
func NewSubscriber(endpoint string, opts *SubscriberOptions) (*Subscriber, error) {
	o := opts.withDefaults()
	if err := o.validate(endpoint); err != nil {
		return nil, err
	}
	return &Subscriber{endpoint: endpoint, opts: o, do: make(chan func(Sink) kvindex.Result)}, nil
}

// Stats may be called at any time.
func (s *Subscriber) Stats() SubscriberStats {
	st := SubscriberStats{
		Connected: s.connected.Load(),
		Connects:  s.connects.Load(), Failures: s.failures.Load(), Messages: s.messages.Load(),
		BadMessages: s.bad.Load(), OtherRank: s.otherRank.Load(),
		Replays: s.replays.Load(), ReplayMessages: s.replayMessages.Load(), ReplayFailures: s.replayFail.Load(),
	}
	if n := s.lastMessage.Load(); n != 0 {
		st.LastMessage = time.Unix(0, n)
	}
	if e := s.lastErr.Load(); e != nil {
		st.LastError = *e
	}
	return st
}

// Do runs f with the Sink in the goroutine of Run, between two messages, and
// waits for it: the way to call other methods of a Sink that is not safe for
// concurrent use, such as Stream.Stats and Stream.Reset. What the Result wants
// is done. Do ends with ctx when Run does not run.
func (s *Subscriber) Do(ctx context.Context, f func(Sink) kvindex.Result) error {
	done := make(chan struct{})
	g := func(sink Sink) kvindex.Result {
		defer close(done)
		return f(sink)
	}
	select {
	case s.do <- g:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A message goes from the goroutine that reads a socket to that of Run, and its
// memory back.
type message struct {
	dec   *Decoder
	batch kvindex.Batch
	kind  messageKind
	gen   uint64 // of the replay
	count int    // of its messages, at its end
	err   error  // that ended it
}

type messageKind uint8

const (
	isLive messageKind = iota
	isConnected
	isReplay
	isReplayEnd
)

// ring is the number of messages in flight in each direction. It is small: what
// the Sink cannot take in time shall wait in the sockets' buffers, where the
// engine sees it.
const ring = 4

func newRing() chan *message {
	free := make(chan *message, ring)
	for range ring {
		free <- &message{dec: NewDecoder()}
	}
	return free
}

// Run follows the engine until ctx ends, and returns its error. It connects
// again after every failure. When the live channel stands for the first time it
// asks for a replay from the beginning, so that an engine that was warm before
// does not have to speak first. Only one Run may run at a time.
func (s *Subscriber) Run(ctx context.Context, sink Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{s: s, ctx: ctx, sink: sink, in: make(chan *message), liveFree: newRing(), replayFree: newRing()}
	var wg sync.WaitGroup
	wg.Go(func() { s.live(ctx, r.in, r.liveFree) })
	defer wg.Wait()
	defer r.stopReplay()
	defer cancel()
	r.timer = time.NewTimer(time.Hour)
	r.timer.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-r.in:
			r.message(m)
		case f := <-s.do:
			r.handle(f(sink))
		case <-r.timer.C:
			r.startReplay()
		case now := <-tick.C:
			r.handle(sink.Tick(now))
		}
	}
}

// runner is the state of one Run.
type runner struct {
	s        *Subscriber
	ctx      context.Context
	sink     Sink
	in       chan *message
	liveFree chan *message

	greeted bool // the first replay was asked for

	// The replay that is wanted, and the one that runs.
	replayFree chan *message
	timer      *time.Timer
	from       uint64
	gen        uint64
	running    bool
	delivered  bool
	lastStart  time.Time
	stop       context.CancelFunc
	done       chan struct{}
}

func (r *runner) message(m *message) {
	s := r.s
	switch m.kind {
	case isConnected:
		if !r.greeted && s.opts.Replay != "" {
			r.greeted = true
			r.want(kvindex.ReplayRequest{Wanted: true})
		}
		r.liveFree <- m
	case isLive:
		s.messages.Add(1)
		s.lastMessage.Store(time.Now().UnixNano())
		res := r.sink.Apply(&m.batch)
		r.liveFree <- m
		r.handle(res)
	case isReplay:
		if m.gen == r.gen && r.running {
			r.delivered = true
			s.replayMessages.Add(1)
			r.handle(r.sink.Replay(&m.batch))
		}
		r.replayFree <- m
	case isReplayEnd:
		current, n, err := m.gen == r.gen && r.running, m.count, m.err
		r.replayFree <- m
		if !current {
			return
		}
		r.running = false
		if err != nil {
			s.replayFail.Add(1)
		}
		from := r.from
		r.handle(r.sink.ReplayEnd(err == nil))
		if f := s.opts.Hooks.Replayed; f != nil {
			f(from, n, err)
		}
	}
}

func (r *runner) handle(res kvindex.Result) {
	// Without a replay socket every request has failed. The Sink gives up after
	// some; the bound only guards against one that does not.
	for range 1000 {
		if !res.Replay.Wanted {
			return
		}
		if r.s.opts.Replay != "" {
			r.want(res.Replay)
			return
		}
		res = r.sink.ReplayEnd(false)
	}
}
