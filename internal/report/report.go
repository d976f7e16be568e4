package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// Limits of a good request, beside the cold prefill time of its prompt.
const (
	GoodTTFT = 2 * time.Second
	GoodITL  = 50 * time.Millisecond
)

// A Sample is the outcome of one request.
type Sample struct {
	Failed         bool
	TTFT           time.Duration
	ITL            time.Duration // 0 for a single token
	HasITL         bool
	Prompt, Cached int           // tokens
	Cold           time.Duration // prefill time of the whole prompt on an idle engine
}

// Good says whether the request met its targets.
func (s *Sample) Good() bool {
	return !s.Failed && s.TTFT <= GoodTTFT+s.Cold && s.ITL <= GoodITL
}

// A Row is one run.
type Row struct {
	Policy   string  `json:"policy"`
	Workers  int     `json:"workers"`
	Load     float64 `json:"load"`
	Requests int     `json:"requests"`
	Errors   int     `json:"errors"`
	TTFT     TTFT    `json:"ttft_ms"`
	ITL      ITL     `json:"itl_ms"`
	Reuse    float64 `json:"reuse"`
	Goodput  float64 `json:"goodput"`
	// Overhead is the gateway's own time a request, where one was in the way.
	Overhead *float64 `json:"gateway_ms,omitempty"`
}

// TTFT holds times to first token in milliseconds.
type TTFT struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
}

// ITL holds inter-token latencies in milliseconds.
type ITL struct {
	P95 float64 `json:"p95"`
}

// Summarise computes a row. Policy, Workers and Load are left to the caller.
func Summarise(samples []Sample) Row {
	r := Row{Requests: len(samples)}
	var ttft, itl []float64
	prompt, cached, good, sum := 0, 0, 0, 0.0
	for i := range samples {
		s := &samples[i]
		if s.Good() {
			good++
		}
		if s.Failed {
			r.Errors++
			continue
		}
		ms := float64(s.TTFT) / float64(time.Millisecond)
		ttft = append(ttft, ms)
		sum += ms
		if s.HasITL {
			itl = append(itl, float64(s.ITL)/float64(time.Millisecond))
		}
		prompt += s.Prompt
		cached += s.Cached
	}
	if len(samples) > 0 {
		r.Goodput = float64(good) / float64(len(samples))
	}
	if len(ttft) > 0 {
		r.TTFT.Mean = sum / float64(len(ttft))
	}
	slices.Sort(ttft)
	slices.Sort(itl)
	r.TTFT.P50, r.TTFT.P95, r.TTFT.P99 = quantile(ttft, .5), quantile(ttft, .95), quantile(ttft, .99)
	r.ITL.P95 = quantile(itl, .95)
	if prompt > 0 {
		r.Reuse = float64(cached) / float64(prompt)
	}
	return r
}

// quantile is the element at rank floor(p n) of sorted values, 0 for none.
func quantile(a []float64, p float64) float64 {
	if len(a) == 0 {
		return 0
	}
	return a[min(int(p*float64(len(a))), len(a)-1)]
}

// Table prints rows with times in seconds, inter-token latency in milliseconds.
func Table(w io.Writer, rows []Row) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	over := slices.ContainsFunc(rows, func(r Row) bool { return r.Overhead != nil })
	fmt.Fprint(tw, "policy\trequests\terrors\tTTFT mean\tp50\tp95\tp99\tITL p95\treuse\tgoodput\t")
	if over {
		fmt.Fprint(tw, "gateway\t")
	}
	fmt.Fprintln(tw)
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.3f s\t%.3f s\t%.3f s\t%.3f s\t%.1f ms\t%.1f %%\t%.1f %%\t",
			r.Policy, r.Requests, r.Errors, r.TTFT.Mean/1e3, r.TTFT.P50/1e3, r.TTFT.P95/1e3, r.TTFT.P99/1e3,
			r.ITL.P95, 100*r.Reuse, 100*r.Goodput)
		if over {
			if r.Overhead != nil {
				fmt.Fprintf(tw, "%.3f ms\t", *r.Overhead)
			} else {
				fmt.Fprint(tw, "\t")
			}
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// JSON writes the rows as one object with a field runs. The same rows give the
// same bytes; figures are rounded to microseconds and millionths.
func JSON(w io.Writer, rows []Row) error {
	out := slices.Clone(rows)
	if out == nil {
		out = []Row{}
	}
	for i := range out {
		r := &out[i]
		for _, f := range []*float64{&r.TTFT.Mean, &r.TTFT.P50, &r.TTFT.P95, &r.TTFT.P99, &r.ITL.P95} {
			*f = round(*f, 1e3)
		}
		r.Load, r.Reuse, r.Goodput = round(r.Load, 1e6), round(r.Reuse, 1e6), round(r.Goodput, 1e6)
		if r.Overhead != nil {
			v := round(*r.Overhead, 1e3)
			r.Overhead = &v
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Runs []Row `json:"runs"`
	}{out})
}

func round(v, unit float64) float64 { return math.Round(v*unit) / unit }
