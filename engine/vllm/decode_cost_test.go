package vllm

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
)

// eventMessage builds a message of n events of 8 blocks of 16 tokens.
func eventMessage(n int, asMap bool) []byte {
	var events list
	for e := range n {
		var hashes, tokens, extra list
		for i := range 8 {
			hashes = append(hashes, uint64(e*8+i)*0x9e3779b97f4a7c15|1<<63)
			extra = append(extra, nil)
		}
		for i := range 128 {
			tokens = append(tokens, (e*128+i)*7919%32000)
		}
		if asMap {
			events = append(events, pairs{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", uint64(e+1) << 60, "token_ids", tokens,
				"block_size", 16, "lora_id", nil, "medium", "GPU", "lora_name", nil, "extra_keys", extra, "group_idx", 0, "kv_cache_spec_kind", "full_attention"})
		} else {
			events = append(events, list{"BlockStored", hashes, uint64(e+1) << 60, tokens, 16, nil, "GPU", nil, extra, 0, "full_attention", nil})
		}
	}
	return value(nil, list{1795964150.84, events, 0})
}

func TestDecodeAllocs(t *testing.T) {
	for _, p := range [][]byte{eventMessage(16, false), eventMessage(16, true), unhex(t, vectors["A4"]), unhex(t, vectors["M1"])} {
		d := NewDecoder()
		var b kvindex.Batch
		require.Zero(t, testing.AllocsPerRun(50, func() {
			if err := d.Decode(&b, 1, p); err != nil {
				t.Fatal(err)
			}
		}))
	}
}

// TestRecycle: one giant message does not stay in memory for ever.
func TestRecycle(t *testing.T) {
	d := NewDecoder()
	var b kvindex.Batch
	var tokens list
	for range 1 << 19 {
		tokens = append(tokens, 1)
	}
	require.NoError(t, d.Decode(&b, 1, batchOf(list{"BlockStored", list{1}, nil, tokens, 1 << 19})))
	require.Len(t, b.Events[0].Tokens, 1<<19)
	for range 2 {
		require.NoError(t, d.Decode(&b, 1, unhex(t, vectors["A1"])))
	}
	require.LessOrEqual(t, cap(d.tokens), arenaKeep)
}

func TestInternerIsBounded(t *testing.T) {
	var in interner
	for i := range 3 * internNames {
		in.get([]byte(strings.Repeat("x", 300) + itoa(i)))
		require.LessOrEqual(t, len(in.m), internNames)
		require.LessOrEqual(t, in.bytes, internBytes)
	}
	long := strings.Repeat("y", internLong+1)
	require.Equal(t, long, in.get([]byte(long)))
	require.NotContains(t, in.m, long)
}

func BenchmarkDecodeEvents(b *testing.B) {
	for _, form := range []string{"array", "map"} {
		b.Run("form="+form, func(b *testing.B) {
			p := eventMessage(16, form == "map")
			d := NewDecoder()
			var batch kvindex.Batch
			b.ReportAllocs()
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				if err := d.Decode(&batch, 1, p); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/16, "ns/event")
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v))
	}
	f.Add(eventMessage(2, true))
	f.Add(batchOf(pairs{"type", "BlockStored", "block_hashes", list{1, []byte("0123456789abcdef")}, "token_ids", list{1, 2, 3, 4}, "block_size", 2,
		"extra_keys", list{list{list{"img", 1}, "s"}, list{list{"img", -1}, []byte{1}}}}))
	d := NewDecoder()
	f.Fuzz(func(t *testing.T, p []byte) {
		var b kvindex.Batch
		err := d.Decode(&b, 3, p)
		if err != nil {
			if len(b.Events) != 0 {
				t.Fatal("events after an error")
			}
			return
		}
		for i := range b.Events {
			e := &b.Events[i]
			if e.Kind == kvindex.EventStored && len(e.Tokens) > 0 && len(e.Tokens) != len(e.Hashes)*e.BlockSize {
				t.Fatalf("%d tokens for %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
			}
			if e.Remaining != nil && len(e.Remaining) != len(e.Hashes) {
				t.Fatal("counts do not fit")
			}
			for _, m := range e.Media {
				if m.ID == "" || m.Length < 1 || m.Offset >= max(1, len(e.Tokens)) {
					t.Fatalf("item %+v", m)
				}
			}
		}
		// the same bytes give the same batch, whatever was decoded before
		var again kvindex.Batch
		if err := NewDecoder().Decode(&again, 3, p); err != nil {
			t.Fatal(err)
		}
		if len(again.Events) != len(b.Events) || again.Malformed != b.Malformed || again.Rank != b.Rank {
			t.Fatal("decoding depends on history")
		}
		for i := range b.Events {
			x, y := &b.Events[i], &again.Events[i]
			if x.Kind != y.Kind || !slices.Equal(x.Hashes, y.Hashes) || !slices.Equal(x.Tokens, y.Tokens) || !slices.Equal(x.Media, y.Media) ||
				x.Salt != y.Salt || x.Adapter != y.Adapter {
				t.Fatal("decoding depends on history")
			}
		}
	})
}
