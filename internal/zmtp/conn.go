package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Errors of this package. Network errors are returned as they come.
var (
	// ErrProtocol: the peer broke the protocol, or is no ZMTP peer at all.
	ErrProtocol = errors.New("zmtp: protocol error")
	// ErrVersion: the peer speaks a protocol version before 3.
	ErrVersion = errors.New("zmtp: unsupported version")
	// ErrMechanism: the peer demands a security mechanism other than NULL.
	ErrMechanism = errors.New("zmtp: unsupported mechanism")
	// ErrSocketType: the peer's socket cannot talk to ours.
	ErrSocketType = errors.New("zmtp: socket types do not fit")
	// ErrRefused: the peer answered the handshake with an ERROR command.
	ErrRefused = errors.New("zmtp: refused by the peer")
	// ErrTooLarge: a message is beyond the limits.
	ErrTooLarge = errors.New("zmtp: message too large")
)

// Limits bounds what a peer can make a [Conn] hold. A zero field has its
// default.
type Limits struct {
	// MaxMessage is the size of a whole message in bytes, all frames together.
	// The default is 64 MiB.
	MaxMessage int
	// MaxFrames is the number of frames of a message. The default is 64.
	MaxFrames int
	// WriteTimeout bounds each write, so that a peer that does not read cannot
	// hold a writer for ever. The default is 10 s; negative means none.
	WriteTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.MaxMessage <= 0 {
		l.MaxMessage = 64 << 20
	}
	if l.MaxFrames <= 0 {
		l.MaxFrames = 64
	}
	if l.WriteTimeout == 0 {
		l.WriteTimeout = 10 * time.Second
	}
	return l
}

// small is the default of sockets to which peers send only a few bytes.
func (l Limits) small() Limits {
	if l.MaxMessage <= 0 {
		l.MaxMessage = 64 << 10
	}
	return l
}

const (
	readBuffer = 16 << 10
	// growStep is the most that is allocated ahead of bytes that have arrived.
	growStep = 64 << 10
	// retain is the largest buffer that is kept from one message to the next.
	retain = 1 << 20
)

// A Conn is one ZMTP connection. One goroutine may read while others write;
// writes are serialised. Close ends both.
type Conn struct {
	nc    net.Conn
	br    *bufio.Reader
	lim   Limits
	local string
	peer  Peer

	buf  []byte // bytes of the message being read, frame after frame
	ends []int  // end offset of each frame in buf
	cmd  []byte // body of the command being read

	wmu  sync.Mutex
	wbuf []byte
}

// NewConn wraps a network connection. The handshake has still to be done.
func NewConn(nc net.Conn, lim Limits) *Conn {
	return &Conn{nc: nc, br: bufio.NewReaderSize(nc, readBuffer), lim: lim.withDefaults()}
}

// Peer returns what the other side said in the handshake.
func (c *Conn) Peer() Peer { return c.peer }

// Close closes the connection. A blocked read or write returns with an error.
func (c *Conn) Close() error { return c.nc.Close() }

// SetReadDeadline bounds the reads that follow; the zero time means none.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// Handshake exchanges greeting and READY with the peer. With the NULL mechanism
// both sides do the same, whoever dialled. Identity is for DEALER sockets and
// may be nil. When ctx ends, Handshake returns its error.
func (c *Conn) Handshake(ctx context.Context, socketType string, identity []byte) error {
	c.local = socketType
	if t, ok := ctx.Deadline(); ok {
		_ = c.nc.SetDeadline(t)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	err := c.handshake(socketType, identity)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline may still be about to be set
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			if _, ok := ctx.Deadline(); ok {
				return context.DeadlineExceeded
			}
		}
		return err
	}
	return c.nc.SetDeadline(time.Time{})
}

func (c *Conn) handshake(socketType string, identity []byte) error {
	err := c.exchange(AppendGreeting(nil), func() error {
		var g [greetingLen]byte
		if _, err := io.ReadFull(c.br, g[:]); err != nil {
			return err
		}
		var err error
		c.peer.Major, c.peer.Minor, err = parseGreeting(g[:])
		return err
	})
	if err != nil {
		return err
	}
	err = c.exchange(AppendReady(nil, socketType, identity), func() error {
		flags, size, err := c.header()
		if err != nil {
			return err
		}
		if flags&flagCommand == 0 || size > maxReady {
			return fmt.Errorf("%w: no READY command", ErrProtocol)
		}
		if c.cmd, err = c.body(c.cmd[:0], int(size)); err != nil {
			return err
		}
		return parseReady(c.cmd, &c.peer)
	})
	if err != nil {
		return err
	}
	if !fits(socketType, c.peer.SocketType) {
		return fmt.Errorf("%w: %q to %q", ErrSocketType, socketType, c.peer.SocketType)
	}
	return nil
}

// exchange writes b while it runs read. Both must overlap: some peers send the
// second part of their greeting only when they have seen the first of ours.
func (c *Conn) exchange(b []byte, read func() error) error {
	done := make(chan error, 1)
	go func() {
		_, err := c.nc.Write(b)
		done <- err
	}()
	rerr := read()
	if rerr != nil {
		_ = c.nc.SetDeadline(time.Unix(1, 0)) // lets the writer go
	}
	werr := <-done
	if rerr != nil {
		return rerr
	}
	return werr
}

// ReadMessage reads the next message and appends its frames to dst. The frames
// are valid until the next call. When dst has room and the connection is warm,
// it allocates nothing.
func (c *Conn) ReadMessage(dst [][]byte) ([][]byte, error) {
	if cap(c.buf) > retain {
		c.buf = nil
	}
	c.buf, c.ends = c.buf[:0], c.ends[:0]
	for {
		flags, size, err := c.header()
		if err != nil {
			if len(c.ends) > 0 && err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return dst, err
		}
		if flags&flagCommand != 0 {
			// libzmq may put a heartbeat between two frames of a message.
			sub, err := c.command(size)
			if err != nil {
				return dst, err
			}
			if sub && len(c.ends) == 0 {
				return append(dst, c.cmd), nil
			}
			continue
		}
		if size > uint64(c.lim.MaxMessage-len(c.buf)) {
			return dst, fmt.Errorf("%w: over %d bytes", ErrTooLarge, c.lim.MaxMessage)
		}
		if len(c.ends) == c.lim.MaxFrames {
			return dst, fmt.Errorf("%w: over %d frames", ErrTooLarge, c.lim.MaxFrames)
		}
		if c.buf, err = c.body(c.buf, int(size)); err != nil {
			return dst, err
		}
		c.ends = append(c.ends, len(c.buf))
		if flags&flagMore == 0 {
			break
		}
	}
	start := 0
	for _, end := range c.ends {
		dst = append(dst, c.buf[start:end:end])
		start = end
	}
	return dst, nil
}

// header reads and checks a frame header.
func (c *Conn) header() (flags byte, size uint64, err error) {
	flags, err = c.br.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	if flags&^flagsKnown != 0 || flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, 0, fmt.Errorf("%w: frame flags %#02x", ErrProtocol, flags)
	}
	n := 1
	if flags&flagLong != 0 {
		n = 8
	}
	b, err := c.br.Peek(n)
	if err != nil {
		return 0, 0, unexpected(err)
	}
	if n == 1 {
		size = uint64(b[0])
	} else {
		size = binary.BigEndian.Uint64(b)
	}
	_, err = c.br.Discard(n)
	if size > 1<<62 {
		return 0, 0, fmt.Errorf("%w: frame of %d bytes", ErrTooLarge, size)
	}
	return flags, size, err
}

// body appends n bytes from the connection to dst, which grows with what has
// arrived and not with what was announced.
func (c *Conn) body(dst []byte, n int) ([]byte, error) {
	for n > 0 {
		have := len(dst)
		step := min(n, max(growStep, have))
		dst = slices.Grow(dst, step)[:have+step]
		if _, err := io.ReadFull(c.br, dst[have:]); err != nil {
			return dst[:have], unexpected(err)
		}
		n -= step
	}
	return dst, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// command reads and handles one command. It reports whether c.cmd now holds a
// subscription in message form that the caller should see.
func (c *Conn) command(size uint64) (bool, error) {
	if size > maxReady {
		return false, fmt.Errorf("%w: command of %d bytes", ErrTooLarge, size)
	}
	var err error
	if c.cmd, err = c.body(c.cmd[:0], int(size)); err != nil {
		return false, err
	}
	name, body, ok := splitCommand(c.cmd)
	if !ok {
		return false, fmt.Errorf("%w: malformed command", ErrProtocol)
	}
	switch string(name) {
	case "PING":
		// ttl (2 octets), then a context of at most 16 that the PONG repeats
		if len(body) < 2 || len(body) > 2+16 {
			return false, fmt.Errorf("%w: malformed PING", ErrProtocol)
		}
		return false, c.WriteCommand("PONG", body[2:])
	case "ERROR":
		return false, fmt.Errorf("%w: %q", ErrRefused, body)
	case "SUBSCRIBE", "CANCEL":
		if c.local != "PUB" && c.local != "XPUB" {
			return false, nil
		}
		first := byte(0)
		if name[0] == 'S' {
			first = 1
		}
		// the name is longer than one octet, so this moves the body down
		c.cmd[0] = first
		n := copy(c.cmd[1:], body)
		c.cmd = c.cmd[:1+n]
		return true, nil
	}
	return false, nil
}

// WriteMessage writes one message of the given frames in a single write.
func (c *Conn) WriteMessage(frames ...[]byte) error {
	if len(frames) == 0 {
		return nil
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	b := c.wbuf[:0]
	for i, f := range frames {
		b = AppendFrame(b, f, i < len(frames)-1)
	}
	return c.flush(b)
}

// WriteCommand writes one command.
func (c *Conn) WriteCommand(name string, body []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.flush(AppendCommand(c.wbuf[:0], name, body))
}

// WriteRaw writes frames that were made with [AppendFrame] already, so that a
// publisher encodes a message once for all its subscribers. The bytes must be
// whole messages.
func (c *Conn) WriteRaw(b []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.write(b)
}

func (c *Conn) flush(b []byte) error {
	if cap(b) <= retain {
		c.wbuf = b[:0]
	}
	return c.write(b)
}

func (c *Conn) write(b []byte) error {
	if c.lim.WriteTimeout > 0 {
		if err := c.nc.SetWriteDeadline(time.Now().Add(c.lim.WriteTimeout)); err != nil {
			return err
		}
	}
	_, err := c.nc.Write(b)
	return err
}
