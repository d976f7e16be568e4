package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Limits that the parts must keep.
const (
	width        = 8    // requests at a time in the mixed part
	maxDifferent = 1.0  // in 300: equal logits may fall differently in a batch
	minExact     = 0.99 // share of lone requests whose overlap was predicted
)

type check struct {
	gateway string
	engines []string
	kill    int
	client  *http.Client
}

func (c *check) run(ctx context.Context, n int, seed uint64) error {
	m := newMaker(seed)
	reqs := make([]*request, n)
	for i := range reqs {
		reqs[i] = m.next(fmt.Sprintf("mix-%d", i))
	}
	refs, err := c.reference(ctx, reqs)
	if err != nil {
		return err
	}
	return errors.Join(c.mixed(ctx, reqs, refs), c.alone(ctx, m, n/2), c.killed(ctx, m))
}

// reference asks the first engine for every request alone, its cache emptied
// before.
func (c *check) reference(ctx context.Context, reqs []*request) ([]*answer, error) {
	t0 := time.Now()
	out := make([]*answer, len(reqs))
	for i, r := range reqs {
		if err := c.reset(ctx, c.engines[0]); err != nil {
			return nil, err
		}
		a, err := ask(ctx, c.client, c.engines[0], r)
		if err != nil {
			return nil, fmt.Errorf("reference %s: %w", r.name, err)
		}
		if a.cached != 0 {
			return nil, fmt.Errorf("reference %s: the engine was not cold, %d tokens cached", r.name, a.cached)
		}
		out[i] = a
	}
	fmt.Printf("reference: %d requests, each alone on a cold engine, %.1f s\n", len(reqs), time.Since(t0).Seconds())
	return out, nil
}

func (c *check) reset(ctx context.Context, base string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/reset_prefix_cache", nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("reset_prefix_cache: status %d", resp.StatusCode)
	}
	return nil
}

// mixed sends the requests through the gateway, several at a time.
func (c *check) mixed(ctx context.Context, reqs []*request, refs []*answer) error {
	t0 := time.Now()
	diffs := make([]string, len(reqs))
	each(len(reqs), width, func(i int) {
		a, err := ask(ctx, c.client, c.gateway, reqs[i])
		switch {
		case err != nil:
			diffs[i] = err.Error()
		default:
			diffs[i] = a.differs(refs[i])
			if diffs[i] == "" && a.id != reqs[i].name {
				diffs[i] = fmt.Sprintf("X-Request-Id %q came back as %q", reqs[i].name, a.id)
			}
		}
	})
	bad := 0
	for i, d := range diffs {
		if d != "" {
			bad++
			fmt.Printf("mixed: %s %s stream=%v differs: %s\n", reqs[i].name, reqs[i].path, reqs[i].stream, d)
		}
	}
	fmt.Printf("mixed: %d of %d equal to the engine's own answers, %.1f s\n", len(reqs)-bad, len(reqs), time.Since(t0).Seconds())
	if float64(bad) > maxDifferent*float64(len(reqs))/300 {
		return fmt.Errorf("mixed: %d of %d answers differ", bad, len(reqs))
	}
	return nil
}

// trip is what the gateway's state tells about one request.
type trip struct {
	ID        string
	Worker    string
	Predicted *int
	Cached    *int
}

type state struct {
	Requests []trip
	Workers  []struct {
		Name, URL, State string
		Blocks           *int
	}
}

func (c *check) state(ctx context.Context) (*state, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.gateway+"/debug/state", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s := &state{}
	return s, json.NewDecoder(resp.Body).Decode(s)
}

// alone sends fresh requests one by one and compares the overlap that the index
// predicted with the cached tokens that the engine reports.
func (c *check) alone(ctx context.Context, m *maker, n int) error {
	exact, hits, counted := 0, 0, 0
	for i := range n {
		r := m.next(fmt.Sprintf("alone-%d", i))
		a, err := ask(ctx, c.client, c.gateway, r)
		if err != nil {
			return fmt.Errorf("alone %s: %w", r.name, err)
		}
		time.Sleep(100 * time.Millisecond) // the events of the last blocks
		s, err := c.state(ctx)
		if err != nil {
			return err
		}
		for _, t := range s.Requests {
			if t.ID != r.name {
				continue
			}
			if t.Predicted == nil {
				return fmt.Errorf("alone %s: the gateway predicted nothing", r.name)
			}
			counted++
			if a.cached > 0 {
				hits++
			}
			if *t.Predicted == a.cached {
				exact++
			} else {
				fmt.Printf("alone: %s %s predicted %d, the engine cached %d of %d\n", r.name, r.path, *t.Predicted, a.cached, a.prompt)
			}
		}
	}
	fmt.Printf("alone: overlap exact in %d of %d requests, %d of them with a hit\n", exact, counted, hits)
	if counted < n/2 || hits < counted/4 || float64(exact) < minExact*float64(counted) {
		return fmt.Errorf("alone: %d of %d exact, %d hits", exact, counted, hits)
	}
	return nil
}

// killed kills the second engine while requests run.
func (c *check) killed(ctx context.Context, m *maker) error {
	if c.kill == 0 {
		fmt.Println("kill: left out, no process group given")
		return nil
	}
	const total = 80
	reqs := make([]*request, total)
	for i := range reqs {
		r := m.next(fmt.Sprintf("kill-%d", i))
		r.body["max_tokens"] = 60
		delete(r.body, "stop")
		reqs[i] = r
	}
	var once sync.Once
	var mu sync.Mutex
	lost, broken, ok := 0, 0, 0
	each(total, 16, func(i int) {
		if i == total/3 {
			once.Do(func() {
				fmt.Println("kill: engine", c.engines[1], "is killed:", syscall.Kill(-c.kill, syscall.SIGKILL))
			})
		}
		a, err := ask(ctx, c.client, c.gateway, reqs[i])
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			ok++
		case a != nil && a.started:
			broken++
		default:
			lost++
			fmt.Printf("kill: %s lost: %v\n", reqs[i].name, err)
		}
	})
	fmt.Printf("kill: %d answered, %d broken off after they had begun to stream, %d lost\n", ok, broken, lost)
	if lost > 0 || ok < total-16 {
		return fmt.Errorf("kill: %d requests lost that had not begun to stream", lost)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		s, err := c.state(ctx)
		if err != nil {
			return err
		}
		for _, w := range s.Workers {
			if w.URL == c.engines[1] && w.State == "down" && (w.Blocks == nil || *w.Blocks == 0) {
				fmt.Println("kill: the dead engine is down and its blocks are not counted")
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill: the dead engine still counts: %+v", s.Workers)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// each calls f for 0 to n-1, at most width at a time.
func each(n, width int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range width {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
