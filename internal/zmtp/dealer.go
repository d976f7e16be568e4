package zmtp

import (
	"context"
	"fmt"
)

// A Dealer is a connection to one ROUTER (or REP) socket. A request of REQ form
// begins with an empty delimiter frame, and so does each reply to it.
type Dealer struct{ *Conn }

// DialDealer connects to a router.
func DialDealer(ctx context.Context, dial DialFunc, endpoint string, lim Limits) (*Dealer, error) {
	c, err := Dial(ctx, dial, endpoint, "DEALER", lim)
	if err != nil {
		return nil, err
	}
	return &Dealer{c}, nil
}

// Request sends the frames behind an empty delimiter. vLLM drops a request
// without the delimiter and never answers it.
func (d *Dealer) Request(frames ...[]byte) error {
	all := make([][]byte, 1, 1+len(frames))
	return d.WriteMessage(append(all, frames...)...)
}

// Reply reads the next reply and appends its frames, less the delimiter, to
// dst. The frames are valid until the next call.
func (d *Dealer) Reply(dst [][]byte) ([][]byte, error) {
	n := len(dst)
	dst, err := d.ReadMessage(dst)
	if err != nil {
		return dst, err
	}
	if len(dst[n]) != 0 {
		return dst[:n], fmt.Errorf("%w: reply without delimiter", ErrProtocol)
	}
	copy(dst[n:], dst[n+1:])
	return dst[:len(dst)-1], nil
}
