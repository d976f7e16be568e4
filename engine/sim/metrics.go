package sim

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/stator-go/stator/internal/jsonedit"
)

// metrics writes the series that adapters read, in the text form of Prometheus.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.advance()
	st, stopped, length := s.core.Stats(), s.stopped, s.length
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
