package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine/sim"
)

// engines are simulated vLLMs with real sockets on loopback.
type engines struct{ servers []*sim.Server }

// engineConfig is a Llama-3 70B on four H100 with three million tokens of prefix
// cache in host memory, in blocks of 16 tokens, with vLLM's habits.
func engineConfig() sim.Config { return sim.H100TP4("dram").WithBlockTokens(16).VLLM() }

// cold is the time that an idle engine needs for a prompt of n tokens.
func cold(n int) time.Duration {
	c := engineConfig()
	return time.Duration(c.Timing.Prefill(n, 0) * float64(time.Second))
}

func startEngines(n int, speed float64) (*engines, error) {
	e := &engines{}
	for range n {
		s, err := sim.NewServer(&sim.Options{Config: engineConfig(), Speed: speed})
		if err != nil {
			e.close()
			return nil, err
		}
		e.servers = append(e.servers, s)
	}
	return e, nil
}

// source tells where they are. The event endpoints are left to the engines'
// own word.
func (e *engines) source() (discovery.Source, error) {
	var list []discovery.Worker
	for i, s := range e.servers {
		list = append(list, discovery.Worker{
			Name: fmt.Sprintf("sim-%d", i+1), Engine: "vllm", Endpoints: discovery.Endpoints{HTTP: s.URL()},
		})
	}
	return discovery.Static(list...)
}

func (e *engines) close() {
	var wg sync.WaitGroup
	for _, s := range e.servers {
		wg.Go(func() { _ = s.Close() })
	}
	wg.Wait()
}

// emptyCaches makes every engine forget its prefix cache. An engine announces
// that with its next request only, hence a request of one token to each.
func (g *gateway) emptyCaches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	list, err := g.listed(ctx)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	for _, w := range list {
		wg.Go(func() {
			if err := emptyCache(ctx, w.Endpoints.HTTP, g.model); err != nil {
				fmt.Fprintf(g.stderr, "cache of %s not emptied, so its runs are not alike: %s\n", w.Name, oneLine(err.Error()))
			}
		})
	}
	wg.Wait()
}
