package openai

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// prepare returns the body to send for req: req.Body itself when nothing has to
// change, else an edited copy built in scratch. scratch comes back for reuse.
func (c *Client) prepare(scratch []byte, req *engine.Request) (body, buf []byte, err error) {
	usage := req.Stream && !req.IncludeUsage && !c.opts.NoUsage
	ids := c.opts.ReturnTokenIDs
	if !usage && !ids {
		return req.Body, scratch, nil
	}
	var options []byte // the client's stream_options, the last of them
	var drop []string
	members := 0
	f := jsonedit.Object(req.Body)
	for f.Next() {
		members++
		switch {
		case usage && f.Is("stream_options"):
			options = f.Value
			drop = append(drop, "stream_options")
			members--
		case ids && f.Is("return_token_ids"):
			drop = append(drop, "return_token_ids")
			members--
		}
	}
	if err := f.Err(); err != nil {
		return nil, scratch, err
	}
	rest := req.Body
	if drop != nil {
		if rest, err = jsonedit.Delete(nil, rest, drop...); err != nil {
			return nil, scratch, err
		}
	}
	// Our members go in front: the rest is copied as it is.
	out := append(scratch[:0], '{')
	if ids {
		out = append(out, `"return_token_ids":true,`...)
	}
	if usage {
		out = append(out, `"stream_options":`...)
		if jsonedit.KindOf(options) == jsonedit.ObjectKind {
			// Continuous usage is void without include_usage and must stay so.
			options, err = jsonedit.Delete(nil, options, "continuous_usage_stats")
			if err == nil {
				out, err = jsonedit.Set(out, options, "include_usage", []byte("true"))
			}
			if err != nil {
				return nil, scratch, err
			}
		} else {
			out = append(out, `{"include_usage":true}`...)
		}
		out = append(out, ',')
	}
	if members == 0 {
		out = out[:len(out)-1] // no comma before the brace
	}
	out = append(out, rest[bytes.IndexByte(rest, '{')+1:]...)
	return out, out, nil
}

// sendHeader builds the upstream header.
func (c *Client) sendHeader(req *engine.Request) http.Header {
	h := make(http.Header, len(req.Header)+5)
	for k, v := range req.Header {
		if !private(k) && !slices.Contains(setByUs, k) {
			h[k] = v
		}
	}
	h["Content-Type"] = jsonType
	// Not sent: it lets the transport send the request again when a kept
	// connection turns out to be closed, which a generation may be.
	h["X-Idempotency-Key"] = nil
	if req.Stream {
		h["Accept"] = eventType
	} else {
		h["Accept"] = jsonType
	}
	if req.ID != "" {
		h["X-Request-Id"] = []string{req.ID}
	}
	if req.Rank >= 0 {
		h["X-Data-Parallel-Rank"] = []string{strconv.Itoa(req.Rank)}
	}
	if c.opts.Authorization != "" {
		h["Authorization"] = []string{c.opts.Authorization}
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = userAgent
	}
	return h
}

// Constant header values; nothing may write to them.
var (
	jsonType  = []string{"application/json"}
	eventType = []string{"text/event-stream"}
	userAgent = []string{"stator"}
	setByUs   = []string{"Content-Type", "Accept", "X-Request-Id"}
)

// private reports whether a header of a client must not reach an engine: it
// belongs to the connection, or it steers the engine or its sidecars.
func private(canonical string) bool {
	switch canonical {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Http2-Settings", "Host", "Content-Length", "Content-Encoding", "Expect",
		"Accept-Encoding", "Cookie":
		return true
	}
	for _, p := range privatePrefixes {
		if strings.HasPrefix(canonical, p) {
			return true
		}
	}
	return false
}

// privatePrefixes begin the headers by which engines and their sidecars are
// steered: vLLM's priority and rank, SGLang's routed ranks, llm-d's and the
// gateway extension's endpoint choice.
var privatePrefixes = []string{
	"X-Vllm-", "X-Data-Parallel-", "X-Prefiller-", "X-Encoder-", "X-Kv-", "X-Sglang-", "X-Dp-", "X-Disagg-",
	"X-Routed-", "X-Gateway-Destination-", "X-Remote-", "X-Bootstrap-",
}

// clean copies the headers of a client's request that may go upstream, without
// those its Connection header names.
func clean(in http.Header, extra []string, authorization bool) http.Header {
	out := make(http.Header, len(in))
	for k, v := range in {
		if private(k) || slices.Contains(extra, k) || (k == "Authorization" && !authorization) {
			continue
		}
		out[k] = v
	}
	for _, line := range in["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			delete(out, textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)))
		}
	}
	return out
}

// Bounds of what a client's header may add to a request upstream. An engine
// closes the connection on a header that it finds too large (uvicorn
// by h11 takes 64 KiB, vLLM 256 lines), which looks as if the engine had failed: one such
// request, tried again, would blame every worker.
const (
	maxHeaderLines = 128
	maxHeaderBytes = 32 << 10
)

// tooMuch reports whether a header is over the bounds.
func tooMuch(h http.Header) bool {
	lines, size := 0, 0
	for k, vs := range h {
		lines += len(vs)
		for _, v := range vs {
			size += len(k) + len(v) + len(": \r\n")
		}
	}
	return lines > maxHeaderLines || size > maxHeaderBytes
}

// sendBody hands a request's bytes to the transport, which may go on reading
// them for a while after the exchange is over. Once detached it gives nothing
// any more, so the bytes may be reused.
type sendBody struct {
	mu   sync.Mutex
	data []byte
	gone bool
}

var errDetached = errors.New("openai: request is over")

// Read copies the next bytes.
func (b *sendBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return 0, errDetached
	}
	if len(b.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// Close does nothing: detach ends the body.
func (b *sendBody) Close() error { return nil }

// detach makes every later Read fail without touching the bytes.
func (b *sendBody) detach() {
	b.mu.Lock()
	b.data, b.gone = nil, true
	b.mu.Unlock()
}
