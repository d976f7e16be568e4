package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/internal/report"
)

// slice is ten minutes of a public conversation trace, bundled with the gateway.
const slice = "../gateway/internal/slice/conversation-1500-2100.jsonl.gz"

func rows(t *testing.T, args ...string) map[string]report.Row {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(append([]string{"-trace", slice, "-json", "-"}, args...), &out, io.Discard))
	var got struct{ Runs []report.Row }
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	m := map[string]report.Row{}
	for _, r := range got.Runs {
		require.Zero(t, r.Errors)
		m[r.Policy] = r
	}
	return m
}

// The order of policies on a busy fleet is the point of the library: prefix
// knowledge beats load alone, and expected seconds beat block sums.
func TestOrder(t *testing.T) {
	m := rows(t, "-workers", "4", "-load", "0.9", "-policies", defaultPolicies)
	rr, lo, dyn, cond, exp := m["roundrobin"], m["leastloaded"], m["dynamo"], m["conductor"], m["expected"]
	require.Less(t, exp.TTFT.Mean, 0.6*rr.TTFT.Mean)
	require.Less(t, exp.TTFT.Mean, 0.6*lo.TTFT.Mean)
	require.Less(t, exp.TTFT.Mean, dyn.TTFT.Mean)
	require.Less(t, exp.TTFT.Mean, 1.02*cond.TTFT.Mean)
	require.Greater(t, exp.Reuse, rr.Reuse)
	require.Greater(t, exp.Goodput, dyn.Goodput)
}

func TestTiers(t *testing.T) {
	hbm := rows(t, "-rate", "4", "-tier", "hbm", "-policies", "expected")["expected"]
	dram := rows(t, "-rate", "4", "-tier", "dram", "-policies", "expected")["expected"]
	require.Greater(t, dram.Reuse, hbm.Reuse, "a larger cache is reused more")
	require.Less(t, dram.TTFT.Mean, hbm.TTFT.Mean)
	require.Zero(t, dram.Load, "no share of a capacity that was not measured")
}

// Timing that the router learns by itself must do nearly as well as the true
// constants.
func TestLearned(t *testing.T) {
	given := rows(t, "-load", "0.9", "-policies", "expected")["expected"]
	learned := rows(t, "-load", "0.9", "-policies", "expected", "-learn")["expected"]
	require.InEpsilon(t, given.TTFT.Mean, learned.TTFT.Mean, 0.06)
}

func TestSameSeedSameBytes(t *testing.T) {
	out := func(seed string) string {
		var b bytes.Buffer
		require.NoError(t, run([]string{"-trace", slice, "-seed", seed, "-cap", "7", "-policies", "expected,poweroftwo,llmd"}, &b, io.Discard))
		return b.String()
	}
	require.Equal(t, out("1"), out("1"))
	require.NotEqual(t, out("1"), out("2"))
}

func TestFaults(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	require.NoError(t, os.WriteFile(bad, []byte("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\nnope\n"), 0o644))
	one := filepath.Join(t.TempDir(), "one.jsonl")
	require.NoError(t, os.WriteFile(one, []byte("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n"), 0o644))
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"all at once": {[]string{"-workers", "0", "-load", "-1", "-tier", "l3", "-policies", "best"}, []string{"-trace", "-workers", "-load", "-tier", "-policies", "conductor"}},
		"bad option":  {[]string{"-trace", slice, "-policies", "dynamo:x=1"}, []string{"x"}},
		"absent":      {[]string{"-trace", "absent.jsonl"}, []string{"absent.jsonl"}},
		"bad line":    {[]string{"-trace", bad}, []string{"line 2"}},
		"one request": {[]string{"-trace", one}, []string{"no trace to replay"}},
		"too slow":    {[]string{"-trace", slice, "-rate", "1e-9"}, []string{"hours"}},
		"no such dir": {[]string{"-trace", "absent.jsonl", "-json", "absent/out.json"}, []string{"absent/out.json"}},
		"argument":    {[]string{"-trace", slice, "extra"}, []string{"extra"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(c.args, io.Discard, io.Discard)
			require.Error(t, err)
			for _, w := range c.want {
				require.ErrorContains(t, err, w)
			}
		})
	}
}
