package sim

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/internal/msgpack"
	"github.com/stator-go/stator/kvindex"
)

// wireEvents reads what a follower needs from a payload.
func wireEvents(t *testing.T, payload []byte) (events []CacheEvent) {
	var r msgpack.Reader
	r.Reset(payload)
	_, err := r.Array()
	require.NoError(t, err)
	require.NoError(t, r.Skip())
	n, err := r.Array()
	require.NoError(t, err)
	require.Positive(t, n, "a step without changes publishes nothing")
	for range n {
		var ev CacheEvent
		keys, err := r.Map()
		require.NoError(t, err)
		for range keys {
			key, err := r.Str()
			require.NoError(t, err)
			switch string(key) {
			case "type":
				kind, err := r.Str()
				require.NoError(t, err)
				ev.Kind = map[string]kvindex.EventKind{"BlockStored": kvindex.EventStored, "BlockRemoved": kvindex.EventRemoved, "AllBlocksCleared": kvindex.EventCleared}[string(kind)]
			case "block_hashes":
				hashes, err := r.Array()
				require.NoError(t, err)
				for range hashes {
					h, _, err := r.Bits()
					require.NoError(t, err)
					ev.Hashes = append(ev.Hashes, h)
				}
			case "parent_block_hash":
				if !r.Nil() {
					ev.Parent, _, err = r.Bits()
					require.NoError(t, err)
					ev.HasParent = true
				}
			default:
				require.NoError(t, r.Skip())
			}
		}
		events = append(events, ev)
	}
	return events
}

// Many clients, some of whom leave early, on an engine that is short of memory:
// every answer that ends is whole, nothing is left behind, and the messages,
// followed from the start, give the cache's content.
func TestServerUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := recordedEngine()
		cfg.BlockTokens = 8
		r := memoryRig(t, Options{Config: cfg, MaxModelLen: 500})
		defer r.close()
		rng := rand.New(rand.NewPCG(3, 9))
		var wg sync.WaitGroup
		var mu sync.Mutex
		whole, left := 0, 0
		for i := range 150 {
			prompt := seqTokens(1000*rng.IntN(4), 1+rng.IntN(120))
			out, stream := 1+rng.IntN(150), rng.IntN(2) == 0
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if rng.IntN(4) == 0 {
				ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Millisecond)
			}
			body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": out, "stream": stream, "n": 1 + i%3})
			require.NoError(t, err)
			wg.Go(func() {
				defer cancel()
				req, _ := http.NewRequestWithContext(ctx, "POST", r.URL()+"/v1/completions", strings.NewReader(string(body)))
				resp, err := r.client.Do(req)
				var answer []byte
				if err == nil {
					answer, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					left++
				} else if n := strings.Count(string(answer), `"finish_reason":"length"`); resp.StatusCode == 200 && n == 1+i%3 {
					whole++
				}
			})
			time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
			if rng.IntN(20) == 0 {
				r.Reset()
			}
		}
		wg.Wait()
		synctest.Wait()
		require.Equal(t, 150, whole+left)
		require.NotZero(t, left)
		st := r.Stats()
		require.Zero(t, st.Running+st.Waiting+st.UsedBlocks)
		require.NotZero(t, st.Preemptions)
		require.NotZero(t, st.Evictions)
		require.NotZero(t, st.Hits)

		r.complete(t, map[string]any{"prompt": "flush what a reset left to tell"})
		seen := follower{}
		_, msgs := r.events.from(0)
		for _, m := range msgs {
			seen.apply(t, wireEvents(t, m))
		}
		total := 0
		for _, n := range seen {
			total += n
		}
		require.Equal(t, r.Stats().CachedBlocks, total)
	})
}
