package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// raw connects without any handshake of ours.
func raw(t *testing.T, endpoint string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// closed waits until the other side has cut the connection.
func closed(t *testing.T, nc net.Conn) {
	t.Helper()
	require.NoError(t, nc.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := io.Copy(io.Discard, nc)
	if ne, ok := err.(net.Error); ok {
		require.False(t, ne.Timeout(), "still open")
	}
}

// What subscribers can make a publisher remember is bounded in bytes, not only in
// subscriptions, and giving topics back makes room.
func TestTopicsAreBounded(t *testing.T) {
	s := &subscriber{topics: map[string]int{}}
	long := func(i int) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(i)), make([]byte, 60<<10)...)
	}
	for i := range 100 {
		s.subscribe(long(i), true)
		s.subscribe(long(i), true)
	}
	require.Len(t, s.topics, maxTopicBytes/(60<<10+4))
	require.LessOrEqual(t, s.asked, maxTopicBytes)
	for i := range 100 {
		s.subscribe(long(i), false)
	}
	require.Len(t, s.topics, maxTopicBytes/(60<<10+4), "each was asked for twice")
	for i := range 100 {
		s.subscribe(long(i), false)
		s.subscribe(long(i), false)
	}
	require.Empty(t, s.topics)
	require.Zero(t, s.asked)
	for i := range 2 * maxTopics {
		s.subscribe(binary.BigEndian.AppendUint32(nil, uint32(i)), true)
	}
	require.Len(t, s.topics, maxTopics)
}

// Peers of the listening sockets that break the protocol are cut, and nobody
// else notices.
func TestHostilePeers(t *testing.T) {
	ln, endpoint := listen(t)
	p := NewPub(ln, nil)
	defer p.Close()
	good, err := DialSub(ctxT(t), nil, endpoint, Limits{})
	require.NoError(t, err)
	defer good.Close()
	until(t, "the subscriber", func() bool { return p.Stats().Subscribers == 1 })

	hello := append(AppendGreeting(nil), AppendReady(nil, "SUB", nil)...)
	long := binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<62)
	for name, b := range map[string][]byte{
		"giant frame":       append(append([]byte{}, hello...), long...),
		"long subscription": AppendFrame(append([]byte{}, hello...), make([]byte, 65<<10), false),
		"giant command":     append(append([]byte{}, hello...), append([]byte{flagLong | flagCommand}, long[1:]...)...),
		"endless frames":    append(append([]byte{}, hello...), []byte(strings.Repeat("\x01\x00", 100))...),
		"endless metadata":  append(append(AppendGreeting(nil), flagLong|flagCommand), binary.BigEndian.AppendUint64(nil, maxReady+1)...),
		"metadata too long": append(AppendGreeting(nil), AppendCommand(nil, "READY", []byte("\x01a\xff\xff\xff\xff"))...),
		"not this protocol": []byte("GET / HTTP/1.1\r\nHost: a\r\nAccept: nothing at all, thank you very much\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			nc := raw(t, endpoint)
			_, err := nc.Write(b)
			require.NoError(t, err)
			closed(t, nc)
		})
	}
	// One that never reads while it asks and asks to be answered.
	deaf := raw(t, endpoint)
	_, err = deaf.Write(hello)
	require.NoError(t, err)
	ping := AppendCommand(nil, "PING", append([]byte{0, 1}, make([]byte, 16)...))
	pings := []byte(strings.Repeat(string(ping), 4000))
	require.NoError(t, deaf.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
	for err == nil {
		_, err = deaf.Write(pings) // until its and our buffers are full
	}
	p.Publish([]byte("t"), []byte("still here"))
	f, err := good.ReadMessage(nil)
	require.NoError(t, err)
	require.Equal(t, "still here", string(f[1]))
	require.NoError(t, p.Close())
}

// A peer that says half of something and then nothing is given up when the
// handshake's time is over, at each place where it may stop.
func TestHalfHandshakes(t *testing.T) {
	hello := append(AppendGreeting(nil), AppendReady(nil, "PUB", nil)...)
	for _, n := range []int{0, 1, 10, 11, 63, 64, 65, 66, 70, len(hello) - 1} {
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			go func() {
				_, _ = b.Write(hello[:n])
				_, _ = io.Copy(io.Discard, b)
			}()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			err := NewConn(a, Limits{}).Handshake(ctx, "SUB", nil)
			require.ErrorIs(t, err, context.DeadlineExceeded, "%d octets", n)
			a.Close()
			b.Close()
		})
	}
}

// FuzzListening: what a peer of a listening socket can send, in both forms of
// subscription and as requests.
func FuzzListening(f *testing.F) {
	sub := append(AppendGreeting(nil), AppendReady(nil, "SUB", nil)...)
	req := append(AppendGreeting(nil), AppendReady(nil, "REQ", []byte("me"))...)
	f.Add(AppendFrame(append([]byte{}, sub...), []byte("\x01kv@"), false), true)
	f.Add(AppendCommand(AppendCommand(append([]byte{}, sub...), "SUBSCRIBE", []byte("kv@")), "CANCEL", []byte("kv@")), true)
	f.Add(AppendCommand(AppendFrame(append([]byte{}, sub...), nil, true), "SUBSCRIBE", nil), true)
	f.Add(AppendFrame(AppendFrame(append([]byte{}, req...), nil, true), make([]byte, 8), false), false)
	f.Add(AppendCommand(append([]byte{}, req...), "PING", []byte{0, 1, 'c'}), false)
	lim := Limits{MaxMessage: 1 << 12, MaxFrames: 8}
	f.Fuzz(func(t *testing.T, in []byte, pub bool) {
		kind := "ROUTER"
		if pub {
			kind = "PUB"
		}
		c := NewConn(&scripted{in: bytes.NewReader(in)}, lim)
		if c.Handshake(context.Background(), kind, nil) != nil {
			return
		}
		s := &subscriber{topics: map[string]int{}}
		for {
			m, err := c.ReadMessage(nil)
			if err != nil {
				break
			}
			if topic, add, ok := ParseSubscription(m); ok {
				s.subscribe(topic, add)
			}
		}
		asked := 0
		for topic, n := range s.topics {
			if asked += len(topic); n < 1 {
				t.Fatalf("%q asked for %d times", topic, n)
			}
		}
		if asked != s.asked || asked > maxTopicBytes {
			t.Fatalf("%d bytes of topics, counted as %d", asked, s.asked)
		}
	})
}
