package zmtp

import (
	"context"
	"net"
	"sync"
	"time"
)

// handshakeTimeout bounds how long a connection that says nothing is kept.
const handshakeTimeout = 10 * time.Second

// A server accepts connections for one listening socket. Every goroutine it
// starts has ended when close returns.
type server struct {
	ln       net.Listener
	kind     string // socket type
	lim      Limits
	maxConns int
	serve    func(*Conn) // runs until the connection ends

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  map[*Conn]struct{}
	closed bool
}

func (s *server) start() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.conns = map[*Conn]struct{}{}
	if s.maxConns <= 0 {
		s.maxConns = 64
	}
	s.wg.Go(s.accept)
}

func (s *server) accept() {
	pause := time.Millisecond
	for {
		nc, err := s.ln.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			// Out of descriptors, or the like: passes.
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		c := NewConn(nc, s.lim)
		s.mu.Lock()
		if s.closed || len(s.conns) >= s.maxConns {
			s.mu.Unlock()
			_ = nc.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.wg.Go(func() { s.handle(c) })
		s.mu.Unlock()
	}
}

func (s *server) handle(c *Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(s.ctx, handshakeTimeout)
	err := c.Handshake(ctx, s.kind, nil)
	cancel()
	if err == nil {
		s.serve(c)
	}
}

// close cuts everything and waits.
func (s *server) close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	var err error
	if first {
		s.cancel()
		err = s.ln.Close()
		for c := range s.conns {
			_ = c.Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}
