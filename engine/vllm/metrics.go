package vllm

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/promtext"
)

// ErrNoMetrics says that a metrics page holds none of the series that an engine
// of this kind has: it is the page of something else, or metrics are off.
var ErrNoMetrics = errors.New("vllm: no engine metrics")

// maxRanks bounds the data-parallel ranks of one metrics page.
const maxRanks = 1024

// ParseLoad reads a /metrics page and appends one entry a data-parallel rank, in
// the order of ranks, to dst. at is the time of the scrape. What the page does
// not say, and what it says in a number that makes no sense, is marked as not
// reported. A page without any known series is ErrNoMetrics.
func ParseLoad(dst []engine.Load, page []byte, at time.Time) ([]engine.Load, error) {
	base := len(dst)
	seen := make([]seenSeries, 0, 8)
	var s promtext.Scanner
	s.Reset(page)
	for s.Next() {
		what := seriesOf(s.Name())
		if what == noSeries {
			continue
		}
		rank := rankOf(&s)
		if rank < 0 {
			continue
		}
		for len(dst) <= base+rank {
			dst = append(dst, engine.Load{At: at})
			seen = append(seen, 0)
		}
		l, bits := &dst[base+rank], &seen[rank]
		if what == cacheConfig {
			l.BlockSize = labelInt(&s, "block_size")
			// one block is the null block, which holds no tokens
			l.KVBlocks = max(labelInt(&s, "num_gpu_blocks")-1, 0)
			*bits |= 1 << cacheConfig
			continue
		}
		v, ok := s.Value()
		if !ok || !(v >= 0 && v <= what.most()) {
			continue
		}
		*bits |= 1 << what
		switch what {
		case running:
			l.Running = int(v)
		case waiting:
			l.Waiting = int(v)
		case usage:
			l.KVUsage = min(v, 1)
		case queries:
			l.Queries = v
		case hits:
			l.Hits = v
		}
	}
	any := seenSeries(0)
	for i, bits := range seen {
		l := &dst[base+i]
		any |= bits
		l.HasQueue = bits.has(running) && bits.has(waiting)
		l.HasKV = bits.has(usage)
		l.HasPrefix = bits.has(queries) && bits.has(hits)
	}
	if any == 0 {
		return dst[:base], fmt.Errorf("%w: %d bytes, %d malformed lines", ErrNoMetrics, len(page), s.Malformed())
	}
	return dst, nil
}

// A series is one of those that are read.
type series uint8

const (
	noSeries series = iota
	running
	waiting
	usage
	queries
	hits
	cacheConfig
)

// most is the greatest value that makes sense.
func (w series) most() float64 {
	switch w {
	case running, waiting:
		return 1 << 30
	case usage:
		return 1.01 // a share, with the rounding of an engine's sum
	}
	return 1 << 52
}

// seenSeries is a set of series.
type seenSeries uint8

func (s seenSeries) has(w series) bool { return s&(1<<w) != 0 }

func seriesOf(name []byte) series {
	switch string(name) {
	case "vllm:num_requests_running":
		return running
	case "vllm:num_requests_waiting":
		return waiting
	case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc": // the latter before 0.11
		return usage
	case "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries":
		return queries
	case "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits":
		return hits
	case "vllm:cache_config_info":
		return cacheConfig
	}
	return noSeries
}

// rankOf is the data-parallel rank of a sample, 0 when it names none, -1 when
// the name is no rank.
func rankOf(s *promtext.Scanner) int {
	v, ok := s.Label("engine")
	if !ok {
		return 0
	}
	n, ok := atoi(v)
	if !ok || n >= maxRanks {
		return -1
	}
	return n
}

// labelInt is the number in a label, 0 when it is absent or "None".
func labelInt(s *promtext.Scanner, name string) int {
	v, _ := s.Label(name)
	n, _ := atoi(v)
	return n
}

func atoi(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > 9 {
		return 0, false
	}
	n, err := strconv.Atoi(string(b))
	return max(n, 0), err == nil && n >= 0
}
