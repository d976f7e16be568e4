// Routeronly puts Stator's router into a gateway that somebody already has, here
// one made of httputil.ReverseProxy:
//
//	go run ./examples/routeronly -listen :8080 http://10.0.0.7:8000 http://10.0.0.8:8000
//
// It reads no tokens and no KV events. Blocks are pieces of the request body,
// and the index is told what was sent where, so overlaps are a guess: right as
// long as a backend still holds what it computed. The gateway of
// examples/gateway knows instead of guessing, and tries a failed request again.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

const (
	blockTokens = 16      // tokens of a block
	tokenBytes  = 4       // bytes of a block's token, as in AppendBytes
	maxBody     = 8 << 20 // bytes of a request
	maxIndex    = 64 << 20
)

type gateway struct {
	hasher  *block.Hasher
	index   *kvindex.Index
	router  *router.Router
	proxies map[kvindex.Slot]*httputil.ReverseProxy
}

// newGateway makes a gateway in front of the backends.
func newGateway(backends []string) (*gateway, error) {
	hasher, err := block.NewHasher(block.Scope{}, blockTokens, nil)
	if err != nil {
		return nil, err
	}
	index, err := kvindex.New(&kvindex.Options{BlockTokens: blockTokens, MaxBytes: maxIndex})
	if err != nil {
		return nil, err
	}
	r, err := router.New(index, &router.Options{BlockTokens: blockTokens})
	if err != nil {
		return nil, err
	}
	g := &gateway{hasher, index, r, map[kvindex.Slot]*httputil.ReverseProxy{}}
	// No proxy from the environment, and idle connections dropped before vLLM
	// does it after 5 s.
	transport := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 4 * time.Second}
	var workers []router.Worker
	for _, b := range backends {
		u, err := url.Parse(b)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("%q is no URL of the form http://host:port", b)
		}
		slot := index.Attach(b, 0)
		workers = append(workers, router.Worker{Slot: slot, Name: b})
		g.proxies[slot] = &httputil.ReverseProxy{
			Transport:     transport,
			Rewrite:       func(pr *httputil.ProxyRequest) { pr.SetURL(u); pr.SetXForwarded() },
			FlushInterval: -1, // each piece of a stream at once
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				w.(*writer).err = err // the lease's Done wants to know
				w.WriteHeader(http.StatusBadGateway)
			},
		}
	}
	return g, r.SetWorkers(workers)
}

// ServeHTTP picks a backend, books the request on it and tells the router how
// the answer comes along.
func (g *gateway) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		http.Error(w, "request body: "+err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	chain := g.hasher.AppendBytes(nil, body, nil)
	lease, err := g.router.Pick(&router.Request{Chain: chain, Tokens: max(1, len(body)/tokenBytes)})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	err = http.ErrAbortHandler // what the proxy panics with when an answer breaks off
	defer func() {
		if req.Context().Err() != nil {
			err = context.Canceled // the client left: not the backend's fault
		}
		lease.Done(err)
	}()
	slot := lease.Decision().Slot
	out := &writer{ResponseWriter: w, lease: lease}
	g.proxies[slot].ServeHTTP(out, req)
	if err = out.err; err != nil {
		return
	}
	if err := g.index.Store(slot, kvindex.TierGPU, 0, chain); errors.Is(err, kvindex.ErrBudget) {
		g.index.Clear(slot) // forget and learn anew: what is old is likely gone
	}
}

// A writer tells the lease of the answer's first and further pieces.
type writer struct {
	http.ResponseWriter
	lease *router.Lease
	first bool
	err   error
}

func (w *writer) Write(p []byte) (int, error) {
	if !w.first {
		w.first = true
		w.lease.FirstToken()
	}
	w.lease.Tokens(1)
	return w.ResponseWriter.Write(p)
}

// Unwrap lets the proxy find Flush.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address to serve on")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: routeronly [-listen ADDRESS] http://backend:port ...")
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	g, err := newGateway(flag.Args())
	if err == nil {
		err = (&http.Server{Addr: *listen, Handler: g, ReadHeaderTimeout: 30 * time.Second}).ListenAndServe()
	}
	log.Fatal(err)
}
