package zmtp

import "net"

// RouterOptions tunes a [RouterSock]. The zero value, and nil, are ready for use.
type RouterOptions struct {
	// MaxConns bounds the connections. 0 means 64.
	MaxConns int
	// Limits bounds what a peer can make us hold; MaxMessage, of a request, is 64
	// KiB by default. A peer that does not read its replies is cut after
	// Limits.WriteTimeout.
	Limits Limits
}

// A RouterSock is the listening side of request and reply: every reply goes to
// the connection that the request came from. A connection's requests are
// answered one after the other; connections are independent.
type RouterSock struct{ srv server }

// NewRouterSock serves requests on ln, which it owns from now on, until Close.
// answer gets the frames of a request as the peer sent them, without the
// identity that a ZeroMQ ROUTER would put in front, and a function that sends
// one reply message; the frames are valid until it returns. It is called from
// several goroutines, one a connection, and an error that it returns ends the
// connection.
func NewRouterSock(ln net.Listener, opts *RouterOptions, answer func(request [][]byte, reply func(frames ...[]byte) error) error) *RouterSock {
	var o RouterOptions
	if opts != nil {
		o = *opts
	}
	r := &RouterSock{}
	r.srv = server{ln: ln, kind: "ROUTER", lim: o.Limits.small(), maxConns: o.MaxConns, serve: func(c *Conn) {
		var frames [][]byte
		for {
			var err error
			if frames, err = c.ReadMessage(frames[:0]); err != nil {
				return
			}
			if answer(frames, c.WriteMessage) != nil {
				return
			}
		}
	}}
	r.srv.start()
	return r
}

// Addr is the address of the listener.
func (r *RouterSock) Addr() net.Addr { return r.srv.ln.Addr() }

// Close cuts all connections and waits for their goroutines.
func (r *RouterSock) Close() error { return r.srv.close() }
