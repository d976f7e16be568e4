package openai_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine/openai"
)

// canned is a transport that answers every request with one stream.
type canned struct{ stream string }

func (c *canned) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}},
		Body: io.NopCloser(strings.NewReader(c.stream)), Request: req,
	}, nil
}

// sink is a response writer that keeps nothing.
type sink struct{ h http.Header }

func (s *sink) Header() http.Header               { return s.h }
func (s *sink) Write(p []byte) (int, error)       { return len(p), nil }
func (s *sink) WriteString(p string) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)                   {}
func (s *sink) Flush()                            {}

// A chunk costs no allocation on its way from the engine's bytes through client
// and handler to the client's: requests of a thousand chunks more allocate no
// more.
func TestAChunkAllocatesNothing(t *testing.T) {
	stream := func(n int) string {
		return strings.Repeat(event(0, "some text", "null"), n) + event(0, "", `"stop"`) + done
	}
	tr := &canned{}
	client := newClient(t, "http://engine", &openai.ClientOptions{Transport: tr})
	handler := newHandler(t, client, nil)
	measure := func(n int, run func()) float64 {
		tr.stream = stream(n)
		run() // fill the pools
		return testing.AllocsPerRun(20, run)
	}
	for name, run := range map[string]func(){
		"client": func() {
			req := streamRequest(1)
			req.RawOnly = true
			for _, err := range client.Generate(t.Context(), req) {
				if err != nil {
					panic(err)
				}
			}
		},
		"handler": func() {
			r, _ := http.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","stream":true}`))
			handler.ServeHTTP(&sink{http.Header{}}, r)
		},
	} {
		few, many := measure(10, run), measure(1010, run)
		slack := 1.0 // a pool may be emptied by the collector in between
		if raceEnabled {
			slack = 100
		}
		require.LessOrEqual(t, many, few+slack, name)
		t.Logf("%s: %.0f allocations a request", name, few)
	}
	require.Equal(t, uint64(0), handler.Stats().Failed+handler.Stats().Broken)
}

// BenchmarkRelay is the work of client and handler for one chunk of a long
// stream, without a network on either side.
func BenchmarkRelay(b *testing.B) {
	const chunks = 10_000
	tr := &canned{stream: strings.Repeat(strings.Replace(event(0, " over", "null"), `"text"`, `"token_ids":[585],"text"`, 1), chunks) + event(0, "", `"stop"`) + done}
	client := newClient(b, "http://engine", &openai.ClientOptions{Transport: tr})
	handler := newHandler(b, client, nil)
	for b.Loop() {
		r, _ := http.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","stream":true}`))
		handler.ServeHTTP(&sink{http.Header{}}, r)
	}
	require.Equal(b, uint64(0), handler.Stats().Failed+handler.Stats().Broken)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunks, "ns/chunk")
}
