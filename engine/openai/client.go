package openai

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// ClientOptions tunes a [Client]. The zero value, and nil, are ready for use.
type ClientOptions struct {
	// Transport sends the requests. nil means a transport of the client's own:
	// no proxy, no compression, idle connections dropped after 4 s.
	Transport http.RoundTripper
	// Authorization is the value of that header upstream, such as "Bearer KEY".
	// Empty means the one in the request's Header, if any.
	Authorization string
	// FirstByteTimeout is how long the engine may take to its first event or
	// body byte, queueing and prefill included. 0 means no limit.
	FirstByteTimeout time.Duration
	// IdleTimeout is how long a stream may pause after its first byte. 0 means
	// no limit.
	IdleTimeout time.Duration
	// MaxEvent bounds one event of a stream, in bytes. 0 means 4 MiB.
	MaxEvent int
	// MaxBody bounds an answer that does not stream, in bytes. 0 means 64 MiB.
	MaxBody int
	// MaxIdleConns is the number of idle connections kept. 0 means 256.
	MaxIdleConns int
	// NoUsage leaves stream_options alone: for servers that refuse it. Usage
	// is then known only when the client asked for it.
	NoUsage bool
	// ReturnTokenIDs adds return_token_ids (vLLM), so that chunks are counted
	// exactly and carry ids. The relayed answer then shows them too, the
	// prompt's ids included.
	ReturnTokenIDs bool
}

func (o *ClientOptions) withDefaults() ClientOptions {
	var c ClientOptions
	if o != nil {
		c = *o
	}
	c.MaxEvent = cmp.Or(c.MaxEvent, 4<<20)
	c.MaxBody = cmp.Or(c.MaxBody, 64<<20)
	c.MaxIdleConns = cmp.Or(c.MaxIdleConns, 256)
	return c
}

func (o *ClientOptions) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"FirstByteTimeout", int64(o.FirstByteTimeout)}, {"IdleTimeout", int64(o.IdleTimeout)},
		{"MaxEvent", int64(o.MaxEvent)}, {"MaxBody", int64(o.MaxBody)}, {"MaxIdleConns", int64(o.MaxIdleConns)},
	} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("openai: ClientOptions.%s is %d, must not be negative", f.name, f.v))
		}
	}
	return errors.Join(errs...)
}

// A Client is an engine behind an OpenAI-compatible server. It is safe for
// concurrent use.
type Client struct {
	opts  ClientOptions
	base  string
	urls  [engine.APIChat + 1]*url.URL
	rt    http.RoundTripper
	own   *http.Transport // to close, nil when the caller's
	state sync.Pool       // *generation
}

var (
	_ engine.Engine        = (*Client)(nil)
	_ engine.ModelLister   = (*Client)(nil)
	_ engine.HealthChecker = (*Client)(nil)
)

// NewClient makes a client for the server at baseURL, such as
// "http://10.0.0.7:8000"; a "/v1" at its end is allowed. Nothing is sent yet.
func NewClient(baseURL string, opts *ClientOptions) (*Client, error) {
	o := opts.withDefaults()
	base, uerr := parseBase(baseURL)
	if err := errors.Join(uerr, o.validate()); err != nil {
		return nil, err
	}
	c := &Client{opts: o, base: base, rt: o.Transport}
	for api, path := range apiPaths {
		if path != "" {
			u, err := url.Parse(base + path)
			if err != nil {
				return nil, fmt.Errorf("openai: base URL: %w", err)
			}
			c.urls[api] = u
		}
	}
	if c.rt == nil {
		c.own = newTransport(o.MaxIdleConns)
		c.rt = c.own
	}
	c.state.New = func() any { return new(generation) }
	return c, nil
}

var apiPaths = [...]string{engine.APICompletions: "/v1/completions", engine.APIChat: "/v1/chat/completions"}

func parseBase(s string) (string, error) {
	// Before parsing: of "10.0.0.7:8000" the parser complains about a colon, and
	// "gpu7:8000" it takes for a scheme.
	scheme, _, ok := strings.Cut(s, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", fmt.Errorf("openai: base URL %q must begin with http:// or https://", s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return "", fmt.Errorf("openai: base URL: %w", err)
	}
	switch {
	case u.Host == "":
		return "", fmt.Errorf("openai: base URL %q has no host", s)
	case u.User != nil:
		return "", errors.New("openai: base URL must not hold a user or password; set Authorization")
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("openai: base URL %q must not have a query or fragment", s)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1"), "/")
	u.RawPath = ""
	return u.String(), nil
}

// newTransport makes the transport described in the package comment.
func newTransport(idle int) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:               nil, // never from the environment
		DialContext:         dialer.DialContext,
		MaxIdleConns:        idle,
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     4 * time.Second,
		DisableCompression:  true,
		TLSHandshakeTimeout: 5 * time.Second,
	}
}

// BaseURL is the server's address without a trailing "/v1".
func (c *Client) BaseURL() string { return c.base }

// Close drops idle connections of the client's own transport. Running
// generations go on.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// Call sends one request outside generation and returns the body of a 2xx
// answer, which belongs to the caller. in is JSON, nil for no body. Another
// status is an [*engine.Error]. path begins with a slash and is relative to
// the base URL: adapters use it for what their engine has beside the OpenAI
// API.
func (c *Client) Call(ctx context.Context, method, path string, in []byte) ([]byte, error) {
	var body io.Reader
	if in != nil {
		body = bytes.NewReader(in)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("openai: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.opts.Authorization != "" {
		req.Header.Set("Authorization", c.opts.Authorization)
	}
	resp, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, callError(ctx, engine.ErrUnreachable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, readFailure(resp)
	}
	// One byte more shows that there is more; MaxInt has no more.
	limit := int64(c.opts.MaxBody)
	out, err := io.ReadAll(io.LimitReader(resp.Body, max(limit, limit+1)))
	if err != nil {
		return nil, callError(ctx, engine.ErrCut, err)
	}
	if len(out) > c.opts.MaxBody {
		return nil, fmt.Errorf("%w: answer to %s exceeds MaxBody of %d bytes", engine.ErrProtocol, path, c.opts.MaxBody)
	}
	return out, nil
}

// callError wraps a failure of the connection; the caller's own cancellation
// or deadline comes back as such.
func callError(ctx context.Context, kind, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("openai: %w", context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Models lists what the server serves. An adapter's context length is that of
// its parent. Paths ("root") are not told.
func (c *Client) Models(ctx context.Context) ([]engine.Model, error) {
	out, err := c.Call(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	data, _, err := jsonedit.Get(out, "data")
	if err != nil {
		return nil, fmt.Errorf("%w: model list: %w", engine.ErrProtocol, err)
	}
	var models []engine.Model
	e := jsonedit.Array(data)
	for e.Next() {
		var m engine.Model
		f := jsonedit.Object(e.Value)
		for f.Next() {
			switch string(f.Key) {
			case "id":
				m.ID, _ = jsonedit.Text(f.Value)
			case "parent":
				m.Parent, _ = jsonedit.Text(f.Value)
			case "max_model_len":
				setInt(&m.MaxLen, f.Value)
			}
		}
		if err := f.Err(); err != nil {
			return nil, fmt.Errorf("%w: model list: %w", engine.ErrProtocol, err)
		}
		if m.ID != "" {
			models = append(models, m)
		}
	}
	if err := e.Err(); err != nil {
		return nil, fmt.Errorf("%w: model list: %w", engine.ErrProtocol, err)
	}
	for i := range models {
		for _, p := range models {
			if models[i].MaxLen == 0 && p.ID == models[i].Parent {
				models[i].MaxLen = p.MaxLen
			}
		}
	}
	return models, nil
}

// Health asks the server's /health. A nil error does not mean that it would
// take a request: a draining or paused vLLM still answers 200.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.Call(ctx, http.MethodGet, "/health", nil)
	return err
}

// readFailure makes an error of an answer that is not 2xx.
func readFailure(resp *http.Response) *engine.Error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	e := &engine.Error{Body: body, RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	if v := bytes.TrimSpace(body); len(v) > 0 && v[0] == '{' {
		fillError(e, v)
	}
	e.Status = resp.StatusCode
	return e
}

// retryAfter reads the header's two forms: seconds, and a date.
func retryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(min(max(s, 0), 24*3600)) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return min(max(t.Sub(now), 0), 24*time.Hour)
	}
	return 0
}
