package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/examples/gateway/internal/page"
)

// serving is a gateway in front of n simulated engines without the program
// around it, so that a test can look inside.
func serving(t *testing.T, n int) (*gateway, *stack, string) {
	var list []discovery.Worker
	for i := range n {
		s, err := sim.NewServer(&sim.Options{Config: engineConfig(), Speed: 200})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		list = append(list, discovery.Worker{Name: fmt.Sprint("w", i), Engine: "vllm", Endpoints: discovery.Endpoints{HTTP: s.URL()}})
	}
	source, err := discovery.Static(list...)
	require.NoError(t, err)
	g := &gateway{config: &config{policy: "expected", engines: list, speed: 1}, stdout: io.Discard, stderr: io.Discard, source: source}
	g.page = page.New(page.Options{Workers: g.workersOnPage, Model: g.modelOnPage})
	s, err := g.start(t.Context(), "expected")
	require.NoError(t, err)
	t.Cleanup(s.close)
	front := httptest.NewServer(g.routes())
	t.Cleanup(front.Close)
	return g, s, front.URL
}

// idle waits until nothing of any request is left: at the front, on the page, in
// the router's books and at the engines.
func idle(t *testing.T, g *gateway, s *stack) {
	require.Eventually(t, func() bool {
		if s.handler.Stats().InFlight != 0 || g.page.State().Totals.Active != 0 {
			return false
		}
		for _, w := range s.fleet.Router().Stats().Workers {
			if w.Outstanding+w.Decoding+w.Pending+w.PendingTokens+w.PromptTokens+w.ActiveBlocks+w.PrivateBlocks+w.OtherRequests != 0 || w.Queue != 0 {
				return false
			}
		}
		for _, w := range s.fleet.Workers() {
			if w.Load.Running != 0 || w.Load.Waiting != 0 || w.Load.KVUsage != 0 {
				return false
			}
		}
		open := 0
		s.watch.open.Range(func(any, any) bool { open++; return true })
		return open == 0
	}, 30*time.Second, 10*time.Millisecond)
}

// Two hundred clients leave at any moment: in the middle of the header, of the
// body, before the first token, in the stream. Nothing of them may stay behind.
func TestClientsThatLeave(t *testing.T) {
	g, s, url := serving(t, 2)
	addr := strings.TrimPrefix(url, "http://")
	var wg sync.WaitGroup
	for i := range 200 {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for range 3 {
				body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":%d,"stream":%v,"n":%d}`,
					strings.Repeat(fmt.Sprint("w", rng.IntN(9), " "), 1+rng.IntN(3000)), 1+rng.IntN(2000), rng.IntN(3) > 0, 1+rng.IntN(2))
				raw := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				switch rng.IntN(4) {
				case 0:
					_, _ = io.WriteString(conn, raw[:rng.IntN(len(raw))])
				case 1:
					_, _ = io.WriteString(conn, raw)
				default:
					_, _ = io.WriteString(conn, raw)
					_ = conn.SetReadDeadline(time.Now().Add(time.Duration(rng.IntN(300)) * time.Millisecond))
					_, _ = io.CopyN(io.Discard, conn, int64(1+rng.IntN(50_000)))
				}
				if rng.IntN(2) == 0 {
					_ = conn.(*net.TCPConn).SetLinger(0) // reset
				}
				_ = conn.Close()
			}
		})
	}
	wg.Wait()
	idle(t, g, s)
	totals := g.page.State().Totals
	require.Zero(t, totals.Errors, "to leave is no error")
	require.Positive(t, totals.Left)
	require.Equal(t, int(s.handler.Stats().Requests), totals.Requests)
}

// Names come from engines, clients and files. They pass through the page's data
// as they are and do not break it; that they stay text is the page's part.
func TestHostileNames(t *testing.T) {
	name := `</script><img src=x onerror="document.title='owned'">'"&\u2028`
	engine, err := sim.NewServer(&sim.Options{Config: engineConfig(), Speed: 200, Model: name})
	require.NoError(t, err)
	defer engine.Close()
	worker := discovery.Worker{Name: name, Engine: "vllm", Endpoints: discovery.Endpoints{HTTP: engine.URL()}}
	source, err := discovery.Static(worker)
	require.NoError(t, err)
	g := &gateway{config: &config{policy: "expected", engines: []discovery.Worker{worker}, speed: 1}, stdout: io.Discard, stderr: io.Discard, source: source}
	g.page = page.New(page.Options{Workers: g.workersOnPage, Model: g.modelOnPage})
	s, err := g.start(t.Context(), "expected")
	require.NoError(t, err)
	defer s.close()
	front := httptest.NewServer(g.routes())
	defer front.Close()
	body, err := json.Marshal(map[string]any{"model": name, "prompt": name, "max_tokens": 2})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, front.URL+"/v1/completions", strings.NewReader(string(body)))
	require.NoError(t, err)
	req.Header.Set("X-Request-Id", "<b>id</b>")
	resp, err := front.Client().Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	idle(t, g, s)
	st := g.page.State()
	require.Equal(t, name, st.Model)
	require.Equal(t, name, st.Workers[0].Name)
	require.Equal(t, name, st.Requests[0].Worker)
	require.NotContains(t, st.Requests[0].ID, "<")
	_, raw := fetch(t, front.Client(), front.URL+"/debug/state", "")
	require.NotContains(t, raw, "<", "whoever opens the data as a page must not run it either")
}
