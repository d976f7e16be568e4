package zmtp

import (
	"net"
	"sync"
)

// PubOptions tunes a [Pub]. The zero value, and nil, are ready for use.
type PubOptions struct {
	// HWM is the number of messages that wait for one subscriber at most; later
	// ones are dropped for that subscriber, as ZeroMQ does. 0 means 100,000.
	HWM int
	// MaxBytes bounds the bytes that wait for one subscriber. 0 means 64 MiB.
	MaxBytes int
	// MaxConns bounds the connections. 0 means 64.
	MaxConns int
	// Limits bounds what a subscriber can make us hold; MaxMessage is 64 KiB by
	// default, since subscriptions are short. Without a WriteTimeout here, one
	// that does not read loses messages but keeps its connection.
	Limits Limits
}

// PubStats are figures about a publisher.
type PubStats struct {
	Subscribers int    // connections with at least one subscription
	Published   uint64 // messages handed to Publish
	Dropped     uint64 // times a message was dropped for a slow subscriber
}

// A Pub is the listening side of publish and subscribe. Publish never blocks.
// All methods are safe for concurrent use.
type Pub struct {
	srv  server
	opts PubOptions

	mu        sync.Mutex
	subs      map[*subscriber]struct{}
	published uint64
	dropped   uint64
}

// A subscriber is one connection. All fields are guarded by Pub.mu.
type subscriber struct {
	topics map[string]int // subscriptions by prefix, counted
	asked  int            // bytes of the prefixes
	queue  [][]byte       // encoded messages, oldest first
	bytes  int
	wake   chan struct{} // has room for one
}

// Bounds of the prefixes that one subscriber may ask for, and of their bytes in
// all. What is beyond is ignored.
const (
	maxTopics     = 1024
	maxTopicBytes = 1 << 20
)

// NewPub serves subscribers on ln, which it owns from now on, until Close.
func NewPub(ln net.Listener, opts *PubOptions) *Pub {
	p := &Pub{subs: map[*subscriber]struct{}{}}
	if opts != nil {
		p.opts = *opts
	}
	if p.opts.HWM <= 0 {
		p.opts.HWM = 100_000
	}
	if p.opts.MaxBytes <= 0 {
		p.opts.MaxBytes = 64 << 20
	}
	p.opts.Limits = p.opts.Limits.small()
	if p.opts.Limits.WriteTimeout == 0 {
		p.opts.Limits.WriteTimeout = -1
	}
	p.srv = server{ln: ln, kind: "PUB", lim: p.opts.Limits, maxConns: p.opts.MaxConns, serve: p.serve}
	p.srv.start()
	return p
}

// Addr is the address of the listener.
func (p *Pub) Addr() net.Addr { return p.srv.ln.Addr() }

// Close cuts all connections, with whatever waits for them, and waits for their
// goroutines.
func (p *Pub) Close() error { return p.srv.close() }

// Stats returns the present figures.
func (p *Pub) Stats() PubStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := PubStats{Published: p.published, Dropped: p.dropped}
	for s := range p.subs {
		if len(s.topics) > 0 {
			st.Subscribers++
		}
	}
	return st
}

// Publish sends a message to everybody who subscribed to a prefix of its first
// frame. The frames are copied before it returns.
func (p *Pub) Publish(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published++
	var msg []byte // encoded once, and only if somebody wants it
	for s := range p.subs {
		if !s.wants(frames[0]) {
			continue
		}
		if msg == nil {
			n := 0
			for _, f := range frames {
				n += maxHeader + len(f)
			}
			msg = make([]byte, 0, n)
			for i, f := range frames {
				msg = AppendFrame(msg, f, i < len(frames)-1)
			}
		}
		if len(s.queue) >= p.opts.HWM || s.bytes+len(msg) > p.opts.MaxBytes {
			p.dropped++
			continue
		}
		s.queue = append(s.queue, msg)
		s.bytes += len(msg)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *subscriber) wants(topic []byte) bool {
	for prefix := range s.topics {
		if len(topic) >= len(prefix) && string(topic[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

// serve reads subscriptions, and starts the goroutine that writes.
func (p *Pub) serve(c *Conn) {
	s := &subscriber{topics: map[string]int{}, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()

	gone := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { p.write(c, s, gone) })
	defer func() {
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
		close(gone)
		_ = c.Close()
		writer.Wait()
	}()

	var frames [][]byte
	for {
		var err error
		if frames, err = c.ReadMessage(frames[:0]); err != nil {
			return
		}
		topic, add, ok := ParseSubscription(frames)
		if !ok {
			continue // a publisher ignores anything else
		}
		p.mu.Lock()
		s.subscribe(topic, add)
		p.mu.Unlock()
	}
}

// subscribe counts one subscription more or less.
func (s *subscriber) subscribe(topic []byte, add bool) {
	n, held := s.topics[string(topic)]
	switch {
	case add && held:
		s.topics[string(topic)] = n + 1
	case add && len(s.topics) < maxTopics && s.asked+len(topic) <= maxTopicBytes:
		s.topics[string(topic)] = 1
		s.asked += len(topic)
	case !add && n > 1:
		s.topics[string(topic)] = n - 1
	case !add && held:
		delete(s.topics, string(topic))
		s.asked -= len(topic)
	}
}

// write sends what is queued, several messages in one write.
func (p *Pub) write(c *Conn, s *subscriber, gone <-chan struct{}) {
	const batch = 64 << 10
	var buf []byte
	var msgs [][]byte
	for {
		select {
		case <-gone:
			return
		case <-s.wake:
		}
		p.mu.Lock()
		msgs, s.queue = s.queue, msgs[:0]
		s.bytes = 0
		p.mu.Unlock()
		for i := 0; i < len(msgs); {
			out := msgs[i]
			if i++; i < len(msgs) && len(out) < batch {
				buf = append(buf[:0], out...)
				for i < len(msgs) && len(buf)+len(msgs[i]) <= batch {
					buf = append(buf, msgs[i]...)
					i++
				}
				out = buf
			}
			if c.WriteRaw(out) != nil {
				_ = c.Close() // ends the reader, which cleans up
				return
			}
		}
		clear(msgs)
	}
}
