package openai_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rawServer accepts connections on loopback and lets serve play the engine on
// each, byte by byte.
type rawServer struct {
	url   string
	l     net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

func newRawServer(t testing.TB, serve func(c net.Conn, r *bufio.Reader)) *rawServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &rawServer{url: "http://" + l.Addr().String(), l: l}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wg.Go(func() {
				defer c.Close()
				serve(c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

// readRequest reads one request with its body; nil when the peer is gone.
func readRequest(r *bufio.Reader) (*http.Request, []byte) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, nil
	}
	return req, body
}

// replay serves fixed bytes to every request and then closes the connection.
func replay(t testing.TB, answer []byte) string {
	return newRawServer(t, func(c net.Conn, r *bufio.Reader) {
		if req, _ := readRequest(r); req != nil {
			c.Write(answer)
		}
	}).url
}

func newClient(t testing.TB, url string, opts *openai.ClientOptions) *openai.Client {
	c, err := openai.NewClient(url, opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// got is a chunk with its memory copied.
type got struct {
	engine.Chunk
	raw string
	ids []uint32
	use engine.Usage
}

// collect runs a request to its end.
func collect(t testing.TB, e engine.Engine, req *engine.Request) (chunks []got, err error) {
	return collectCtx(context.Background(), t, e, req)
}

func collectCtx(ctx context.Context, t testing.TB, e engine.Engine, req *engine.Request) (chunks []got, err error) {
	for c, e := range e.Generate(ctx, req) {
		require.NoError(t, err, "something came after an error")
		if e != nil {
			require.Nil(t, c)
			err = e
			continue
		}
		g := got{Chunk: *c, raw: string(c.Raw), ids: append([]uint32(nil), c.TokenIDs...)}
		if c.Usage != nil {
			g.use = *c.Usage
		}
		chunks = append(chunks, g)
	}
	return chunks, err
}

const fixtures = "testdata/vllm-0.32.0"

// fixture is a recorded request and the bytes of its answer.
type fixture struct {
	Method, Path string
	Headers      map[string]string
	Body         json.RawMessage
	BodyText     *string `json:"body_text"`
	name         string
	answer       []byte
}

func loadFixture(t testing.TB, name string) *fixture {
	f := &fixture{name: name}
	b, err := os.ReadFile(filepath.Join(fixtures, name+".req.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, f))
	f.answer, err = os.ReadFile(filepath.Join(fixtures, name+".resp"))
	require.NoError(t, err)
	if f.BodyText != nil {
		f.Body = json.RawMessage(*f.BodyText)
	}
	return f
}

func loadFixtures(t testing.TB) (all []*fixture) {
	names, err := filepath.Glob(fixtures + "/*.req.json")
	require.NoError(t, err)
	require.Greater(t, len(names), 70)
	for _, n := range names {
		if f := loadFixture(t, strings.TrimSuffix(filepath.Base(n), ".req.json")); f.Method == http.MethodPost {
			all = append(all, f)
		}
	}
	return all
}

// request is the fixture's request as the handler would hand it on; a body that
// is refused there goes out as it is.
func (f *fixture) request() *engine.Request {
	api := engine.APICompletions
	if f.Path == "/v1/chat/completions" {
		api = engine.APIChat
	}
	req := &engine.Request{}
	if openai.ParseRequest(req, api, f.Body, openai.Limits{}) != nil {
		req = &engine.Request{API: api, Body: f.Body, N: 1, Prompts: 1, Rank: -1, IncludeUsage: true}
	}
	return req
}

// truth is what a recorded answer says, decoded by the standard library alone.
type truth struct {
	status   int
	payloads []string
	text     map[int]string
	ids      map[int][]uint32
	finish   map[int]string
	usage    *engine.Usage
}

func readTruth(t testing.TB, answer []byte) truth {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	tr := truth{status: resp.StatusCode, text: map[int]string{}, ids: map[int][]uint32{}, finish: map[int]string{}}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		for ev := range strings.SplitSeq(string(body), "\n\n") {
			if p, ok := strings.CutPrefix(ev, "data: "); ok && p != "[DONE]" {
				tr.payloads = append(tr.payloads, p)
			}
		}
	} else {
		tr.payloads = []string{string(body)}
	}
	for _, p := range tr.payloads {
		var v struct {
			Choices []struct {
				Index          int
				Text           string
				Delta, Message struct{ Content string }
				TokenIDs       []uint32 `json:"token_ids"`
				Finish         string   `json:"finish_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
				Details    *struct {
					Cached *int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(p), &v), p)
		for _, c := range v.Choices {
			tr.text[c.Index] += c.Text + c.Delta.Content + c.Message.Content
			tr.ids[c.Index] = append(tr.ids[c.Index], c.TokenIDs...)
			if c.Finish != "" {
				tr.finish[c.Index] = c.Finish
			}
		}
		if v.Usage != nil {
			tr.usage = &engine.Usage{Prompt: v.Usage.Prompt, Completion: v.Usage.Completion, Cached: -1}
			if d := v.Usage.Details; d != nil && d.Cached != nil {
				tr.usage.Cached = *d.Cached
			}
		}
	}
	return tr
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, ok func() bool, what string) {
	require.Eventually(t, ok, 10*time.Second, time.Millisecond, what)
}
