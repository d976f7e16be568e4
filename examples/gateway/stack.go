package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine/openai"
	"github.com/stator-go/stator/engine/pool"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/examples/gateway/internal/fleet"
	"github.com/stator-go/stator/examples/gateway/internal/page"
	"github.com/stator-go/stator/router"
)

// A stack is what serves requests with one policy: fleet and handler.
type stack struct {
	g       *gateway
	fleet   *fleet.Fleet
	handler *openai.Handler
	watch   *watch
	cancel  context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex
	names  map[string]error // workers asked for the first time, and how it went
	asked  chan struct{}    // closed and replaced at each
	missed map[string]bool  // complaints that were told
}

func (g *gateway) newStack(policy string) (*stack, error) {
	p, err := router.PolicyByName(policy)
	if err != nil {
		return nil, err
	}
	s := &stack{g: g, done: make(chan struct{}), names: map[string]error{}, asked: make(chan struct{}), missed: map[string]bool{}}
	w := &watch{page: g.page}
	opts := &fleet.Options{
		Router: router.Options{Policy: p},
		Pool:   pool.Options{Hooks: pool.Hooks{Picked: w.picked}},
		// Simulated engines live faster, so they are asked more often.
		LoadEvery: max(50*time.Millisecond, time.Duration(float64(250*time.Millisecond)/g.scale())),
		Hooks:     fleet.Hooks{Up: s.workerUp, Down: s.workerDown, Source: s.sourceFault},
	}
	if !g.real() {
		// The router lives in trace time too, and knows what a hit costs that comes
		// from the host tier; the other constants it learns.
		start := time.Now()
		opts.Router.Now = func() time.Time { return start.Add(time.Duration(float64(time.Since(start)) * g.speed)) }
		opts.Router.Timing = router.DefaultTiming()
		opts.Router.Timing.Load = engineConfig().Timing.Load
	}
	if s.fleet, err = fleet.New(opts); err != nil {
		return nil, err
	}
	s.watch, w.up = w, s.up
	w.next, w.predict = s.fleet.Engine(), s.fleet.Predict
	if s.handler, err = openai.NewHandler(w, &openai.ServerOptions{Hooks: openai.ServerHooks{Start: w.start, End: w.end}}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		_ = s.fleet.Run(ctx, g.source)
	}()
	return s, nil
}

// close ends the stack and waits for all of it.
func (s *stack) close() {
	s.cancel()
	<-s.done
}

// ready waits until every worker was asked once and at least one is up.
func (s *stack) ready(ctx context.Context) error {
	want, err := s.g.listed(ctx)
	if err != nil {
		return err
	}
	for {
		s.mu.Lock()
		ch, missing, firstErr, up := s.asked, 0, error(nil), 0
		for _, w := range want {
			switch err, ok := s.names[w.Name]; {
			case !ok:
				missing++
			case err == nil:
				up++
			case firstErr == nil:
				firstErr = fmt.Errorf("engine %s at %s: %w", w.Name, redacted(w.Endpoints.HTTP), err)
			}
		}
		s.mu.Unlock()
		switch {
		case len(want) == 0 && s.g.play():
			return errors.New("no worker is listed to play the trace on")
		case missing == 0 && firstErr != nil && (up == 0 || len(s.g.config.engines) > 0):
			return firstErr // engines named on the command line must all be there
		case missing == 0:
			return s.fleet.Synced(ctx)
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return errors.New("engines did not answer in time")
		}
	}
}

func (s *stack) answered(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = err
	close(s.asked)
	s.asked = make(chan struct{})
}

func (s *stack) workerUp(w discovery.Worker, p *vllm.Probe) {
	s.answered(w.Name, nil)
	if !s.g.real() {
		return
	}
	s.mu.Lock()
	first := !s.missed[w.Name]
	s.missed[w.Name] = true
	s.mu.Unlock()
	fmt.Fprintf(s.g.stderr, "engine %s is up: vLLM %s, %s\n", w.Name, oneLine(p.Version), oneLine(p.Models[0].ID))
	for _, m := range p.Missing {
		if first {
			fmt.Fprintf(s.g.stderr, "engine %s lacks %s\n", w.Name, m)
		}
	}
}

func (s *stack) workerDown(w discovery.Worker, err error) {
	s.answered(w.Name, err)
	if s.g.real() && s.g.current.Load() == s {
		if err == nil {
			err = errors.New("no longer listed")
		}
		fmt.Fprintf(s.g.stderr, "engine %s is down: %s\n", w.Name, oneLine(err.Error()))
	}
}

func (s *stack) sourceFault(_ time.Duration, err error) {
	fmt.Fprintf(s.g.stderr, "workers: %s\n", oneLine(err.Error()))
}

// up is the number of workers that can be picked.
func (s *stack) up() int {
	n := 0
	for _, w := range s.fleet.Workers() {
		if w.Up && !w.Draining {
			n++
		}
	}
	return n
}

// routes is the front door: the page, and the API of the stack in service.
func (g *gateway) routes() http.Handler {
	mux := http.NewServeMux()
	g.page.Register(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s := g.current.Load()
		if s == nil {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"message":"the gateway is not ready","type":"service_unavailable","param":null,"code":503}}`)
			return
		}
		s.handler.ServeHTTP(w, r)
	})
	return mux
}

func (g *gateway) modelOnPage() string {
	if s := g.current.Load(); s != nil {
		return s.firstModel(context.Background())
	}
	return ""
}

// firstModel is the first model served at present, "" without one.
func (s *stack) firstModel(ctx context.Context) string {
	if list, err := s.fleet.Engine().Models(ctx); err == nil && len(list) > 0 {
		return list[0].ID
	}
	return ""
}

// workersOnPage joins what the fleet and the router know of each worker.
func (g *gateway) workersOnPage() []page.Worker {
	s := g.current.Load()
	if s == nil {
		return nil
	}
	picks := map[string]int{}
	for _, w := range s.fleet.Router().Stats().Workers {
		picks[w.Name] += int(w.Picks)
	}
	var out []page.Worker
	for _, w := range s.fleet.Workers() {
		p := page.Worker{Name: w.Name, URL: redacted(w.URL), State: "up", Why: w.Warning, Requests: picks[w.Name], Events: "none"}
		switch {
		case !w.Up:
			p.State, p.Events = "down", ""
			if w.Err != nil {
				p.Why = w.Err.Error()
			}
		case w.Draining:
			p.State = "draining"
		}
		if w.HasEvents {
			p.Events = w.Events.String()
			held := 0
			for _, n := range w.Blocks {
				held += n
			}
			p.Blocks = &held
		}
		if l := w.Load; l.HasQueue {
			p.Running, p.Waiting = &l.Running, &l.Waiting
		}
		if l := w.Load; l.HasKV {
			p.KV = &l.KVUsage
		}
		if w.Queries > 0 {
			share := w.Hits / w.Queries
			p.Reuse = &share
		}
		out = append(out, p)
	}
	return out
}

// listed is the present list of workers of the source.
func (g *gateway) listed(ctx context.Context) ([]discovery.Worker, error) {
	for u, err := range g.source.Watch(ctx) {
		if err != nil {
			return nil, err
		}
		if u.Snapshot {
			return u.Put, nil
		}
		if u.Err != nil {
			return nil, u.Err
		}
	}
	return nil, ctx.Err()
}

// emptyCache resets one engine's prefix cache and makes it announce that.
func emptyCache(ctx context.Context, url, model string) error {
	c, err := openai.NewClient(url, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Call(ctx, http.MethodPost, "/reset_prefix_cache", nil); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"model": model, "prompt": []int{5}, "max_tokens": 1})
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, http.MethodPost, "/v1/completions", body)
	return err
}
