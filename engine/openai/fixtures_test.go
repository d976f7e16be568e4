package openai_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
)

// Every recorded answer of a real vLLM says through the client what it says to
// the standard library.
func TestRecordedAnswers(t *testing.T) {
	fails := map[string]error{
		"completion_aborted_by_endpoint":        engine.ErrAborted,
		"completion_stream_aborted_by_endpoint": engine.ErrAborted,
		"chat_stream_aborted_by_endpoint":       engine.ErrAborted,
		"drain_new_completion":                  engine.ErrNotServed,
		"drain_new_completion_stream":           engine.ErrNotServed,
	}
	for _, f := range loadFixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			want := readTruth(t, f.answer)
			req := f.request()
			chunks, err := collect(t, newClient(t, replay(t, f.answer), nil), req)
			switch {
			case want.status != 200:
				var e *engine.Error
				require.True(t, errors.As(err, &e), "%v", err)
				require.Equal(t, want.status, e.Status)
				require.NotEmpty(t, e.Message)
				require.NotEmpty(t, e.Type)
				require.Equal(t, want.payloads[0], string(e.Body))
				require.Equal(t, want.status >= 500, engine.Retryable(err))
				require.Empty(t, chunks)
				return
			case fails[f.name] != nil:
				require.ErrorIs(t, err, fails[f.name])
				require.True(t, engine.Retryable(err))
				require.Equal(t, req.Stream && fails[f.name] == engine.ErrAborted, engine.Delivered(err))
				if fails[f.name] == engine.ErrNotServed {
					require.Empty(t, chunks)
				}
			default:
				require.NoError(t, err)
			}
			text, ids, finish := map[int]string{}, map[int][]uint32{}, map[int]string{}
			var usage *engine.Usage
			var raws []string
			tokens := 0
			for _, c := range chunks {
				if c.Raw != nil {
					raws = append(raws, c.raw)
				}
				if c.Usage != nil {
					usage = &c.use
				}
				tokens += c.Tokens
				if c.Choice < 0 {
					require.Equal(t, !req.IncludeUsage, c.Hidden)
					continue
				}
				require.False(t, c.Hidden)
				text[c.Choice] += c.Text
				ids[c.Choice] = append(ids[c.Choice], c.ids...)
				if c.Finish != "" {
					finish[c.Choice] = c.Finish
				}
			}
			if err != nil {
				require.Equal(t, strings.Join(want.payloads[:len(raws)], "\n"), strings.Join(raws, "\n"), "a prefix of the answer")
				return
			}
			require.Equal(t, want.payloads, raws)
			require.Equal(t, want.text, text)
			require.Equal(t, want.ids, ids)
			require.Equal(t, want.finish, finish)
			require.Equal(t, want.usage, usage)
			if usage != nil && (len(ids[0]) > 0 || !req.Stream) {
				require.Equal(t, usage.Completion, tokens)
			}
		})
	}
}

// However the network cuts an answer into pieces, it reads the same.
func TestRecordedAnswersInPieces(t *testing.T) {
	for _, name := range []string{"chat_stream_n2", "completion_stream_usage", "chat_n2_logprobs", "completion_batch2"} {
		f := loadFixture(t, name)
		for _, piece := range []int{1, 7, 100} {
			s := newRawServer(t, func(c net.Conn, r *bufio.Reader) {
				if req, _ := readRequest(r); req == nil {
					return
				}
				for rest := f.answer; len(rest) > 0; {
					n := min(piece, len(rest))
					if _, err := c.Write(rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
			})
			chunks, err := collect(t, newClient(t, s.url, nil), f.request())
			require.NoError(t, err)
			var raws []string
			for _, c := range chunks {
				if c.Raw != nil {
					raws = append(raws, c.raw)
				}
			}
			require.Equal(t, readTruth(t, f.answer).payloads, raws, "%s in pieces of %d", name, piece)
		}
	}
}

// The deaths of a worker, as they were recorded.
func TestRecordedDeaths(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(fixtures, "shutdown.json"))
	require.NoError(t, err)
	var deaths map[string]struct {
		Tail string
		Done bool `json:"has_done"`
	}
	require.NoError(t, json.Unmarshal(b, &deaths))
	const head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	for name, want := range map[string]error{
		"sigterm_shutdown_timeout_20_stream": nil,
		"sigterm_default_stream":             engine.ErrAborted,
		"sigkill_engine_core_only_stream":    &engine.Error{Status: 500},
		"sigkill_all_processes_stream":       engine.ErrCut,
	} {
		t.Run(name, func(t *testing.T) {
			tail := deaths[name].Tail
			// The tail begins inside a chunk: go on at the next chunk's size.
			i := strings.Index(tail, "\n\n\r\n")
			require.Positive(t, i)
			answer := head + frame(event(0, "x", "null")) + tail[i+4:]
			req := &engine.Request{API: engine.APICompletions, Body: []byte(`{"model":"m","prompt":"x","stream":true}`), Stream: true, N: 1, Prompts: 1, Rank: -1}
			chunks, err := collect(t, newClient(t, replay(t, []byte(answer)), nil), req)
			require.NotEmpty(t, chunks)
			switch e := want.(type) {
			case nil:
				require.NoError(t, err)
				require.Equal(t, "length", chunks[len(chunks)-1].Finish)
				return
			case *engine.Error:
				var ee *engine.Error
				require.True(t, errors.As(err, &ee))
				require.Equal(t, e.Status, ee.Status)
				require.Contains(t, ee.Message, "EngineCore encountered an issue")
			default:
				require.ErrorIs(t, err, want)
			}
			require.True(t, engine.Delivered(err))
			require.True(t, engine.Retryable(err))
			if want == engine.ErrAborted {
				// The abort chunk carried one more token, which a continuation needs.
				last := chunks[len(chunks)-1]
				require.Equal(t, "abort", last.Finish)
				require.Equal(t, []uint32{69}, last.ids)
			}
		})
	}
}
