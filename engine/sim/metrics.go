package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/stator-go/stator/internal/jsonedit"
)

// latencies are the engine's histograms, in its own seconds: with Options.Speed
// a second of the engine is a fraction of one outside. Requests that were
// aborted are in none but the first two, as with the real one.
type latencies struct{ first, inter, whole histogram }

func newLatencies() latencies {
	return latencies{
		first: newHistogram(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
		inter: newHistogram(.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
		whole: newHistogram(.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
	}
}

// token records a token of a sequence that came in at arrived.
func (l *latencies) token(q *sequence, at float64, first, done bool) {
	if first {
		l.first.observe(at - q.arrived)
	} else {
		l.inter.observe(at - q.last)
	}
	q.last = at
	if done {
		l.whole.observe(at - q.arrived)
	}
}

// A histogram counts values by upper bound.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v) // a bound belongs to its bucket
	h.counts[i]++
	h.sum += v
}

func (h *histogram) clone() histogram {
	return histogram{h.bounds, slices.Clone(h.counts), h.sum}
}

// appendTo appends the series of a histogram, whose buckets are cumulative.
func (h *histogram) appendTo(b []byte, name, help, label string) []byte {
	b = fmt.Appendf(b, "# HELP vllm:%s %s\n# TYPE vllm:%s histogram\n", name, help, name)
	n := uint64(0)
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(h.bounds) {
			le = promFloat(h.bounds[i])
		}
		b = fmt.Appendf(b, "vllm:%s_bucket{engine=\"0\",le=\"%s\",model_name=%s} %s\n", name, le, label, promFloat(float64(n)))
	}
	return fmt.Appendf(b, "vllm:%s_count{engine=\"0\",model_name=%s} %s\nvllm:%s_sum{engine=\"0\",model_name=%s} %s\n",
		name, label, promFloat(float64(n)), name, label, promFloat(h.sum))
}

// metrics writes the series that adapters read, in the text form of Prometheus.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.advance()
	st, stopped, length := s.core.Stats(), s.stopped, s.length
	first, inter, whole := s.lat.first.clone(), s.lat.inter.clone(), s.lat.whole.clone()
	s.mu.Unlock()
	cfg := s.core.Config()
	label := string(jsonedit.AppendQuoted(nil, s.opts.Model))
	created := strconv.FormatFloat(float64(s.started.UnixMicro())/1e6, 'e', -1, 64)
	var b []byte
	gauge := func(name, help, more string, v float64) {
		b = fmt.Appendf(b, "# HELP vllm:%s %s\n# TYPE vllm:%s gauge\nvllm:%s{engine=\"0\",model_name=%s%s} %s\n", name, help, name, name, label, more, promFloat(v))
	}
	counter := func(name, help string, v uint64) {
		b = fmt.Appendf(b, "# HELP vllm:%s_total %s\n# TYPE vllm:%s_total counter\nvllm:%s_total{engine=\"0\",model_name=%s} %s\n", name, help, name, name, label, promFloat(float64(v)))
		b = fmt.Appendf(b, "# HELP vllm:%s_created %s\n# TYPE vllm:%s_created gauge\nvllm:%s_created{engine=\"0\",model_name=%s} %s\n", name, help, name, name, label, created)
	}
	gauge("num_requests_running", "Number of requests in model execution batches.", "", float64(st.Running))
	gauge("num_requests_waiting", "Number of requests waiting to be processed.", "", float64(st.Waiting))
	gauge("num_requests_waiting_by_reason", "Number of waiting requests by reason.", `,reason="capacity"`, float64(st.Waiting))
	gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "", st.KVUsage())
	counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", st.Queries)
	counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", st.Hits)
	counter("num_preemptions", "Cumulative number of preemption from the engine.", st.Preemptions)
	counter("prompt_tokens", "Number of prefill tokens processed.", st.PromptTokens)
	counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", st.Hits)
	counter("generation_tokens", "Number of generation tokens processed.", st.OutputTokens)
	b = append(b, "# HELP vllm:request_success_total Count of successfully processed requests.\n# TYPE vllm:request_success_total counter\n"...)
	for _, x := range []struct {
		reason string
		n      uint64
	}{{finishStop, stopped}, {finishLength, length}, {finishAbort, 0}, {"error", 0}, {"repetition", 0}} {
		// Aborts are not counted by the real one either.
		b = fmt.Appendf(b, "vllm:request_success_total{engine=\"0\",finished_reason=%q,model_name=%s} %s\n", x.reason, label, promFloat(float64(x.n)))
	}
	b = first.appendTo(b, "time_to_first_token_seconds", "Histogram of time to first token in seconds.", label)
	b = inter.appendTo(b, "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", label)
	b = whole.appendTo(b, "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", label)
	algo := "mix64"
	if cfg.Hash == HashSHA256CBOR {
		algo = "sha256_cbor"
	}
	b = fmt.Appendf(b, "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n"+
		"vllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"0\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%d\",prefix_caching_hash_algo=\"%s\",sliding_window=\"None\"} 1.0\n",
		cfg.BlockTokens, (cfg.RunBlocks+1)*cfg.BlockTokens, cfg.RunBlocks+1, algo)
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	_, _ = w.Write(b)
}

// promFloat writes a number as the Python client does, with a fraction.
func promFloat(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	for _, c := range s {
		if c == '.' || c == 'e' {
			return s
		}
	}
	return s + ".0"
}
