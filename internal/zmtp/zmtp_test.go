package zmtp

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// The bytes that go-zeromq/zmq4 and libzmq put on the wire.
const (
	wireGreeting = "ff00000000000000007f" + "0300" + "4e554c4c00000000000000000000000000000000" + "00" +
		"00000000000000000000000000000000000000000000000000000000000000"
	wireReadySub = "04190552454144590b536f636b65742d5479706500000003535542"
	wireReadyPub = "04190552454144590b536f636b65742d5479706500000003505542"
	wireMessage  = "0100" + "01080000000000000007" + "0023" +
		"93cb41d954fc400000009181a474797065b0416c6c426c6f636b73436c656172656400"
)

// scripted is a connection whose peer sends fixed bytes and takes any.
type scripted struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (s *scripted) Read(p []byte) (int, error)       { return s.in.Read(p) }
func (s *scripted) Write(p []byte) (int, error)      { return s.out.Write(p) }
func (s *scripted) SetDeadline(time.Time) error      { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }
func (s *scripted) Close() error                     { return nil }

func TestCapturedBytes(t *testing.T) {
	s := &scripted{in: bytes.NewReader(unhex(t, wireGreeting+wireReadyPub+wireMessage))}
	c := NewConn(s, Limits{})
	require.NoError(t, c.Handshake(t.Context(), "SUB", nil))
	require.Equal(t, Peer{Major: 3, SocketType: "PUB"}, c.Peer())
	sub := &Sub{c}
	require.NoError(t, sub.Subscribe(""))
	require.NoError(t, sub.Subscribe("kv@"))
	require.Equal(t, wireGreeting+wireReadySub+"000101"+"0004"+"016b7640", hex.EncodeToString(s.out.Bytes()))

	m, err := c.ReadMessage(nil)
	require.NoError(t, err)
	require.Len(t, m, 3)
	require.Empty(t, m[0])
	require.Equal(t, unhex(t, "0000000000000007"), m[1])
	require.Len(t, m[2], 0x23)
	_, err = c.ReadMessage(nil)
	require.Equal(t, io.EOF, err)
}

// TestLibzmqGreeting is the form of a libzmq peer: minor version 1, another
// signature filler, an Identity property in another case.
func TestLibzmqGreeting(t *testing.T) {
	g := unhex(t, wireGreeting)
	g[8], g[11] = 1, 1
	ready := AppendCommand(nil, "READY", appendProperty(appendProperty(nil, "socket-type", "ROUTER"), "Identity", "me"))
	c := NewConn(&scripted{in: bytes.NewReader(append(g, ready...))}, Limits{})
	require.NoError(t, c.Handshake(t.Context(), "DEALER", nil))
	require.Equal(t, Peer{Major: 3, Minor: 1, SocketType: "ROUTER", Identity: []byte("me")}, c.Peer())
}

func TestHandshakeFaults(t *testing.T) {
	greet := func(edit func(g []byte)) string {
		g := unhex(t, wireGreeting)
		edit(g)
		return hex.EncodeToString(g)
	}
	command := func(name, body string) string {
		return hex.EncodeToString(AppendCommand(nil, name, []byte(body)))
	}
	for _, tc := range []struct {
		name, in string
		want     error
	}{
		{"http", hex.EncodeToString([]byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 64))), ErrProtocol},
		{"version 2", greet(func(g []byte) { g[10] = 2 }), ErrVersion},
		{"curve", greet(func(g []byte) { copy(g[12:], "CURVE") }), ErrMechanism},
		{"cut greeting", wireGreeting[:40], io.ErrUnexpectedEOF},
		{"closed before ready", wireGreeting, io.EOF},
		{"message instead of ready", wireGreeting + "000101", ErrProtocol},
		{"ready of 4 GiB", wireGreeting + "060000000100000000", ErrProtocol},
		{"other command", wireGreeting + command("HELLO", ""), ErrProtocol},
		{"error command", wireGreeting + command("ERROR", "\x03no!"), ErrRefused},
		{"property without value", wireGreeting + command("READY", "\x0bSocket-Type"), ErrProtocol},
		{"property too long", wireGreeting + command("READY", "\x01A\x00\x00\x00\x09B"), ErrProtocol},
		{"property of 4 GiB", wireGreeting + command("READY", "\x01A\xff\xff\xff\xffB"), ErrProtocol},
		{"empty property name", wireGreeting + command("READY", "\x00\x00\x00\x00\x00"), ErrProtocol},
		{"empty command", wireGreeting + "0400", ErrProtocol},
		{"no socket type", wireGreeting + command("READY", ""), ErrSocketType},
		{"wrong socket type", wireGreeting + wireReadySub, ErrSocketType},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewConn(&scripted{in: bytes.NewReader(unhex(t, tc.in))}, Limits{})
			require.ErrorIs(t, c.Handshake(t.Context(), "SUB", nil), tc.want)
		})
	}
}

func TestReadFaults(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     error
	}{
		{"reserved flag", "0800", ErrProtocol},
		{"command with more", "0501", ErrProtocol},
		{"length of 2^63", "028000000000000000", ErrTooLarge},
		{"length of all ones", "02ffffffffffffffff", ErrTooLarge},
		{"over the message limit", "020000000000001001", ErrTooLarge},
		{"sum over the limit", "0102aabb" + "020000000000000fff", ErrTooLarge},
		{"announced but not sent", "020000000000000fff0102", io.ErrUnexpectedEOF},
		{"cut length", "0200000000", io.ErrUnexpectedEOF},
		{"cut between frames", "0101aa", io.ErrUnexpectedEOF},
		{"too many frames", "0100010001000000", ErrTooLarge},
		{"giant command", "060000000000010000", ErrTooLarge},
		{"empty command", "0400", ErrProtocol},
		{"command name beyond frame", "0402ff41", ErrProtocol},
		{"short ping", "0405" + "0450494e47", ErrProtocol},
		{"long ping", "0418" + "0450494e47" + "0000" + strings.Repeat("aa", 17), ErrProtocol},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewConn(&scripted{in: bytes.NewReader(unhex(t, tc.in))}, Limits{MaxMessage: 4096, MaxFrames: 3})
			_, err := c.ReadMessage(nil)
			require.ErrorIs(t, err, tc.want)
		})
	}
}

// TestGiantAllocatesLittle: a length alone must not make the reader allocate.
func TestGiantAllocatesLittle(t *testing.T) {
	c := NewConn(&scripted{in: bytes.NewReader(unhex(t, "020000000003ffffff0102"))}, Limits{})
	_, err := c.ReadMessage(nil)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	require.LessOrEqual(t, cap(c.buf), 2*growStep)
}

func TestCommands(t *testing.T) {
	in := AppendCommand(nil, "PING", []byte("\x00\x0actx"))
	in = AppendFrame(in, []byte("a"), true)
	in = AppendCommand(in, "PING", []byte("\x00\x0a"))
	in = AppendCommand(in, "NEWS", []byte("whatever"))
	in = AppendFrame(in, []byte("b"), false)
	in = AppendCommand(in, "SUBSCRIBE", []byte("kv@"))
	in = AppendCommand(in, "CANCEL", nil)
	in = AppendFrame(in, []byte("\x01old"), false)
	in = AppendFrame(in, []byte("other"), false)

	s := &scripted{in: bytes.NewReader(in)}
	c := NewConn(s, Limits{})
	c.local = "PUB"
	m, err := c.ReadMessage(nil)
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("a"), []byte("b")}, m)
	pongs := AppendCommand(AppendCommand(nil, "PONG", []byte("ctx")), "PONG", nil)
	require.Equal(t, pongs, s.out.Bytes())
	for _, want := range []struct {
		topic   string
		add, ok bool
	}{{"kv@", true, true}, {"", false, true}, {"old", true, true}, {"", false, false}} {
		m, err := c.ReadMessage(nil)
		require.NoError(t, err)
		topic, add, ok := ParseSubscription(m)
		require.Equal(t, want.topic, string(topic))
		require.Equal(t, want.add, add)
		require.Equal(t, want.ok, ok)
	}

	// a subscriber is not bothered with subscriptions
	c = NewConn(&scripted{in: bytes.NewReader(in)}, Limits{})
	c.local = "SUB"
	_, err = c.ReadMessage(nil)
	require.NoError(t, err)
	m, err = c.ReadMessage(nil)
	require.NoError(t, err)
	require.Equal(t, "\x01old", string(m[0]))
}

func TestPipeBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		router := NewConn(b, Limits{})
		done := make(chan error, 1)
		go func() {
			if err := router.Handshake(t.Context(), "ROUTER", nil); err != nil {
				done <- err
				return
			}
			m, err := router.ReadMessage(nil)
			if err == nil {
				err = router.WriteMessage(m[0], m[1], bytes.Repeat([]byte("x"), 300<<10))
			}
			if err == nil {
				err = router.WriteMessage([]byte("no delimiter"))
			}
			done <- err
		}()
		dial := func(context.Context, string, string) (net.Conn, error) { return a, nil }
		d, err := DialDealer(t.Context(), dial, "tcp://somewhere:1", Limits{})
		require.NoError(t, err)
		require.NoError(t, d.Request([]byte("q")))
		m, err := d.Reply(nil)
		require.NoError(t, err)
		require.Len(t, m, 2)
		require.Equal(t, "q", string(m[0]))
		require.Len(t, m[1], 300<<10)
		_, err = d.Reply(nil)
		require.ErrorIs(t, err, ErrProtocol)
		require.NoError(t, <-done)
		require.NoError(t, d.Close())
		require.NoError(t, router.Close())
	})
}

func TestHandshakeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// a peer that takes the connection and says nothing
		a, b := net.Pipe()
		defer b.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, NewConn(a, Limits{}).Handshake(ctx, "SUB", nil))
		a.Close()

		a, b = net.Pipe()
		defer b.Close()
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.Equal(t, context.Canceled, NewConn(a, Limits{}).Handshake(ctx, "SUB", nil))
		a.Close()
	})
}

func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		defer a.Close()
		var ne net.Error
		err := NewConn(a, Limits{WriteTimeout: time.Second}).WriteMessage([]byte("x"))
		require.True(t, errors.As(err, &ne) && ne.Timeout())
	})
}

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"tcp://10.0.0.1:5557":  "tcp 10.0.0.1:5557",
		"tcp://[::1]:5557":     "tcp [::1]:5557",
		"tcp://engine-0:5557":  "tcp engine-0:5557",
		"ipc:///tmp/kv.sock":   "unix /tmp/kv.sock",
		"tcp://*:5557":         "",
		"tcp://:5557":          "",
		"tcp://host":           "",
		"tcp://":               "",
		"inproc://x":           "",
		"127.0.0.1:5557":       "",
		"udp://127.0.0.1:5557": "",
	} {
		network, address, err := ParseEndpoint(in)
		if want == "" {
			require.ErrorIs(t, err, ErrEndpoint, in)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, network+" "+address)
	}
}

// loop repeats its bytes for ever.
type loop struct {
	b []byte
	n int
}

func (l *loop) Read(p []byte) (int, error) {
	n := copy(p, l.b[l.n:])
	l.n = (l.n + n) % len(l.b)
	return n, nil
}

func TestReadAllocs(t *testing.T) {
	big := AppendFrame(unhex(t, wireMessage), make([]byte, 20000), false)
	c := NewConn(&scripted{in: &loop{b: big}}, Limits{})
	var m [][]byte
	var err error
	n := testing.AllocsPerRun(100, func() {
		if m, err = c.ReadMessage(m[:0]); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, n)
}

func BenchmarkReadMessage(b *testing.B) {
	c := NewConn(&scripted{in: &loop{b: unhex(b, wireMessage)}}, Limits{})
	b.ReportAllocs()
	var m [][]byte
	var err error
	for b.Loop() {
		if m, err = c.ReadMessage(m[:0]); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzZMTP(f *testing.F) {
	f.Add(unhex(f, wireGreeting+wireReadyPub+wireMessage))
	f.Add(unhex(f, wireGreeting+wireReadyPub+"0409"+"0450494e470000aabb"+wireMessage))
	f.Add(unhex(f, wireGreeting+wireReadyPub+"02ffffffffffffffff"))
	f.Add(unhex(f, wireGreeting+"0400"))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	lim := Limits{MaxMessage: 1 << 16, MaxFrames: 8}
	f.Fuzz(func(t *testing.T, in []byte) {
		c := NewConn(&scripted{in: bytes.NewReader(in)}, lim)
		if c.Handshake(context.Background(), "SUB", nil) != nil {
			return
		}
		for {
			m, err := c.ReadMessage(nil)
			if err != nil {
				return
			}
			size := 0
			for _, frame := range m {
				size += len(frame)
			}
			if len(m) == 0 || len(m) > lim.MaxFrames || size > lim.MaxMessage {
				t.Fatalf("message of %d frames, %d bytes", len(m), size)
			}
			// what was read can be written and read again
			s := &scripted{}
			if err := NewConn(s, lim).WriteMessage(m...); err != nil {
				t.Fatal(err)
			}
			s.in = &s.out
			again, err := NewConn(s, lim).ReadMessage(nil)
			if err != nil || len(again) != len(m) {
				t.Fatalf("%d frames, %v", len(again), err)
			}
			for i := range m {
				if !bytes.Equal(m[i], again[i]) {
					t.Fatalf("frame %d changed", i)
				}
			}
		}
	})
}
