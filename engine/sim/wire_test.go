package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/internal/msgpack"
	"github.com/stator-go/stator/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A normaliser writes event messages without what differs from engine to
// engine: hashes become numbers in order of appearance, tokens their number.
type normaliser struct{ names map[uint64]int }

func (n *normaliser) name(h uint64) string {
	if _, ok := n.names[h]; !ok {
		n.names[h] = len(n.names)
	}
	return fmt.Sprint(n.names[h])
}

// message is one payload as a line: every event with its keys in their order.
func (n *normaliser) message(t *testing.T, payload []byte) string {
	var r msgpack.Reader
	r.Reset(payload)
	size, err := r.Array()
	require.NoError(t, err)
	require.Equal(t, 3, size)
	ts, err := r.Float()
	require.NoError(t, err)
	require.Positive(t, ts)
	events, err := r.Array()
	require.NoError(t, err)
	var line []string
	for range events {
		line = append(line, n.event(t, &r))
	}
	rank, err := r.Int()
	require.NoError(t, err)
	require.Zero(t, rank)
	require.Zero(t, r.Left())
	return strings.Join(line, " | ")
}

func (n *normaliser) event(t *testing.T, r *msgpack.Reader) string {
	keys, err := r.Map()
	require.NoError(t, err)
	var parts []string
	for range keys {
		key, err := r.Str()
		require.NoError(t, err)
		parts = append(parts, string(key)+"="+n.value(t, r, string(key)))
	}
	return strings.Join(parts, " ")
}

func (n *normaliser) value(t *testing.T, r *msgpack.Reader, key string) string {
	if r.Nil() {
		return "nil"
	}
	switch r.Kind() {
	case msgpack.Str:
		s, err := r.Str()
		require.NoError(t, err)
		return string(s)
	case msgpack.Array:
		size, err := r.Array()
		require.NoError(t, err)
		var items []string
		for range size {
			items = append(items, n.value(t, r, key))
		}
		if key == "token_ids" {
			return fmt.Sprint(size)
		}
		return "[" + strings.Join(items, " ") + "]"
	}
	v, neg, err := r.Bits()
	require.NoError(t, err)
	require.False(t, neg)
	if strings.HasSuffix(key, "hash") || strings.HasSuffix(key, "hashes") {
		return n.name(v)
	}
	return fmt.Sprint(v)
}

// A recorded request, see testdata/README.md.
type recorded struct {
	Scenario, Label       string
	Prompt                []uint32
	Out                   int
	Cached                []int
	Salt, Session, Report string
	Reset                 bool
}

func lines(t *testing.T, file string, each func([]byte)) {
	f, err := os.Open("testdata/vllm-0.32.0/" + file)
	require.NoError(t, err)
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		each(sc.Bytes())
	}
	require.NoError(t, sc.Err())
}

// recording is what the real engine did in the scenarios: requests and messages.
func recording(t *testing.T, scenarios ...string) (reqs []recorded, msgs []string) {
	in := map[string]bool{}
	n := &normaliser{map[uint64]int{}}
	for _, s := range scenarios {
		in[s] = true
		lines(t, s+".jsonl", func(b []byte) {
			var m struct {
				Seq     uint64
				SeqHex  string `json:"seq_hex"`
				Payload string `json:"payload_hex"`
			}
			require.NoError(t, json.Unmarshal(b, &m))
			seq, err := hex.DecodeString(m.SeqHex)
			require.NoError(t, err)
			require.Equal(t, m.Seq, binary.BigEndian.Uint64(seq))
			payload, err := hex.DecodeString(m.Payload)
			require.NoError(t, err)
			msgs = append(msgs, n.message(t, payload))
		})
	}
	lines(t, "requests.jsonl", func(b []byte) {
		var r recorded
		require.NoError(t, json.Unmarshal(b, &r))
		if in[r.Scenario] {
			reqs = append(reqs, r)
		}
	})
	return reqs, msgs
}

// rig is a simulator with the recorded engine's memory, and clients.
type rig struct {
	*Server
	client *http.Client
	sub    *zmtp.Sub
	dial   zmtp.DialFunc
}

func recordedEngine() Config {
	c := H100TP4("hbm").VLLM()
	c.BlockTokens, c.RunBlocks, c.CacheBlocks, c.MaxSeqs = 32, 64, 64, 16
	c.Timing.Chunk = 2048
	return c
}

func newRig(t *testing.T, opts *Options, dial zmtp.DialFunc) *rig {
	s, err := NewServer(opts)
	require.NoError(t, err)
	r := &rig{Server: s, dial: dial}
	tr := &http.Transport{}
	if dial != nil {
		tr.DialContext = dial
	}
	r.client = &http.Client{Transport: tr}
	r.sub, err = zmtp.DialSub(t.Context(), dial, s.EventsEndpoint(), zmtp.Limits{})
	require.NoError(t, err)
	for s.events.pub.Stats().Subscribers == 0 {
		time.Sleep(time.Millisecond) // the subscription is on its way
	}
	return r
}

func (r *rig) close() {
	_ = r.sub.Close()
	r.client.CloseIdleConnections()
	_ = r.Server.Close()
}

// post sends a JSON body and returns status and answer.
func (r *rig) post(t *testing.T, path string, header http.Header, body any) (int, []byte) {
	b, ok := body.([]byte)
	if !ok {
		var err error
		b, err = json.Marshal(body)
		require.NoError(t, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL()+path, bytes.NewReader(b))
	require.NoError(t, err)
	for k, v := range header {
		req.Header[k] = v
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, answer
}

// replayRequests does what the recording says, over the wire.
func (r *rig) replayRequests(t *testing.T, reqs []recorded) {
	for _, q := range reqs {
		if q.Reset {
			code, _ := r.post(t, "/reset_prefix_cache", nil, []byte{})
			require.Equal(t, 200, code)
			continue
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var cached []int
		for range q.Cached {
			wg.Go(func() {
				body := map[string]any{"model": r.Model(), "prompt": q.Prompt, "max_tokens": q.Out, "ignore_eos": true, "temperature": 0, "return_token_ids": true}
				if q.Salt != "" {
					body["cache_salt"] = q.Salt
				}
				if q.Report != "" {
					body["vllm_xargs"] = map[string]any{"kv_cache_report_mode": q.Report}
				}
				h := http.Header{}
				if q.Session != "" {
					h.Set("X-Session-ID", q.Session)
				}
				code, answer := r.post(t, "/v1/completions", h, body)
				require.Equal(t, 200, code, string(answer))
				var a completion
				require.NoError(t, json.Unmarshal(answer, &a))
				require.Equal(t, q.Prompt, a.Choices[0].PromptTokenIDs)
				require.Len(t, a.Choices[0].TokenIDs, q.Out)
				mu.Lock()
				cached = append(cached, a.Usage.Details.Cached)
				mu.Unlock()
			})
		}
		wg.Wait()
		require.ElementsMatch(t, q.Cached, cached, q.Label)
	}
}

type completion struct {
	ID, Object, Model string
	Choices           []struct {
		Index          int
		Text           string
		Message        struct{ Role, Content string }
		FinishReason   string   `json:"finish_reason"`
		StopReason     any      `json:"stop_reason"`
		TokenIDs       []uint32 `json:"token_ids"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Total      int `json:"total_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached  int  `json:"cached_tokens"`
			Created *int `json:"created_cache_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// messages reads n event messages, checks their frames and numbers, and that
// the replay socket tells the same.
func (r *rig) messages(t *testing.T, n int) []string {
	norm := &normaliser{map[uint64]int{}}
	var got []string
	var payloads [][]byte
	var f [][]byte
	for i := range n {
		var err error
		f, err = r.sub.ReadMessage(f[:0])
		require.NoError(t, err)
		require.Len(t, f, 3)
		require.Equal(t, r.opts.Topic, string(f[0]))
		require.Equal(t, uint64(i), binary.BigEndian.Uint64(f[1]))
		got = append(got, norm.message(t, f[2]))
		payloads = append(payloads, bytes.Clone(f[2]))
	}
	d, err := zmtp.DialDealer(t.Context(), r.dial, r.ReplayEndpoint(), zmtp.Limits{})
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, d.WriteMessage([]byte{0, 0, 0, 0, 0, 0, 0, 0})) // no delimiter: dropped
	require.NoError(t, d.Request(nil))                                 // empty start: from 0
	for i, want := range payloads {
		f, err = d.Reply(f[:0])
		require.NoError(t, err)
		require.Len(t, f, 3)
		require.Equal(t, r.opts.Topic, string(f[0]))
		require.Equal(t, uint64(i), binary.BigEndian.Uint64(f[1]))
		require.Equal(t, want, f[2])
	}
	f, err = d.Reply(f[:0])
	require.NoError(t, err)
	require.Equal(t, [][]byte{{}, replayEnd, {}}, f, "an end marker, and no message that nobody recorded")
	return got
}

// The same requests in the same order lead to the same event messages as the
// recorded engine sent: the same events in each, with the same keys in the same
// order, the same parents and counts; and to the same numbers of cached tokens.
func TestMessagesAsRecorded(t *testing.T) {
	for _, group := range [][]string{
		{"01-fresh-and-shared", "02-salt-session-report"},
		{"04-eviction", "05-clear"},
	} {
		t.Run(group[0], func(t *testing.T) {
			reqs, want := recording(t, group...)
			r := newRig(t, &Options{Config: recordedEngine(), Speed: 20, MaxModelLen: 1024}, nil)
			defer r.close()
			resets := strings.Count(want[0], "AllBlocksCleared")
			for _, q := range reqs {
				if !q.Reset || !strings.HasPrefix(q.Label, "reset") {
					continue
				}
				resets-- // the recording says so itself
			}
			for range resets {
				require.True(t, r.Reset())
			}
			r.replayRequests(t, reqs)
			require.Equal(t, want, r.messages(t, len(want)))
		})
	}
}

// pipes is a network in memory, so that a test's clock can stand still.
type pipes struct {
	addr pipeAddr
	in   chan net.Conn
	done chan struct{}
	once sync.Once
}

type pipeAddr string

func (a pipeAddr) Network() string { return "tcp" }
func (a pipeAddr) String() string  { return string(a) }

func newPipes(addr string) *pipes {
	return &pipes{addr: pipeAddr(addr), in: make(chan net.Conn), done: make(chan struct{})}
}

func (p *pipes) Addr() net.Addr { return p.addr }
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.in:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func dialer(nets ...*pipes) zmtp.DialFunc {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		for _, p := range nets {
			if string(p.addr) != address {
				continue
			}
			here, there := net.Pipe()
			select {
			case p.in <- there:
				return here, nil
			case <-p.done:
				return nil, net.ErrClosed
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return nil, fmt.Errorf("nobody listens at %s", address)
	}
}

// memoryRig is a rig in memory, for use in a synctest bubble.
func memoryRig(t *testing.T, opts Options) *rig {
	h, e, p := newPipes("sim:80"), newPipes("sim:81"), newPipes("sim:82")
	opts.HTTP, opts.Events, opts.Replay = h, e, p
	return newRig(t, &opts, dialer(h, e, p))
}

// Requests that come at one instant, with the clock under control: the first one
// is scheduled alone, as in the recording.
func TestConcurrentMessagesAsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reqs, want := recording(t, "07-concurrent-same-prompt")
		r := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024})
		defer r.close()
		require.True(t, r.Reset())
		r.replayRequests(t, reqs)
		require.Equal(t, want, r.messages(t, len(want)))
	})
}

// Six sequences that outgrow the memory together: who is preempted when, and
// which blocks go for whom, is as recorded for as long as the recording lasts.
func TestPreemptionMessagesAsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, want := recording(t, "09-preemption")
		r := memoryRig(t, Options{Config: recordedEngine(), MaxModelLen: 1024})
		defer r.close()
		require.True(t, r.Reset())
		var wg sync.WaitGroup
		answers := make([]completion, 6)
		for i := range answers {
			wg.Go(func() {
				answers[i] = r.complete(t, map[string]any{"prompt": seqTokens(1000*(i+1), 300), "max_tokens": 600, "ignore_eos": true})
			})
		}
		wg.Wait()
		require.NotZero(t, r.Stats().Preemptions)
		for _, a := range answers {
			require.Equal(t, 600, a.Usage.Completion)
			require.Zero(t, a.Usage.Details.Cached, "what was recomputed after a preemption is no hit")
		}
		norm := &normaliser{map[uint64]int{}}
		for i, line := range want {
			f, err := r.sub.ReadMessage(nil)
			require.NoError(t, err)
			require.Equal(t, line, norm.message(t, f[2]), "message %d", i)
		}
	})
}
