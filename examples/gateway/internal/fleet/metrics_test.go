package fleet

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine/sim"
)

// An engine that answers but does not tell its load, as vLLM with statistics
// switched off, is judged by its health.
func TestMetricsWithoutLoad(t *testing.T) {
	s, err := sim.NewServer(&sim.Options{Config: sim.H100TP4("dram").WithBlockTokens(16).VLLM(), Speed: fast})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	to, err := url.Parse(s.URL())
	require.NoError(t, err)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(pr *httputil.ProxyRequest) { pr.SetURL(to) }}
	var looks, healths atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			looks.Add(1)
			_, _ = io.WriteString(w, "# TYPE python_gc_objects_collected_total counter\npython_gc_objects_collected_total{generation=\"0\"} 12\n")
			return
		case "/health":
			healths.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()

	var downs atomic.Int32
	f, err := New(&Options{
		LoadEvery: time.Millisecond, ProbeEvery: 5 * time.Millisecond, FailAfter: 1,
		Hooks: Hooks{Down: func(discovery.Worker, error) { downs.Add(1) }},
	})
	require.NoError(t, err)
	src, err := discovery.Static(discovery.Worker{Name: "mute", Endpoints: discovery.Endpoints{HTTP: front.URL}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx, src) }()
	require.NoError(t, f.Wait(ctx, 1))
	require.Eventually(t, func() bool { return looks.Load() > 20 && healths.Load() > 20 }, 20*time.Second, time.Millisecond)
	require.Zero(t, downs.Load(), "an engine that answers its health check is up")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}
