package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

// WorkerOptions tune a Worker. The zero value, and nil, are ready for use.
type WorkerOptions struct {
	// Client tunes the HTTP side.
	Client *openai.ClientOptions
	// Tokens is the cache of prompts' token ids, which workers of the same
	// models may share; nil means one of the worker's own with default bounds.
	Tokens *TokenCache
	// NoRender never asks the render endpoints.
	NoRender bool
	// NoPrefixReuse asks the engine for each new prompt in full; see Tokenize.
	NoPrefixReuse bool
	// MinReuse is the size in bytes of known messages from which on asking for
	// the new ones alone is worth it. 0 means 16 KiB.
	MinReuse int
}

// A Worker is one vLLM behind one URL. It is safe for concurrent use.
type Worker struct {
	client *openai.Client
	host   string
	opts   WorkerOptions
	tokens *TokenCache
	render atomic.Int32 // unasked, allowed or refused
	stats  tokenCounters
}

// What is known of an endpoint.
const (
	unasked int32 = iota
	allowed
	refused
)

var (
	_ engine.Engine        = (*Worker)(nil)
	_ engine.Tokenizer     = (*Worker)(nil)
	_ engine.LoadSource    = (*Worker)(nil)
	_ engine.ModelLister   = (*Worker)(nil)
	_ engine.HealthChecker = (*Worker)(nil)
)

// NewWorker makes a worker for the engine at baseURL, such as
// "http://10.0.0.7:8000". Nothing is sent yet.
func NewWorker(baseURL string, opts *WorkerOptions) (*Worker, error) {
	var o WorkerOptions
	if opts != nil {
		o = *opts
	}
	var errs []error
	if o.MinReuse < 0 {
		errs = append(errs, fmt.Errorf("vllm: WorkerOptions.MinReuse is %d, must not be negative", o.MinReuse))
	}
	if o.MinReuse == 0 {
		o.MinReuse = 16 << 10
	}
	client, err := openai.NewClient(baseURL, o.Client)
	errs = append(errs, err)
	if o.Tokens == nil {
		o.Tokens, err = NewTokenCache(nil)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	u, err := url.Parse(client.BaseURL())
	if err != nil {
		return nil, fmt.Errorf("vllm: base URL: %w", err)
	}
	w := &Worker{client: client, host: u.Hostname(), opts: o, tokens: o.Tokens}
	if o.NoRender {
		w.render.Store(refused)
	}
	return w, nil
}

// BaseURL is the engine's address.
func (w *Worker) BaseURL() string { return w.client.BaseURL() }

// Close drops idle connections. Running generations go on.
func (w *Worker) Close() { w.client.Close() }

// Generate runs one request; see openai.Client.
func (w *Worker) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return w.client.Generate(ctx, req)
}

// Models lists the models and adapters that the engine serves.
func (w *Worker) Models(ctx context.Context) ([]engine.Model, error) { return w.client.Models(ctx) }

// Health asks /health. A nil error does not mean that the engine would take a
// request: while it drains or is paused, vLLM still answers 200.
func (w *Worker) Health(ctx context.Context) error { return w.client.Health(ctx) }

// Load scrapes /metrics: one entry a data-parallel rank.
func (w *Worker) Load(ctx context.Context) ([]engine.Load, error) {
	page, err := w.client.Call(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	return ParseLoad(nil, page, time.Now())
}

// Version asks for the engine's release.
func (w *Worker) Version(ctx context.Context) (string, error) {
	body, err := w.client.Call(ctx, http.MethodGet, "/version", nil)
	if err != nil {
		return "", err
	}
	var v struct{ Version string }
	if err := json.Unmarshal(body, &v); err != nil {
		return "", fmt.Errorf("%w: version: %w", engine.ErrProtocol, err)
	}
	return v.Version, nil
}
