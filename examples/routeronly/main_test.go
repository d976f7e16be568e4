package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A prompt must go back to the backend that computed its beginning, whatever
// the other one has, and a dead backend must not stop the gateway.
func TestSticksToPrefix(t *testing.T) {
	var mu sync.Mutex
	served := map[string]string{} // the conversation's last server
	var backends []string
	for i := range 3 {
		name := fmt.Sprint("backend ", i)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			served[string(body[:1])] += name + ";"
			mu.Unlock()
			for range 3 {
				_, _ = io.WriteString(w, "data: x\n\n")
				w.(http.Flusher).Flush()
				time.Sleep(0)
			}
		}))
		defer s.Close()
		backends = append(backends, s.URL)
	}
	g, err := newGateway(backends)
	require.NoError(t, err)
	front := httptest.NewServer(g)
	defer front.Close()

	for turn := range 4 {
		for _, who := range []string{"a", "b", "c", "d", "e"} {
			resp, err := http.Post(front.URL+"/v1/completions", "application/json", strings.NewReader(strings.Repeat(who, 40_000*(turn+1))))
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, "data: x\n\ndata: x\n\ndata: x\n\n", string(got))
		}
	}
	for who, names := range served {
		first, _, _ := strings.Cut(names, ";")
		require.Equal(t, strings.Repeat(first+";", 4), names, "conversation %s moved", who)
	}
}

func TestDeadBackend(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	g, err := newGateway([]string{dead.URL})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, httptest.NewRequest("POST", "/v1/completions", strings.NewReader("{}")))
	require.Equal(t, http.StatusBadGateway, w.Code)

	_, err = newGateway([]string{"nonsense"})
	require.ErrorContains(t, err, `"nonsense" is no URL`)
}

// A backend must not be left out because clients do not wait for its answers.
func TestClientsThatLeave(t *testing.T) {
	stop := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			select {
			case <-stop:
				return
			default:
				_, _ = io.WriteString(w, strings.Repeat("data: x\n\n", 1000))
				w.(http.Flusher).Flush()
			}
		}
	}))
	defer backend.Close()
	g, err := newGateway([]string{backend.URL})
	require.NoError(t, err)
	front := httptest.NewServer(g)
	defer front.Close()
	for range 20 {
		resp, err := http.Post(front.URL+"/v1/completions", "application/json", strings.NewReader("{}"))
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	require.Eventually(t, func() bool { return g.router.Stats().Workers[0].Outstanding == 0 }, 10*time.Second, time.Millisecond)
	w := g.router.Stats().Workers[0]
	require.Zero(t, w.Failures)
	require.False(t, w.Paused)
	close(stop)
	resp, err := http.Post(front.URL+"/v1/completions", "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}
