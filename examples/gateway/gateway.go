package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/examples/gateway/internal/load"
	"github.com/stator-go/stator/examples/gateway/internal/page"
	"github.com/stator-go/stator/examples/gateway/internal/slice"
	"github.com/stator-go/stator/internal/report"
	"github.com/stator-go/stator/internal/trace"
)

// Times of the gateway's own, wall clock.
const (
	upTimeout  = 15 * time.Second // for the engines' first answer
	endTimeout = time.Second      // for the last bytes of answers at the end
	seed       = 1                // of the spreading of ties
)

// maxHeader bounds a client's header in bytes. Engines take less than net/http's
// megabyte.
const maxHeader = 64 << 10

// errInterrupted is a run's end before its table.
var errInterrupted = errors.New("interrupted before the table")

// maxLate is the share of the mean time to first token that the playing
// client's own lateness may make up before a warning.
const maxLate = 0.05

// A gateway is one run of the program.
type gateway struct {
	*config
	stdout, stderr io.Writer

	requests []trace.Request
	source   discovery.Source
	engines  *engines // simulated ones, nil with real ones
	page     *page.Page
	current  atomic.Pointer[stack]
	url      string
	model    string
	own      page.Own // of the last run
}

func (g *gateway) run(ctx context.Context) (err error) {
	if err := g.prepare(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", g.listen)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s is in use: choose another address with -listen", g.listen)
		}
		return fmt.Errorf("-listen: %w", err)
	}
	g.url = "http://" + listener.Addr().String()
	g.page = page.New(page.Options{Speed: g.scale(), Workers: g.workersOnPage, Model: g.modelOnPage})
	server := &http.Server{Handler: g.routes(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	defer wg.Wait()
	defer server.Close()

	if !g.real() {
		if g.engines, err = startEngines(g.simulated, g.speed); err != nil {
			return err
		}
		defer g.engines.close()
		if g.source, err = g.engines.source(); err != nil {
			return err
		}
	}
	fmt.Fprintf(g.stderr, "live page at %s/\n", g.url)

	rows, last, err := g.runs(ctx)
	if last != nil {
		defer last.close()
	}
	if err != nil {
		switch {
		case ctx.Err() == nil:
			return err
		case g.once || g.json != "":
			return errInterrupted // somebody waits for the figures
		}
		return nil // the end of a server is no failure
	}
	if err := g.tell(rows); err != nil {
		return err
	}
	if g.once {
		return unanswered(rows)
	}
	what := cmp.Or(oneLine(g.model), "no model yet")
	fmt.Fprintf(g.stderr, "serving %s at %s/v1/ with policy %s; the page is at %s/; end with Ctrl-C\n", what, g.url, g.policy, g.url)
	<-ctx.Done()
	return g.leave(context.WithoutCancel(ctx), last, server)
}

// leave lets the requests at work end. When the handler is done with an answer
// its last bytes are still with the server, which must not be closed before it
// has sent them.
func (g *gateway) leave(ctx context.Context, s *stack, server *http.Server) error {
	wait, cancel := context.WithTimeout(ctx, g.drain)
	defer cancel()
	err := s.handler.Drain(wait)
	end, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	_ = server.Shutdown(end) // who still reads then has had the time to
	return err
}

// prepare reads the files, so that their faults are told before anything starts.
func (g *gateway) prepare() error {
	if g.play() {
		var err error
		if g.trace != "" {
			g.requests, err = trace.Open(g.trace)
		} else {
			g.requests, err = slice.Requests()
		}
		var line *trace.LineError
		switch {
		case errors.As(err, &line):
			return fmt.Errorf("%s: line %d: %w", g.traceName(), line.Line, line.Err)
		case err != nil:
			return err // names the file itself
		}
		if len(g.requests) == 0 {
			return fmt.Errorf("%s: the trace is empty", g.traceName())
		}
		trace.Spread(g.requests, seed)
	}
	switch {
	case g.workers != "":
		data, err := os.ReadFile(g.workers)
		if err == nil {
			_, err = discovery.Decode(data)
		}
		if err != nil {
			return fmt.Errorf("-workers %s: %w", g.workers, err)
		}
		g.source, err = discovery.File(g.workers, nil)
		return err
	case len(g.config.engines) > 0:
		var err error
		g.source, err = discovery.Static(g.config.engines...)
		return err
	}
	return nil
}

// scale turns wall clock into the time that figures are in: real engines do not
// run faster because the load comes sooner.
func (g *gateway) scale() float64 {
	if g.real() {
		return 1
	}
	return g.speed
}

func (g *gateway) traceName() string {
	if g.trace == "" {
		return "bundled trace"
	}
	return g.trace
}

// runs plays the trace with each policy and leaves the last one's stack in
// service.
func (g *gateway) runs(ctx context.Context) (rows []report.Row, last *stack, err error) {
	policies := []string{g.policy}
	if g.play() {
		policies = append(append([]string{}, g.compare...), g.policy)
	}
	for i, policy := range policies {
		if i > 0 {
			g.current.Store(nil)
			last.close()
			g.emptyCaches(ctx)
		}
		if last, err = g.start(ctx, policy); err != nil {
			return rows, last, err
		}
		if !g.play() {
			g.page.Start(policy, page.Run{Title: "serving"})
			continue
		}
		row, err := g.one(ctx, last, policy, i+1, len(policies))
		if err != nil {
			return rows, last, err
		}
		rows = append(rows, row)
	}
	return rows, last, nil
}

// start puts a stack of one policy into service.
func (g *gateway) start(ctx context.Context, policy string) (*stack, error) {
	s, err := g.newStack(policy)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	if err := s.ready(wait); err != nil {
		s.close()
		return nil, err
	}
	g.model = s.firstModel(wait)
	g.current.Store(s)
	return s, nil
}

// one plays the trace once.
func (g *gateway) one(ctx context.Context, s *stack, policy string, index, of int) (report.Row, error) {
	g.page.Start(policy, page.Run{Title: g.traceName(), Index: index, Of: of, Total: len(g.requests)})
	bar := newProgress(g.stderr, policy, len(g.requests))
	out, err := load.Play(ctx, load.Options{
		URL: g.url, Model: g.model, Speed: g.speed, Scale: g.scale(), Simulated: !g.real(), Requests: g.requests, Cold: cold,
		Answered: func(n int) { bar.step(n); g.page.Progress(n) },
	})
	bar.finish()
	if err != nil {
		return report.Row{}, err
	}
	samples := make([]report.Sample, len(out))
	var failure error
	var late time.Duration
	for i := range out {
		samples[i] = out[i].Sample
		late += out[i].Late / time.Duration(len(out))
		if failure == nil {
			failure = out[i].Err
		}
	}
	if failure != nil {
		fmt.Fprintf(g.stderr, "%s: first failure: %s\n", policy, oneLine(failure.Error()))
	}
	row := report.Summarise(samples)
	if ms(late) > maxLate*row.TTFT.Mean {
		fmt.Fprintf(g.stderr, "%s: this machine is too busy: requests were sent %.0f ms late on average, which is in their TTFT; try a lower -speed\n", policy, ms(late))
	}
	row.Policy, row.Workers, row.Load = policy, s.up(), g.load()
	g.own = g.page.Own()
	own := g.own.Sum().Seconds() * 1e3 * g.scale()
	row.Overhead = &own
	g.page.Finish("", result(&row))
	return row, nil
}

// bundledCapacity is the rate in requests a second of trace time that eight of
// these engines sustain on this traffic under the in-flight conductor, the
// measure of load in comparisons of routing policies.
const bundledCapacity = 7.2

// load is the offered rate as a share of that, 0 where the capacity is not known.
func (g *gateway) load() float64 {
	if g.real() || g.trace != "" {
		return 0
	}
	return float64(len(g.requests)) / (slice.To - slice.From).Seconds() / bundledCapacity
}

// tell prints the table and writes the file.
func (g *gateway) tell(rows []report.Row) error {
	if len(rows) == 0 {
		return nil
	}
	if g.json != "-" {
		if err := report.Table(g.stdout, rows); err != nil {
			return err
		}
		fmt.Fprintf(g.stdout, "The gateway's own time a request with %s: %.2f ms of wall clock, %.2f ms of it before the engine was asked, the rest relaying chunks.\n",
			g.policy, ms(g.own.Sum()), ms(g.own.Control))
		if g.scale() != 1 {
			fmt.Fprintf(g.stdout, "Times in the table are trace time, wall clock x %g.\n", g.scale())
		}
	}
	switch g.json {
	case "":
		return nil
	case "-":
		return report.JSON(g.stdout, rows)
	}
	f, err := os.Create(g.json)
	if err != nil {
		return fmt.Errorf("-json: %w", err)
	}
	if err := errors.Join(report.JSON(f, rows), f.Close()); err != nil {
		return fmt.Errorf("-json: %w", err)
	}
	return nil
}

// unanswered is the fault of runs in which requests failed.
func unanswered(rows []report.Row) error {
	n := 0
	for i := range rows {
		n += rows[i].Errors
	}
	if n > 0 {
		return fmt.Errorf("%d requests were not answered", n)
	}
	return nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// result is a row as the page takes it: seconds for milliseconds.
func result(r *report.Row) *page.Result {
	return &page.Result{
		Policy: r.Policy, Requests: r.Requests, Errors: r.Errors,
		TTFTMean: r.TTFT.Mean / 1e3, TTFTP50: r.TTFT.P50 / 1e3, TTFTP95: r.TTFT.P95 / 1e3, TTFTP99: r.TTFT.P99 / 1e3,
		ITLP95: r.ITL.P95 / 1e3, Reuse: r.Reuse, Goodput: r.Goodput, Own: *r.Overhead / 1e3,
	}
}
