package vllm

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// A Probe is what an engine said about itself.
type Probe struct {
	Version string // "" if it does not say
	Models  []engine.Model
	MaxLen  int // context length of the first model, 0 = not reported

	Ranks     int // data-parallel ranks, as far as metrics and events tell; at least 1
	BlockSize int // tokens per cache block, 0 = not reported
	KVBlocks  int // usable cache blocks of a rank, 0 = not reported

	Events   []EventSource
	Render   bool // the render endpoints answer
	Tokenize bool // the tokenize endpoint answers

	// Missing says in words what the engine was not started with, and what the
	// lack of it costs.
	Missing []string
}

// Probe asks the engine what it is and what it allows. An engine that does not
// list its models is an error; all else that fails is told in Missing. The
// answer about rendering is remembered for Tokenize.
func (w *Worker) Probe(ctx context.Context) (*Probe, error) {
	models, err := w.Models(ctx)
	if err != nil {
		return nil, err
	}
	p := &Probe{Models: models, Ranks: 1}
	miss := func(s string) { p.Missing = append(p.Missing, s) }
	model := ""
	if len(models) > 0 {
		model, p.MaxLen = models[0].ID, models[0].MaxLen
	} else {
		miss("the engine lists no model")
	}
	p.Version, _ = w.Version(ctx)

	load, err := w.Load(ctx)
	switch {
	case err == nil:
		p.Ranks = len(load)
		p.BlockSize, p.KVBlocks = load[0].BlockSize, load[0].KVBlocks
		if !load[0].HasQueue || !load[0].HasKV {
			miss("queue or cache usage in /metrics: load is not known (was it started with --disable-log-stats?)")
		}
	default:
		miss("/metrics: load is not known (" + err.Error() + ")")
	}

	p.Events, err = w.EventSources(ctx)
	switch {
	case errors.Is(err, ErrNoEventSources):
		miss("/kv_event_sources (an older release): name the event endpoints by hand")
	case err != nil:
		miss("event sources (" + err.Error() + ")")
	case len(p.Events) == 0:
		miss(`--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}': ` +
			"what the engine's cache holds is not known")
	default:
		p.Ranks = max(p.Ranks, len(p.Events))
		for _, e := range p.Events {
			if e.Replay == "" {
				miss(`"replay_endpoint" in --kv-events-config: lost events cost the whole picture of a rank`)
				break
			}
		}
		for _, e := range p.Events {
			if loopback(e.Endpoint) && !loopback("tcp://"+w.host+":1") {
				miss(`"tcp://*:PORT" as "endpoint" in --kv-events-config: ` + e.Endpoint + " cannot be reached from here")
				break
			}
		}
	}

	body := append([]byte(`{"model":`), jsonedit.AppendQuoted(nil, model)...)
	if !w.opts.NoRender {
		p.Render = w.ask(ctx, "/v1/completions/render", append(body[:len(body):len(body)], `,"prompt":[1],"max_tokens":1}`...))
		if p.Render {
			w.render.Store(allowed)
		} else if ctx.Err() == nil {
			w.render.Store(refused)
			miss("--enable-scale-out: prompts are tokenised by /tokenize, which knows fewer fields than a request has")
		}
	}
	p.Tokenize = w.ask(ctx, "/tokenize", append(body[:len(body):len(body)], `,"prompt":"a"}`...))
	if !p.Tokenize && !p.Render {
		miss("/tokenize: token ids of prompts are not known, requests are routed without them")
	}
	return p, ctx.Err()
}

// ask says whether an endpoint exists and is allowed; refusing the request
// itself is a sign of life.
func (w *Worker) ask(ctx context.Context, path string, body []byte) bool {
	_, err := w.client.Call(ctx, http.MethodPost, path, body)
	if err == nil {
		return true
	}
	switch status(err) {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// loopback says whether an endpoint can be reached from its own host only.
func loopback(endpoint string) bool {
	rest := strings.TrimPrefix(endpoint, "tcp://")
	for _, p := range []string{"127.", "localhost:", "[::1]:", "::1:"} {
		if strings.HasPrefix(rest, p) {
			return true
		}
	}
	return false
}
