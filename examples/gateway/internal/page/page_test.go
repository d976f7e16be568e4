package page

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

// demo serves made-up figures until an interrupt, to look at the page:
//
//	go test ./examples/gateway/internal/page -run TestServesPageAndState -demo 127.0.0.1:9090
var demo = flag.String("demo", "", "address to serve made-up figures on")

// clock is a hand-set clock.
type clock struct{ now time.Time }

func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// demoPage is a page after n requests over the given number of workers, at a
// speed of 20 and with a clock that the caller moves.
func demoPage(n, workers int) (*Page, *clock) {
	c := &clock{now: time.Unix(1_000_000, 0)}
	rng := rand.New(rand.NewPCG(1, 2))
	ptr := func(v int) *int { return &v }
	share := func(v float64) *float64 { return &v }
	p := New(Options{Speed: 20, Model: func() string { return "sim" }, Now: func() time.Time { return c.now }, Workers: func() []Worker {
		var ws []Worker
		for i := range workers {
			w := Worker{Name: fmt.Sprintf("sim-%d", i+1), URL: fmt.Sprintf("http://127.0.0.1:%d", 40000+i), State: "up", Requests: n / workers,
				Running: ptr(3 + i%5), Waiting: ptr(i % 3), KV: share(float64(i+1) / float64(workers+1)), Reuse: share(.12 + .3*float64(i%4)/4), Events: "live", Blocks: ptr(997 * i * i)}
			switch i {
			case 5:
				w.State, w.Why = "draining", "leaving"
			case 6:
				w.State, w.Why, w.Running, w.Waiting, w.KV, w.Reuse, w.Events, w.Blocks = "down", "health: connection refused", nil, nil, nil, nil, "", nil
			}
			ws = append(ws, w)
		}
		return ws
	}})
	p.Start("roundrobin", Run{Title: "bundled trace", Index: 1, Of: 2, Total: n})
	p.Finish("", &Result{"roundrobin", 2093, 0, 3.914, 1.310, 16.2, 38.7, .0413, .131, .702, .018})
	p.Start("expected", Run{Title: "bundled trace", Index: 2, Of: 2, Total: n + 700})
	for i := range n {
		tl := &engine.Timeline{}
		in := 500 + int(rng.ExpFloat64()*9000)
		r := p.Begin(fmt.Sprintf("req-%05d", i), c.now, in, tl)
		at := c.now
		wait, pre, dec := time.Duration(rng.ExpFloat64()*1e7), time.Duration(in)*4*time.Microsecond, time.Duration(rng.ExpFloat64()*3e8)
		worker := fmt.Sprintf("sim-%d", 1+rng.IntN(max(1, workers)))
		tl.Add("tokens", engine.Control, at, at.Add(800*time.Microsecond))
		tl.Add("pick", engine.Control, at.Add(800*time.Microsecond), at.Add(time.Millisecond))
		cost := Cost{Queue: wait.Seconds() * 20, Prefill: pre.Seconds() * 20, Load: .02, Decode: .1 * rng.Float64(), Memory: .3 * rng.Float64() * float64(i%7/6), Price: .2 * rng.Float64()}
		total := cost.Queue + cost.Prefill + cost.Load + cost.Decode + cost.Memory + cost.Price
		next := total * (1 + rng.Float64())
		p.Decide(Decision{Worker: worker, Tokens: in, Reused: in / 16 / (1 + rng.IntN(4)) * 16, Cost: cost, Total: total, Next: &next})
		r.Sent(worker, in, in/3)
		c.advance(wait + pre + time.Millisecond)
		tl.Add("upstream", engine.Compute, at.Add(time.Millisecond), c.now)
		if i%17 == 16 {
			r.End(nil, errors.New("engine: connection reset"), Own{})
			continue
		}
		r.Tokens(1)
		if i%11 == 10 {
			r.Tokens(7)
			c.advance(30 * time.Millisecond)
			continue // still running
		}
		first := c.now
		c.advance(dec)
		tl.Add("decode", engine.Compute, first, c.now.Add(-time.Millisecond))
		tl.Add("relay", engine.Data, c.now.Add(-time.Millisecond), c.now)
		r.End(&engine.Usage{Prompt: in, Completion: 1 + int(dec.Milliseconds()), Cached: in / 3}, nil, Own{100 * time.Microsecond, 800 * time.Microsecond})
		p.Progress(i)
	}
	return p, c
}

func TestServesPageAndState(t *testing.T) {
	p, _ := demoPage(300, 8)
	mux := http.NewServeMux()
	p.Register(mux)
	if *demo != "" {
		serveDemo(t, mux)
		return
	}
	for _, path := range []string{"/", "/debug/state"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		require.Equal(t, http.StatusOK, w.Code)
		if path == "/" {
			require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
			continue
		}
		var s State
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
		require.Len(t, s.Workers, 8)
		require.Len(t, s.Decisions, maxDecisions)
		require.Len(t, s.Requests, maxTrips)
		require.Equal(t, 300, s.Totals.Requests+s.Totals.Active)
		require.Equal(t, 17, s.Totals.Errors)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/elsewhere", nil))
	require.Equal(t, http.StatusNotFound, w.Code)
}

func serveDemo(t *testing.T, mux *http.ServeMux) {
	empty, many := http.NewServeMux(), http.NewServeMux()
	p, _ := demoPage(0, 0)
	p.Finish("", nil)
	p.results.reset()
	p.Register(empty)
	p, _ = demoPage(300, 96)
	p.Register(many)
	for i, m := range []*http.ServeMux{mux, empty, many} {
		host, port, _ := strings.Cut(*demo, ":")
		n := 0
		fmt.Sscan(port, &n)
		go func() { _ = http.ListenAndServe(fmt.Sprintf("%s:%d", host, n+i), m) }()
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	<-c
	t.Log("demo ended")
}

// The page must load nothing from anywhere.
func TestPageIsSelfContained(t *testing.T) {
	html := string(indexHTML)
	require.NotRegexp(t, regexp.MustCompile(`(src|href)="?https?:`), html)
	require.NotContains(t, html, "@import")
	for _, u := range regexp.MustCompile(`https?://[^\s'"]+`).FindAllString(html, -1) {
		require.True(t, strings.HasPrefix(u, "http://www.w3.org/"), u) // a namespace, not an address
	}
	require.NotContains(t, html, "innerHTML")
}

func TestStateIsBounded(t *testing.T) {
	p, c := demoPage(20_000, 2000)
	for range 300 { // long runs of results and requests that never end
		p.Finish("x", &Result{})
		p.Begin(strings.Repeat("i", 20), c.now, 1, nil)
		c.advance(time.Minute)
	}
	s := p.State()
	require.Len(t, s.Decisions, maxDecisions)
	require.Len(t, s.Requests, maxTrips)
	require.LessOrEqual(t, len(s.History), maxIntervals)
	require.Len(t, s.Results, maxResults)
	require.Len(t, s.Workers, maxWorkers)
	require.Equal(t, maxWindow, s.Totals.Window)
	tl := &engine.Timeline{}
	r := p.Begin("many spans", c.now, 1, tl)
	for range 1000 {
		tl.Add("s", engine.Control, c.now, c.now.Add(time.Second))
	}
	r.End(nil, nil, Own{})
	require.LessOrEqual(t, len(p.State().Requests[0].Spans), maxSpans+2)
}

func TestTripInTraceTime(t *testing.T) {
	c := &clock{now: time.Unix(50, 0)}
	p := New(Options{Speed: 20, Now: func() time.Time { return c.now }})
	c.advance(time.Second)
	tl := &engine.Timeline{}
	r := p.Begin("a", c.now, 100, tl)
	tl.Add("pick", engine.Control, c.now, c.now.Add(10*time.Millisecond))
	c.advance(110 * time.Millisecond)
	live := p.State().Requests[0]
	require.True(t, live.Live)
	require.Nil(t, live.TTFT)
	require.Nil(t, live.Cached)
	require.Equal(t, []Span{{"pick", "control", 0, .2, false}, {"engine", "compute", .2, 2.2, true}}, rounded(live.Spans))

	r.Sent("w", 100, 48)
	r.Tokens(1)
	c.advance(100 * time.Millisecond)
	r.Tokens(4)
	r.End(&engine.Usage{Prompt: 100, Completion: 5, Cached: 64}, nil, Own{time.Millisecond, 2 * time.Millisecond})
	r.End(nil, errors.New("again"), Own{}) // a second end changes nothing
	s := p.State()
	trip := s.Requests[0]
	require.InDelta(t, 20, trip.At, 1e-9)
	require.InDelta(t, 2.2, *trip.TTFT, 1e-9)
	require.InDelta(t, 4.2, trip.Total, 1e-9)
	require.Equal(t, "w", trip.Worker)
	require.Equal(t, 48, *trip.Predicted)
	require.Equal(t, 64, *trip.Cached)
	require.Equal(t, []Span{{"pick", "control", 0, .2, false}, {"engine", "compute", .2, 2.2, false}, {"decode", "compute", 2.2, 4.2, false}}, rounded(trip.Spans))
	require.Equal(t, 1, s.Totals.Requests)
	require.Zero(t, s.Totals.Active)
	require.Zero(t, s.Totals.Errors)
	require.InDelta(t, .5, *s.Totals.ITLMean, 1e-9)
	require.InDelta(t, .003, *s.Totals.OwnWall, 1e-9) // wall clock
	require.InDelta(t, .001, *s.Totals.OwnControl, 1e-9)
	require.Equal(t, Own{time.Millisecond, 2 * time.Millisecond}, p.Own())
}

// A client that leaves is no error of the gateway's.
func TestLeft(t *testing.T) {
	p := New(Options{})
	p.Begin("a", time.Now(), 1, &engine.Timeline{}).End(nil, fmt.Errorf("after 3 tokens: %w", ErrLeft), Own{})
	p.Begin("b", time.Now(), 1, &engine.Timeline{}).End(nil, errors.New(strings.Repeat("e", 5000)), Own{})
	s := p.State()
	require.Equal(t, 2, s.Totals.Requests)
	require.Equal(t, 1, s.Totals.Errors)
	require.Equal(t, 1, s.Totals.Left)
	require.Len(t, s.Requests[0].Error, maxError)
	require.False(t, s.Requests[0].Left)
	require.True(t, s.Requests[1].Left)
	require.Empty(t, s.Requests[1].Error)
}

// Figures that JSON cannot hold, from an engine's metrics or a policy, must not
// take the whole page down.
func TestNoNumbers(t *testing.T) {
	nan, inf, one := math.NaN(), math.Inf(1), 1.0
	p := New(Options{Workers: func() []Worker {
		return []Worker{{Name: "a", KV: &nan, Reuse: &inf}, {Name: "b", KV: &one}}
	}})
	p.Decide(Decision{Total: inf, Next: &nan, Cost: Cost{nan, inf, -inf, nan, nan, nan, 2}})
	mux := http.NewServeMux()
	p.Register(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/debug/state", nil))
	var s State
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s), w.Body.String())
	require.Nil(t, s.Workers[0].KV)
	require.Nil(t, s.Workers[0].Reuse)
	require.InDelta(t, 1, *s.Workers[1].KV, 0)
	require.Equal(t, Decision{At: s.Decisions[0].At, Cost: Cost{Price: 2}}, s.Decisions[0])
}

// The output rate is one of now: it falls to zero when nothing ends any more.
func TestOutputRateFalls(t *testing.T) {
	c := &clock{now: time.Unix(50, 0)}
	p := New(Options{Now: func() time.Time { return c.now }})
	require.Nil(t, p.State().Totals.OutputRate, "nothing is over yet")
	r := p.Begin("a", c.now, 1, &engine.Timeline{})
	r.Tokens(300)
	r.End(nil, nil, Own{})
	c.advance(interval)
	require.InDelta(t, 60, *p.State().Totals.OutputRate, 1e-9)
	c.advance(2 * interval)
	require.InDelta(t, 20, *p.State().Totals.OutputRate, 1e-9)
	c.advance(time.Hour)
	require.Zero(t, *p.State().Totals.OutputRate)
}

func TestUnknownIsNull(t *testing.T) {
	p := New(Options{})
	b, err := json.Marshal(p.State())
	require.NoError(t, err)
	require.Contains(t, string(b), `"ttft_mean":null`)
	require.Contains(t, string(b), `"workers":[]`)
	require.Contains(t, string(b), `"requests":[]`)
	require.Zero(t, p.Own())
}

func TestStartForgets(t *testing.T) {
	p, _ := demoPage(200, 2)
	active := p.State().Totals.Active
	p.Start("other", Run{})
	s := p.State()
	require.Equal(t, Totals{Active: active}, s.Totals)
	require.Empty(t, s.Decisions)
	require.Empty(t, s.Requests)
	require.Len(t, s.Results, 1, "finished runs stay")
}

func rounded(spans []Span) []Span {
	for i := range spans {
		for _, f := range []*float64{&spans[i].Start, &spans[i].End} {
			*f = float64(int(*f*1e6+.5)) / 1e6
		}
	}
	return spans
}
