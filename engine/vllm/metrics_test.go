package vllm

import (
	"bytes"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

// recordedBody is the body of a recorded answer, and its status.
func recordedBody(t testing.TB, name string) ([]byte, int) {
	t.Helper()
	raw, err := os.ReadFile("testdata/vllm-0.32.0/http/" + name + ".resp")
	require.NoError(t, err)
	head, body, ok := bytes.Cut(raw, []byte("\r\n\r\n"))
	require.True(t, ok)
	require.NotContains(t, strings.ToLower(string(head)), "chunked")
	switch {
	case bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")):
		return body, http.StatusOK
	case bytes.HasPrefix(head, []byte("HTTP/1.1 403 ")):
		return body, http.StatusForbidden
	case bytes.HasPrefix(head, []byte("HTTP/1.1 404 ")):
		return body, http.StatusNotFound
	}
	require.True(t, bytes.HasPrefix(head, []byte("HTTP/1.1 400 ")))
	return body, http.StatusBadRequest
}

func TestRecordedMetrics(t *testing.T) {
	at := time.Unix(1795964150, 0)
	load := func(running, waiting int, usage, queries, hits float64, blocks int) engine.Load {
		return engine.Load{At: at, Running: running, Waiting: waiting, HasQueue: true, KVUsage: usage, HasKV: true,
			KVBlocks: blocks, BlockSize: 32, Queries: queries, Hits: hits, HasPrefix: true}
	}
	for name, want := range map[string][]engine.Load{
		"metrics_idle":       {load(0, 0, 0, 0, 0, 64)},
		"metrics_load":       {load(2, 0, 0.46875, 350666, 3360, 64)},
		"metrics_preempting": {load(2, 4, 0.875, 632649, 3392, 64)},
		"metrics_pd_decode":  {load(0, 0, 0, 634, 0, 64)},
		"metrics_dp2":        {load(0, 0, 0, 280, 0, 129), load(0, 0, 0, 344, 64, 129)},
	} {
		t.Run(name, func(t *testing.T) {
			page, _ := recordedBody(t, name)
			got, err := ParseLoad(nil, page, at)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestParseLoad(t *testing.T) {
	for _, tc := range []struct {
		name, page string
		want       []engine.Load
	}{
		{"old names, no rank", "vllm:num_requests_running{model_name=\"m\"} 3\nvllm:num_requests_waiting 1\nvllm:gpu_cache_usage_perc 0.5",
			[]engine.Load{{Running: 3, Waiting: 1, HasQueue: true, KVUsage: 0.5, HasKV: true}}},
		{"half a queue is none", "vllm:num_requests_running 3", []engine.Load{{Running: 3}}},
		{"unknown is not zero", "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running -1\nvllm:num_requests_waiting +Inf\nvllm:prefix_cache_hits_total 1",
			[]engine.Load{{Hits: 1}}},
		{"counts that are none", "vllm:num_requests_running 1e15\nvllm:num_requests_waiting 2\nvllm:prefix_cache_hits_total 1e15", []engine.Load{{Waiting: 2, Hits: 1e15}}},
		{"a share that is none", "vllm:kv_cache_usage_perc 55\nvllm:num_requests_waiting 2", []engine.Load{{Waiting: 2}}},
		{"usage above one", "vllm:kv_cache_usage_perc 1.0000001", []engine.Load{{KVUsage: 1, HasKV: true}}},
		{"a rank without news", "vllm:kv_cache_usage_perc{engine=\"1\"} 0.25", []engine.Load{{}, {KVUsage: 0.25, HasKV: true}}},
		{"config not set", `vllm:cache_config_info{block_size="None",num_gpu_blocks="None",engine="0"} 1`, []engine.Load{{}}},
		{"config", `vllm:cache_config_info{cache_dtype="a}\"b",block_size="16",num_gpu_blocks="1001",engine="0"} 1`, []engine.Load{{BlockSize: 16, KVBlocks: 1000}}},
		{"no blocks", `vllm:cache_config_info{num_gpu_blocks="0"} 1`, []engine.Load{{}}},
		{"rank that is none", "vllm:num_requests_running{engine=\"x\"} 1\nvllm:num_requests_running{engine=\"-1\"} 1\n" +
			"vllm:num_requests_running{engine=\"99999999\"} 1\nvllm:kv_cache_usage_perc 0", []engine.Load{{HasKV: true}}},
		{"waiting by reason is another series", "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 4\nvllm:kv_cache_usage_perc 0",
			[]engine.Load{{HasKV: true}}},
		{"a broken line beside", "vllm:num_requests_running{engine=\"0} 1\nvllm:kv_cache_usage_perc 0", []engine.Load{{HasKV: true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseLoad(nil, []byte(tc.page), time.Time{})
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
	for _, page := range []string{"", "<html>", "# HELP", "sglang:num_running_reqs 1", "vllm:num_requests_running{engine=\"0\"} NaN"} {
		got, err := ParseLoad(make([]engine.Load, 1), []byte(page), time.Time{})
		require.ErrorIs(t, err, ErrNoMetrics)
		require.Len(t, got, 1)
	}
}

func TestR11ParseLoadAllocs(t *testing.T) {
	page, _ := recordedBody(t, "metrics_dp2")
	var load []engine.Load
	n := testing.AllocsPerRun(20, func() {
		var err error
		if load, err = ParseLoad(load[:0], page, time.Time{}); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, n)
}

func BenchmarkParseLoad(b *testing.B) {
	page, _ := recordedBody(b, "metrics_load")
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	var load []engine.Load
	for b.Loop() {
		var err error
		if load, err = ParseLoad(load[:0], page, time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, name := range []string{"metrics_idle", "metrics_dp2"} {
		page, _ := recordedBody(f, name)
		f.Add(page[:8<<10])
	}
	f.Add([]byte("vllm:cache_config_info{engine=\"1023\",block_size=\"16\"} 1\nvllm:kv_cache_usage_perc 1e400"))
	f.Fuzz(func(t *testing.T, page []byte) {
		loads, err := ParseLoad(nil, page, time.Time{})
		if (err == nil) != (len(loads) > 0) || len(loads) > maxRanks {
			t.Fatal(len(loads), err)
		}
		for _, l := range loads {
			if l.KVUsage < 0 || l.KVUsage > 1 || l.Running < 0 || l.Waiting < 0 || l.KVBlocks < 0 || l.BlockSize < 0 ||
				math.IsNaN(l.Hits) || l.Hits < 0 {
				t.Fatalf("%+v", l)
			}
		}
	})
}
