package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln, "tcp://" + ln.Addr().String()
}

func ctxT(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// until waits for what another goroutine is about to do.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPubTopics(t *testing.T) {
	ln, endpoint := listen(t)
	p := NewPub(ln, nil)
	defer p.Close()
	p.Publish([]byte("a"), []byte("nobody hears"))
	p.Publish()

	all, err := DialSub(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	defer all.Close()
	some, err := DialSub(ctxT(t), nil, endpoint, Limits{}, "kv@", "x")
	require.NoError(t, err)
	defer some.Close()
	until(t, "two subscribers", func() bool { return p.Stats().Subscribers == 2 })
	// Both subscriptions of the second one must have arrived.
	until(t, "two topics", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := 0
		for s := range p.subs {
			n += len(s.topics)
		}
		return n == 3
	})

	long := make([]byte, 1000)
	for _, topic := range []string{"kv", "kv@1", "", "xyz", "kv@2"} {
		p.Publish([]byte(topic), []byte{1}, long)
	}
	hear := func(s *Sub, topics ...string) {
		for _, want := range topics {
			f, err := s.ReadMessage(nil)
			require.NoError(t, err)
			require.Len(t, f, 3)
			require.Equal(t, want, string(f[0]))
			require.Equal(t, long, f[2])
		}
	}
	hear(all, "kv", "kv@1", "", "xyz", "kv@2")
	hear(some, "kv@1", "xyz", "kv@2")

	require.NoError(t, some.Unsubscribe("kv@"))
	require.NoError(t, some.Unsubscribe("never asked for"))
	require.NoError(t, some.WriteMessage([]byte("no"), []byte("subscription")))
	until(t, "one topic less", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := 0
		for s := range p.subs {
			n += len(s.topics)
		}
		return n == 2
	})
	p.Publish([]byte("kv@3"), []byte{1}, long)
	p.Publish([]byte("x"), []byte{1}, long)
	hear(some, "x")
	require.Equal(t, PubStats{Subscribers: 2, Published: 8}, p.Stats())

	hear(all, "kv@3", "x") // Close does not wait for what is still queued
	require.NoError(t, p.Close())
	_, err = all.ReadMessage(nil)
	require.Error(t, err)
	require.NoError(t, p.Close())
}

// A subscriber that does not read loses messages, and costs nothing else: the
// publisher goes on, others hear everything, and what arrives is in order.
func TestPubDropsForSlowSubscriber(t *testing.T) {
	ln, endpoint := listen(t)
	p := NewPub(ln, &PubOptions{HWM: 10})
	defer p.Close()
	slow, err := DialSub(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	defer slow.Close()
	until(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })

	body := make([]byte, 64<<10)
	n := uint64(0)
	for ; p.Stats().Dropped == 0; n++ {
		p.Publish([]byte("t"), binary.BigEndian.AppendUint64(nil, n), body)
	}
	p.Publish([]byte("t"), binary.BigEndian.AppendUint64(nil, n+1000), body)
	st := p.Stats()
	require.Equal(t, n+1, st.Published)
	last, heard := uint64(0), uint64(0)
	for st = p.Stats(); heard < st.Published-st.Dropped; heard++ {
		f, err := slow.ReadMessage(nil)
		require.NoError(t, err)
		seq := binary.BigEndian.Uint64(f[1])
		require.True(t, heard == 0 || seq > last)
		last = seq
		st = p.Stats()
	}
	p.mu.Lock()
	for s := range p.subs {
		require.Zero(t, s.bytes)
	}
	p.mu.Unlock()
}

func TestPubByteLimit(t *testing.T) {
	ln, endpoint := listen(t)
	p := NewPub(ln, &PubOptions{MaxBytes: 100})
	defer p.Close()
	s, err := DialSub(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	defer s.Close()
	until(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
	p.Publish(make([]byte, 200))
	p.Publish([]byte("small"))
	f, err := s.ReadMessage(nil)
	require.NoError(t, err)
	require.Equal(t, "small", string(f[0]))
	require.Equal(t, uint64(1), p.Stats().Dropped)
}

func TestPubForgetsWhoLeft(t *testing.T) {
	ln, endpoint := listen(t)
	p := NewPub(ln, nil)
	defer p.Close()
	s, err := DialSub(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	until(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
	require.NoError(t, s.Close())
	until(t, "gone", func() bool { return p.Stats().Subscribers == 0 })
	_, err = Dial(ctxT(t), nil, endpoint, "DEALER", Limits{})
	require.ErrorIs(t, err, ErrSocketType)
}

func TestServerBoundsConnections(t *testing.T) {
	ln, endpoint := listen(t)
	p := NewPub(ln, &PubOptions{MaxConns: 1})
	defer p.Close()
	s, err := DialSub(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	defer s.Close()
	_, err = DialSub(ctxT(t), nil, endpoint, Limits{})
	require.Error(t, err)
	require.NoError(t, s.Close())
	until(t, "room again", func() bool {
		s, err := DialSub(ctxT(t), nil, endpoint, Limits{})
		if err == nil {
			_ = s.Close()
		}
		return err == nil
	})
}

// A connection that says nothing does not hold up Close.
func TestCloseDuringHandshake(t *testing.T) {
	ln, _ := listen(t)
	p := NewPub(ln, nil)
	nc, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	one := make([]byte, 1)
	_, err = io.ReadFull(nc, one) // the greeting is on its way
	require.NoError(t, err)
	require.NoError(t, p.Close())
}

func TestRouterSock(t *testing.T) {
	ln, endpoint := listen(t)
	r := NewRouterSock(ln, nil, func(req [][]byte, reply func(...[]byte) error) error {
		if len(req) != 2 || len(req[0]) != 0 {
			return nil // dropped
		}
		if string(req[1]) == "cut" {
			return errors.New("cut")
		}
		for i := range 3 {
			if err := reply(nil, req[1], fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		return nil
	})
	defer r.Close()
	a, err := DialDealer(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	defer a.Close()
	b, err := DialDealer(ctxT(t), nil, "tcp://"+r.Addr().String(), Limits{})
	require.NoError(t, err)
	defer b.Close()

	require.NoError(t, a.WriteMessage([]byte("without delimiter")))
	require.NoError(t, a.Request([]byte("from a")))
	require.NoError(t, b.Request([]byte("from b")))
	for who, d := range map[string]*Dealer{"from a": a, "from b": b} {
		for i := range 3 {
			f, err := d.Reply(nil)
			require.NoError(t, err)
			require.Equal(t, []string{who, fmt.Sprint(i)}, []string{string(f[0]), string(f[1])})
		}
	}
	require.NoError(t, a.Request([]byte("cut")))
	_, err = a.Reply(nil)
	require.Error(t, err)
}
