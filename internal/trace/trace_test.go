package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const good = `{"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [1, 2]}
{"timestamp": 0, "input_length": 512, "output_length": 0, "hash_ids": [1]}

{"timestamp": 3000, "input_length": 1, "output_length": 3, "hash_ids": [9], "later": {"x": 1}}
`

func TestRead(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write([]byte(good))
	require.NoError(t, err)
	require.NoError(t, w.Close())

	for name, in := range map[string][]byte{"plain": []byte(good), "gzip": z.Bytes()} {
		t.Run(name, func(t *testing.T) {
			rs, err := Read(bytes.NewReader(in))
			require.NoError(t, err)
			require.Len(t, rs, 3)
			require.Equal(t, Request{Input: 513, Output: 7, Blocks: []uint32{1, 2}}, rs[0])
			require.Equal(t, 1, rs[0].Full())
			require.Equal(t, 1, rs[1].Output, "an output of 0 is one token")
			require.Equal(t, 3*time.Second, rs[2].At)
			require.Equal(t, 0, rs[2].Full())
		})
	}
}

func TestReadFaults(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		line int
		want string
	}{
		"not json":      {good + "nonsense\n", 5, "invalid character"},
		"truncated":     {`{"timestamp": 1, "input_`, 1, "unexpected end"},
		"no time":       {`{"input_length": 1, "output_length": 1, "hash_ids": [1]}`, 1, "timestamp is missing"},
		"negative":      {`{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, 1, "timestamp -1"},
		"wrong type":    {`{"timestamp": "1", "input_length": 1, "output_length": 1, "hash_ids": [1]}`, 1, "timestamp is a string"},
		"no output":     {`{"timestamp": 1, "input_length": 1, "hash_ids": [1]}`, 1, "output_length is missing"},
		"no input":      {`{"timestamp": 1, "output_length": 1, "hash_ids": []}`, 1, "input_length"},
		"huge input":    {`{"timestamp": 1, "input_length": 99999999, "output_length": 1, "hash_ids": []}`, 1, "input_length"},
		"huge output":   {`{"timestamp": 1, "input_length": 1, "output_length": 99999999, "hash_ids": [1]}`, 1, "output_length"},
		"few blocks":    {`{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]}`, 1, "hash_ids"},
		"wide id":       {`{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [4294967296]}`, 1, "hash_ids"},
		"out of order":  {`{"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": [1]}` + "\n" + `{"timestamp": 8, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, 2, "before the previous"},
		"line too long": {strings.Repeat(" ", MaxLine+1), 1, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.in))
			le := &LineError{}
			require.True(t, errors.As(err, &le), "%v", err)
			require.Equal(t, c.line, le.Line)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Read(strings.NewReader("\x1f\x8bno gzip"))
	require.Error(t, err)
	_, err = Open(t.TempDir())
	require.ErrorContains(t, err, "is a directory")
	_, err = Open("testdata/absent.jsonl")
	require.ErrorContains(t, err, "absent.jsonl")
}

// A small compressed file can stand for more requests than memory holds; it is
// refused at the limit.
func TestTooManyRequests(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	for range 1000 {
		_, err := w.Write([]byte(`{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,2]}` + "\n"))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	for _, c := range []struct{ requests, blocks, line int }{{100, MaxBlocks, 101}, {MaxRequests, 100, 51}, {999, MaxBlocks, 1000}} {
		_, err := read(bytes.NewReader(z.Bytes()), c.requests, c.blocks)
		le := &LineError{}
		require.ErrorAs(t, err, &le)
		require.Equal(t, c.line, le.Line)
		require.ErrorContains(t, err, "more than")
	}
	all, err := Read(&z)
	require.NoError(t, err)
	require.Len(t, all, 1000)
}

func TestSpread(t *testing.T) {
	mk := func() []Request {
		return []Request{{At: 0}, {At: 0}, {At: 0}, {At: 2 * time.Second}, {At: 5 * time.Second}, {At: 5 * time.Second}}
	}
	a, b, c := mk(), mk(), mk()
	Spread(a, 1)
	Spread(b, 1)
	Spread(c, 2)
	require.Equal(t, a, b, "the same seed gives the same times")
	require.NotEqual(t, a, c)
	for i := range a {
		require.LessOrEqual(t, mk()[i].At, a[i].At)
		if i > 0 {
			require.LessOrEqual(t, a[i-1].At, a[i].At, "order is kept")
		}
	}
	require.Less(t, a[2].At, 2*time.Second)
	require.Equal(t, 2*time.Second, a[3].At, "a lone stamp stays")
	require.Less(t, a[5].At, 8*time.Second)
}

func TestSlice(t *testing.T) {
	rs := []Request{{At: 1}, {At: 2}, {At: 3}, {At: 4}}
	require.Equal(t, []Request{{At: 0}, {At: 1}}, Slice(rs, 2, 4))
}

// FuzzParse checks that no line panics and that what is accepted keeps the
// promises that a replay relies on.
func FuzzParse(f *testing.F) {
	for _, l := range strings.Split(good, "\n") {
		f.Add([]byte(l))
	}
	f.Add([]byte(`{"timestamp":1e300,"input_length":1,"output_length":1,"hash_ids":[1]}`))
	f.Add([]byte(`{"timestamp":null,"hash_ids":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		q, err := Parse(line)
		if err != nil {
			return
		}
		if q.At < 0 || q.Input < 1 || q.Output < 1 || q.Full() > len(q.Blocks) || len(q.Blocks) != (q.Input+BlockTokens-1)/BlockTokens {
			t.Fatalf("accepted %q as %+v", line, q)
		}
	})
}
