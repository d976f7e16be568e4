package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// ErrEndpoint says that an endpoint string cannot be dialled.
var ErrEndpoint = errors.New("zmtp: bad endpoint")

// A DialFunc opens a network connection, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// ParseEndpoint turns a ZeroMQ endpoint, "tcp://host:port" or "ipc://path",
// into what a dialler takes. Wildcard hosts are an error: they can be bound but
// not dialled.
func ParseEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok || rest == "" {
		return "", "", fmt.Errorf("%w %q: want tcp://host:port or ipc://path", ErrEndpoint, endpoint)
	}
	switch scheme {
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return "", "", fmt.Errorf("%w %q: %v", ErrEndpoint, endpoint, err)
		}
		if host == "" || host == "*" || port == "" || port == "*" {
			return "", "", fmt.Errorf("%w %q: a wildcard cannot be dialled", ErrEndpoint, endpoint)
		}
		return "tcp", rest, nil
	case "ipc":
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("%w %q: scheme %q", ErrEndpoint, endpoint, scheme)
}

// Dial opens a connection to endpoint and does the handshake as socketType. A
// nil dial uses a plain net.Dialer, whose TCP keep-alives notice a dead host.
func Dial(ctx context.Context, dial DialFunc, endpoint, socketType string, lim Limits) (*Conn, error) {
	network, address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	nc, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := NewConn(nc, lim)
	if err := c.Handshake(ctx, socketType, nil); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return c, nil
}
