package report

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func samples() []Sample {
	ms := time.Millisecond
	return []Sample{
		{TTFT: 1000 * ms, ITL: 20 * ms, HasITL: true, Prompt: 100, Cached: 50},
		{TTFT: 3000 * ms, ITL: 20 * ms, HasITL: true, Prompt: 100, Cold: 1000 * ms}, // just good
		{TTFT: 3001 * ms, Prompt: 100, Cold: 1000 * ms},                             // late
		{TTFT: 1 * ms, ITL: 51 * ms, HasITL: true, Prompt: 100},                     // slow
		{Failed: true, Prompt: 100, Cached: 100},
	}
}

func TestSummarise(t *testing.T) {
	r := Summarise(samples())
	require.Equal(t, 5, r.Requests)
	require.Equal(t, 1, r.Errors)
	require.InDelta(t, 1750.5, r.TTFT.Mean, 1e-9)
	require.Equal(t, 3000.0, r.TTFT.P50)
	require.Equal(t, 3001.0, r.TTFT.P95)
	require.Equal(t, 51.0, r.ITL.P95)
	require.Equal(t, .125, r.Reuse, "a failed request counts neither way")
	require.Equal(t, .4, r.Goodput, "an error is not good")
	require.Equal(t, Row{}, Summarise(nil))
}

func TestOutput(t *testing.T) {
	r := Summarise(samples())
	r.Policy, r.Workers, r.Load = "expected", 8, .95
	var b bytes.Buffer
	require.NoError(t, Table(&b, []Row{r}))
	require.Equal(t, ""+
		"    policy  requests  errors  TTFT mean      p50      p95      p99  ITL p95   reuse  goodput\n"+
		"  expected         5       1    1.750 s  3.000 s  3.001 s  3.001 s  51.0 ms  12.5 %   40.0 %\n", b.String())

	o := 1.23456
	r.Overhead = &o
	b.Reset()
	require.NoError(t, JSON(&b, []Row{r}))
	var back struct{ Runs []map[string]any }
	require.NoError(t, json.Unmarshal(b.Bytes(), &back))
	require.Equal(t, map[string]any{
		"policy": "expected", "workers": 8.0, "load": .95, "requests": 5.0, "errors": 1.0,
		"ttft_ms": map[string]any{"mean": 1750.5, "p50": 3000.0, "p95": 3001.0, "p99": 3001.0},
		"itl_ms":  map[string]any{"p95": 51.0}, "reuse": .125, "goodput": .4, "gateway_ms": 1.235,
	}, back.Runs[0])
	b.Reset()
	require.NoError(t, JSON(&b, nil))
	require.JSONEq(t, `{"runs":[]}`, b.String())
}
