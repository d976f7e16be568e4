package vllm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// An engine names an item again for each block that it touches. A message whose
// items claim to have begun long before, in blocks that did not name them, would
// take hours to hash: the event is malformed, and costs only itself.
func TestItemsTouchWhatIsNamed(t *testing.T) {
	event := func(blocks, items, back int) list {
		hashes, tokens, extra := list{}, list{}, list{}
		for i := range blocks {
			hashes, tokens, extra = append(hashes, i), append(tokens, 1), append(extra, nil)
		}
		last := list{}
		for i := range items {
			last = append(last, list{"i" + itoa(i), -back - i})
		}
		extra[blocks-1] = last
		return list{"BlockStored", hashes, nil, tokens, 1, nil, "GPU", nil, extra}
	}
	d := NewDecoder()
	var b kvindex.Batch
	for name, back := range map[string]int{"within the event": 1000, "before it": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, d.Decode(&b, 1, batchOf(event(4000, 4000, back), list{"AllBlocksCleared"})))
			require.Len(t, b.Events, 1)
			require.Equal(t, kvindex.EventCleared, b.Events[0].Kind)
			require.Equal(t, 1, b.Malformed)
		})
	}

	// What an engine does say is far from the bound, even where names are short
	// and every block is touched: one item over all blocks, and one a block.
	const blocks = 2000
	hashes, tokens, extra := list{}, list{}, list{}
	for i := range blocks {
		hashes, tokens = append(hashes, i), append(tokens, 1, 2)
		extra = append(extra, list{list{"v", -i * 2}, list{itoa(i), 1}, []byte{1}})
	}
	require.NoError(t, d.Decode(&b, 1, batchOf(list{"BlockStored", hashes, nil, tokens, 2, nil, "GPU", nil, extra})))
	require.Zero(t, b.Malformed)
	require.Len(t, b.Events[0].Media, 1+2*blocks)
	require.Equal(t, block.Media{ID: "v", Offset: 0, Length: 2*(blocks-1) + 1}, b.Events[0].Media[0])
}

// Lengths of 2^32 and the like, at every place where a length can stand, are
// found out before anything is set aside for them.
func TestAnnouncedLengths(t *testing.T) {
	var heads [][]byte
	for _, c := range []byte{0xdd, 0xdf, 0xdb, 0xc6, 0xc9} { // array, map, string, bytes, extension
		for _, n := range []uint32{1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
			heads = append(heads, binary.BigEndian.AppendUint32([]byte{c}, n))
		}
	}
	whole := value(nil, list{1.0, list{
		list{"BlockStored", list{1, 2}, 3, list{1, 2, 3, 4}, 2, nil, "GPU", "ad", list{list{"ad", list{"i", 1}}, nil}, 0, "full_attention"},
		pairs{"type", "BlockRemoved", "block_hashes", list{1}, "medium", "CPU", "remaining_copy_counts", list{1}},
	}, 0})
	d := NewDecoder()
	var b kvindex.Batch
	require.NoError(t, d.Decode(&b, 1, whole))
	require.Len(t, b.Events, 2)
	for at := range whole {
		for _, h := range heads {
			p := append(append(append([]byte{}, whole[:at]...), h...), whole[at:]...)
			_ = d.Decode(&b, 1, p)
			_ = d.Decode(&b, 1, p[:at+len(h)])
		}
	}
	require.LessOrEqual(t, cap(d.hashes)+cap(d.tokens)+cap(d.media), 4096)
}

// Times that are none are no times: an infinite one would make every message that
// follows look older, and so hide that the engine began anew.
func TestHostileTimes(t *testing.T) {
	d := NewDecoder()
	var b kvindex.Batch
	for _, at := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e11, math.MaxFloat64} {
		require.NoError(t, d.Decode(&b, 1, value(nil, list{at, list{}, 0})))
		require.Zero(t, b.Time)
	}
	require.NoError(t, d.Decode(&b, 1, value(nil, list{1795964150.5, list{}, 0})))
	require.Equal(t, 1795964150.5, b.Time)

	tokens, wire := prompt16(16)
	stored := list{"BlockStored", list{1}, nil, wire, 16}
	e := newIdentity(t, 16)
	message := func(seq uint64, at float64, event any) {
		require.NoError(t, d.Decode(&b, seq, value(nil, list{at, list{event}, 0})))
		e.st.Apply(&b)
	}
	message(5, 1000, list{"AllBlocksCleared"})
	message(6, math.Inf(1), stored)
	require.Equal(t, 1, e.depth(block.Scope{Model: "m"}, tokens))
	message(0, 2000, list{"SomethingElse"}) // the engine's next life
	require.Zero(t, e.depth(block.Scope{Model: "m"}, tokens))
}

// Sources that name one rank in two ways, or ports that do not exist.
func TestHostileEventSources(t *testing.T) {
	one := `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}`
	for _, body := range []string{
		`{"0":` + one + `,"00":` + one + `}`, `{"+1":` + one + `}`, `{"-1":` + one + `}`, `{"1024":` + one + `}`, `{"":` + one + `}`,
		`{"0":[]}`, `[]`, `{`, ``,
	} {
		_, err := ParseEventSources([]byte(body), "h")
		require.ErrorIs(t, err, engine.ErrProtocol, body)
	}
	for _, endpoint := range []string{"", "tcp://", "tcp://*", "tcp://*:", "tcp://*:0", "tcp://*:65536", "tcp://*:-1", "udp://*:1", "inproc://x"} {
		_, err := ParseEventSources([]byte(`{"0":{"enable_kv_cache_events":true,"endpoint":"`+endpoint+`"}}`), "h")
		require.Error(t, err, endpoint)
	}
	for _, rank := range []int{-1, 65535, math.MaxInt, math.MinInt} {
		_, err := RankEndpoint("tcp://*:5557", "h", rank)
		require.Error(t, err, "%d", rank)
	}
}

// Endpoints that answer without end, late, or with bytes of another kind are
// errors in bounded memory and time, never a result.
func TestHostileEndpoints(t *testing.T) {
	const limit = 1 << 20
	endless := func(piece string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat(piece, 1000)); err != nil {
					return
				}
			}
		}
	}
	silent := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is seen
		<-r.Context().Done()
	}
	dribble := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "1")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		slow  bool
	}{
		"one line without end":   {endless("vllm:num_requests_running"), false},
		"lines without end":      {endless("vllm:num_requests_running 1\n"), false},
		"ids without end":        {endless(`{"token_ids":[1,1,1,1`), false},
		"brackets without end":   {endless("["), false},
		"silence":                {silent, true},
		"one octet now and then": {dribble, true},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(tc.serve)
			defer srv.Close()
			w, err := NewWorker(srv.URL, &WorkerOptions{Client: &openai.ClientOptions{MaxBody: limit}})
			require.NoError(t, err)
			defer w.Close()
			ctx := t.Context()
			if tc.slow {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
			}
			check := func(err error) {
				t.Helper()
				require.Error(t, err)
				if tc.slow {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					require.ErrorIs(t, err, engine.ErrProtocol)
				}
			}
			_, err = w.Load(ctx)
			check(err)
			_, err = w.Tokenize(ctx, nil, &engine.Request{API: engine.APIChat, Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`)})
			check(err)
			_, err = w.EventSources(ctx)
			check(err)
			_, err = w.Probe(ctx)
			check(err)
			n, _ := w.tokens.Len()
			require.Zero(t, n, "nothing of it is remembered")
		})
	}
}

// A page of the largest size that is taken is read in one pass, whatever is on it.
func TestLargePages(t *testing.T) {
	const size = 4 << 20
	known := "vllm:num_requests_waiting 2\n"
	for name, piece := range map[string]string{
		"one line":    "vllm:num_requests_running{a=\"b\",",
		"one name":    "v",
		"one label":   "\\\"",
		"spaces":      " ",
		"empty lines": "\n",
		"lines":       "vllm:num_requests_running{engine=\"0\"} 1\n",
		"ranks":       "vllm:num_requests_running{engine=\"1023\"} 1\n",
	} {
		page := known + strings.Repeat(piece, size/len(piece))
		load, err := ParseLoad(nil, []byte(page), time.Time{})
		require.NoError(t, err, name)
		require.Equal(t, 2, load[0].Waiting)
		require.LessOrEqual(t, len(load), maxRanks)
	}
}

// Where a prompt is cut, the room for the answer decides where: then nothing that
// can matter may differ.
func TestTruncatedPromptsAreApart(t *testing.T) {
	n := 0
	s := &site{routes: map[string]func([]byte) (int, []byte){"POST /v1/completions/render": func([]byte) (int, []byte) {
		n++
		return 200, []byte(`[{"token_ids":[` + itoa(n) + `]}]`)
	}}}
	w := startWorker(t, s, nil)
	for i, extra := range []string{`"max_tokens":5`, `"max_tokens":6`, `"truncate_prompt_tokens":-1,"max_tokens":5`, `"truncate_prompt_tokens":-1,"max_tokens":6`} {
		ids, err := w.Tokenize(t.Context(), nil, &engine.Request{API: engine.APICompletions, Body: []byte(`{"model":"m","prompt":"a",` + extra + `}`)})
		require.NoError(t, err)
		require.Equal(t, []uint32{uint32(max(1, i))}, ids, extra)
	}
}

// FuzzPrompt: whatever a client sends, what is passed on to the tokenizer is JSON,
// and a body that is none is told from one that is.
func FuzzPrompt(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":"a","add_special_tokens":false}`, `{"model":"m","prompt":[[1,2]],"suffix":"x"}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}],"tools":[{}],"tools":null}`,
		`{"mod\u0065l":1,"mess\u0061ges":[[]],"truncate_prompt_tokens":-1}`, `{"model":"m","messages":[`, `{"prompt":null,"model":"m"}`, `[]`, `{"model":"m","prompt":[],"messages":{}}`,
		`{"model":"m","messages":[{"role":"user","content":" a<|b"}],"continue_final_message":true}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		req := &engine.Request{API: engine.APICompletions, Body: body}
		if chat {
			req.API = engine.APIChat
		}
		p, err := parsePrompt(req)
		if err != nil {
			require.ErrorIs(t, err, ErrNoTokens)
			return
		}
		require.True(t, json.Valid(body))
		again, err := parsePrompt(req)
		require.NoError(t, err)
		require.Equal(t, p.key, again.key)
		require.True(t, json.Valid(slices.Concat([]byte(`{"model":`), p.model, p.pass, []byte("}"))))
		for _, m := range p.messages {
			require.True(t, json.Valid(m))
			if role, ok := plain(m); ok {
				require.False(t, hasMedia(m))
				require.True(t, json.Valid(role))
			}
		}
		if p.ids == nil && !chat {
			require.True(t, json.Valid(p.text))
		}
	})
}
