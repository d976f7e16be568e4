package integration

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
)

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// bound returns a libzmq socket on a free port, and its endpoint.
func bound(t *testing.T, zc *zmq4.Context, kind zmq4.Type) (*zmq4.Socket, string) {
	t.Helper()
	s := must[*zmq4.Socket](t)(zc.NewSocket(kind))
	require.NoError(t, s.SetLinger(0))
	require.NoError(t, s.Bind("tcp://127.0.0.1:*"))
	return s, must[string](t)(s.GetLastEndpoint())
}

func newContext(t *testing.T) *zmq4.Context {
	t.Helper()
	zc := must[*zmq4.Context](t)(zmq4.NewContext())
	t.Cleanup(func() { _ = zc.Term() })
	return zc
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

var cleared, _ = hex.DecodeString("93cb41d954fc400000009181a474797065b0416c6c426c6f636b73436c656172656400")

// TestSubAndPing: our subscriber to libzmq's publisher, with heartbeats that
// libzmq takes seriously: it cuts a peer that does not answer.
func TestSubAndPing(t *testing.T) {
	zc := newContext(t)
	pub := must[*zmq4.Socket](t)(zc.NewSocket(zmq4.XPUB))
	defer pub.Close()
	require.NoError(t, pub.SetLinger(0))
	require.NoError(t, pub.SetHeartbeatIvl(100*time.Millisecond))
	require.NoError(t, pub.SetHeartbeatTimeout(300*time.Millisecond))
	require.NoError(t, pub.Bind("tcp://127.0.0.1:*"))
	endpoint := must[string](t)(pub.GetLastEndpoint())

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sub := must[*zmtp.Sub](t)(zmtp.DialSub(ctx, nil, endpoint, zmtp.Limits{}, "kv@"))
	defer sub.Close()
	require.Equal(t, "XPUB", sub.Peer().SocketType)
	require.Equal(t, "\x01kv@", must[string](t)(pub.Recv(0)))

	// Only heartbeats pass for a second, which the subscriber answers while it
	// reads. A libzmq socket belongs to one goroutine at a time.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		time.Sleep(time.Second)
		_, _ = pub.SendMessage("other", number(0), "no")
		_, _ = pub.SendMessage("kv@here", number(1), make([]byte, 300))
		_, _ = pub.SendMessage("kv@here", number(2), make([]byte, 3<<20))
	}()
	defer func() { <-sent }()
	for _, want := range []int{300, 3 << 20} {
		m := must[[][]byte](t)(sub.ReadMessage(nil))
		require.Len(t, m, 3)
		require.Equal(t, "kv@here", string(m[0]))
		require.Len(t, m[2], want)
	}
}

// TestPubToLibzmq: our publisher to libzmq's subscriber, which unsubscribes too.
func TestPubToLibzmq(t *testing.T) {
	zc := newContext(t)
	pub := zmtp.NewPub(must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0")), nil)
	defer pub.Close()
	sub := must[*zmq4.Socket](t)(zc.NewSocket(zmq4.SUB))
	defer sub.Close()
	require.NoError(t, sub.SetLinger(0))
	require.NoError(t, sub.SetRcvtimeo(20*time.Second))
	require.NoError(t, sub.SetSubscribe("kv@"))
	require.NoError(t, sub.Connect("tcp://"+pub.Addr().String()))
	require.Eventually(t, func() bool { return pub.Stats().Subscribers == 1 }, 20*time.Second, time.Millisecond)
	pub.Publish([]byte("other"), number(0), []byte("no"))
	pub.Publish([]byte("kv@here"), number(1), make([]byte, 70<<10))
	m := must[[][]byte](t)(sub.RecvMessageBytes(0))
	require.Len(t, m, 3)
	require.Equal(t, number(1), m[1])
	require.Len(t, m[2], 70<<10)
	require.NoError(t, sub.SetUnsubscribe("kv@"))
	require.Eventually(t, func() bool { return pub.Stats().Subscribers == 0 }, 20*time.Second, time.Millisecond)
}

// TestRouterToLibzmq: libzmq's DEALER and REQ ask our router.
func TestRouterToLibzmq(t *testing.T) {
	zc := newContext(t)
	router := zmtp.NewRouterSock(must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0")), nil,
		func(req [][]byte, reply func(...[]byte) error) error {
			for i := range 2 {
				if err := reply(nil, number(uint64(i)), req[len(req)-1]); err != nil {
					return err
				}
			}
			return nil
		})
	defer router.Close()
	dealer := must[*zmq4.Socket](t)(zc.NewSocket(zmq4.DEALER))
	defer dealer.Close()
	require.NoError(t, dealer.SetLinger(0))
	require.NoError(t, dealer.SetRcvtimeo(20*time.Second))
	require.NoError(t, dealer.SetIdentity("me"))
	require.NoError(t, dealer.Connect("tcp://"+router.Addr().String()))
	_ = must[int](t)(dealer.SendMessage("", number(7)))
	for i := range 2 {
		m := must[[][]byte](t)(dealer.RecvMessageBytes(0))
		require.Equal(t, [][]byte{{}, number(uint64(i)), number(7)}, m)
	}
	req := must[*zmq4.Socket](t)(zc.NewSocket(zmq4.REQ))
	defer req.Close()
	require.NoError(t, req.SetLinger(0))
	require.NoError(t, req.SetRcvtimeo(20*time.Second))
	require.NoError(t, req.Connect("tcp://"+router.Addr().String()))
	_ = must[int](t)(req.SendMessage(number(8)))
	require.Equal(t, [][]byte{number(0), number(8)}, must[[][]byte](t)(req.RecvMessageBytes(0)))
}

// sinkLog writes down the numbers of what comes.
type sinkLog struct {
	mu   sync.Mutex
	log  []string
	next uint64
}

func (s *sinkLog) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *sinkLog) has(want string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.log {
		if l == want {
			return true
		}
	}
	return false
}

func (s *sinkLog) Apply(b *kvindex.Batch) (r kvindex.Result) {
	s.add("live %d", b.Seq)
	if b.Seq > s.next {
		r.Replay = kvindex.ReplayRequest{Wanted: true, From: s.next}
	}
	s.next = b.Seq + 1
	return r
}

func (s *sinkLog) Replay(b *kvindex.Batch) kvindex.Result {
	s.add("replay %d", b.Seq)
	s.next = b.Seq + 1
	return kvindex.Result{}
}

func (s *sinkLog) ReplayEnd(ok bool) kvindex.Result {
	s.add("end %v", ok)
	return kvindex.Result{}
}

func (s *sinkLog) Tick(time.Time) kvindex.Result { return kvindex.Result{} }

// TestSubscriber: an engine of libzmq's PUB and ROUTER, as vLLM has them, its
// restart in place, and a gap that the replay fills.
func TestSubscriber(t *testing.T) {
	zc := newContext(t)
	pub, events := bound(t, zc, zmq4.PUB)
	router, replay := bound(t, zc, zmq4.ROUTER)
	require.NoError(t, router.SetRcvtimeo(100*time.Millisecond))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer router.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			m, err := router.RecvMessageBytes(0)
			if err != nil {
				continue
			}
			if len(m) != 3 || len(m[1]) != 0 {
				continue // as vLLM: no delimiter, no answer
			}
			for i := binary.BigEndian.Uint64(m[2]); i < 5; i++ {
				_, _ = router.SendMessage(m[0], "", "kv@", number(i), cleared)
			}
			_, _ = router.SendMessage(m[0], "", "", number(math.MaxUint64), "")
		}
	}()

	s, err := vllm.NewSubscriber(events, &vllm.SubscriberOptions{Replay: replay, Topic: "kv@", ReplayCooldown: time.Millisecond})
	require.NoError(t, err)
	sink := &sinkLog{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, sink) }()
	until := func(what string, f func() bool) {
		t.Helper()
		require.Eventually(t, f, 30*time.Second, time.Millisecond, what)
	}
	until("first replay", func() bool { return sink.has("end true") })
	require.True(t, sink.has("replay 0") && sink.has("replay 4"))

	// A subscription takes effect some time after it is sent: repeat.
	until("live", func() bool {
		_, _ = pub.SendMessage("kv@", number(5), cleared)
		return sink.has("live 5")
	})
	require.NoError(t, pub.Unbind(events))
	require.NoError(t, pub.Close())
	until("the cut", func() bool { return !s.Stats().Connected })

	pub = must[*zmq4.Socket](t)(zc.NewSocket(zmq4.PUB))
	require.NoError(t, pub.SetLinger(0))
	until("the port", func() bool { return pub.Bind(events) == nil })
	until("connected again", func() bool { return s.Stats().Connected })
	until("live again", func() bool {
		_, _ = pub.SendMessage("kv@", number(9), cleared)
		return sink.has("live 9")
	})
	until("the gap's replay", func() bool { return s.Stats().Replays >= 2 })
	require.GreaterOrEqual(t, s.Stats().Connects, uint64(2))
	require.Zero(t, s.Stats().BadMessages)

	cancel()
	require.Equal(t, context.Canceled, <-done)
	close(stop)
	<-stopped
	require.NoError(t, pub.Close())
}
