package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"slices"
	"time"
)

// BlockTokens is the number of tokens that one id of a trace stands for.
const BlockTokens = 512

// Limits of a trace. One beyond them is refused with the line's number, so that a
// small compressed file cannot take all memory.
const (
	MaxLine     = 8 << 20 // bytes of a line
	MaxTokens   = 8 << 20 // input or output of one request
	MaxRequests = 4 << 20
	MaxBlocks   = 16 << 20 // ids of all requests together
)

// A Request is one line of a trace.
type Request struct {
	At            time.Duration // from the trace's zero
	Input, Output int           // tokens; output at least 1
	Blocks        []uint32      // ceil(Input/BlockTokens) ids
}

// Full is the number of complete prompt blocks.
func (r *Request) Full() int { return min(len(r.Blocks), r.Input/BlockTokens) }

// A LineError tells which line of a trace is wrong, and why.
type LineError struct {
	Line int // from 1
	Err  error
}

// Error formats the error with its line number.
func (e *LineError) Error() string { return fmt.Sprintf("trace: line %d: %v", e.Line, e.Err) }

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

var (
	errOrder  = errors.New("timestamp is before the previous line's")
	errBlocks = errors.New("hash_ids does not hold one id per 512 tokens of input_length")
)

// Open reads a trace file; a name that ends in .gz, or content that starts with
// the gzip magic, is decompressed.
func Open(path string) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, fmt.Errorf("trace: %s is a directory", path)
	}
	return Read(f)
}

// Read reads a trace, decompressing it if it is gzip'd. Blank lines are passed
// over. The first bad line ends the reading with a [LineError].
func Read(r io.Reader) ([]Request, error) { return read(r, MaxRequests, MaxBlocks) }

func read(r io.Reader, maxRequests, maxBlocks int) ([]Request, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := br.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		defer z.Close()
		br = bufio.NewReaderSize(z, 1<<16)
	}
	sc := bufio.NewScanner(br)
	sc.Buffer(make([]byte, 0, 1<<16), MaxLine)
	var out []Request
	n, blocks := 0, 0
	for sc.Scan() {
		n++
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		q, err := Parse(line)
		blocks += len(q.Blocks)
		switch {
		case err != nil:
		case len(out) > 0 && q.At < out[len(out)-1].At:
			err = errOrder
		case len(out) == maxRequests || blocks > maxBlocks:
			err = fmt.Errorf("the trace has more than %d requests, or %d ids", maxRequests, maxBlocks)
		}
		if err != nil {
			return nil, &LineError{n, err}
		}
		out = append(out, q)
	}
	if err := sc.Err(); err != nil {
		return nil, &LineError{n + 1, err}
	}
	return out, nil
}

// Parse reads one line.
func Parse(line []byte) (Request, error) {
	var j struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		Blocks    []uint32 `json:"hash_ids"`
	}
	if err := json.Unmarshal(line, &j); err != nil {
		if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
			return Request{}, fmt.Errorf("%s is a %s, want numbers that fit", t.Field, t.Value)
		}
		return Request{}, err
	}
	switch {
	case j.Timestamp == nil:
		return Request{}, errors.New("timestamp is missing")
	case !(*j.Timestamp >= 0 && *j.Timestamp <= maxMillis):
		return Request{}, fmt.Errorf("timestamp %g is not between 0 and %g ms", *j.Timestamp, float64(maxMillis))
	case j.Input == nil:
		return Request{}, errors.New("input_length is missing")
	case j.Output == nil:
		return Request{}, errors.New("output_length is missing")
	case *j.Input < 1 || *j.Input > MaxTokens:
		return Request{}, fmt.Errorf("input_length is not between 1 and %d", MaxTokens)
	case *j.Output < 0 || *j.Output > MaxTokens:
		return Request{}, fmt.Errorf("output_length is not between 0 and %d", MaxTokens)
	case len(j.Blocks) != (*j.Input+BlockTokens-1)/BlockTokens:
		return Request{}, errBlocks
	}
	return Request{
		At:     time.Duration(*j.Timestamp * float64(time.Millisecond)),
		Input:  *j.Input,
		Output: max(1, *j.Output),
		Blocks: j.Blocks,
	}, nil
}

const maxMillis = 1e12 // some thirty years

// Spread draws requests that share a time stamp apart: each group is spread
// uniformly at random up to the next stamp, or over three seconds at the end,
// and stays in order. The same seed gives the same times.
func Spread(reqs []Request, seed int64) {
	// math/rand and not v2: its sequence for a seed is the one that published
	// figures on these traces were made with.
	rng := rand.New(rand.NewSource(seed))
	for i := 0; i < len(reqs); {
		j := i
		for j < len(reqs) && reqs[j].At == reqs[i].At {
			j++
		}
		if j-i > 1 {
			gap := 3 * time.Second
			if j < len(reqs) {
				gap = min(gap, reqs[j].At-reqs[i].At)
			}
			d := make([]float64, j-i)
			for k := range d {
				d[k] = rng.Float64() * float64(gap)
			}
			slices.Sort(d)
			for k := range d {
				reqs[i+k].At += time.Duration(d[k])
			}
		}
		i = j
	}
}

// Slice returns the requests with from <= At < to, their times counted from
// from. The result shares the block slices.
func Slice(reqs []Request, from, to time.Duration) []Request {
	var out []Request
	for _, q := range reqs {
		if q.At >= from && q.At < to {
			q.At -= from
			out = append(out, q)
		}
	}
	return out
}
