package vllm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// The tests of this file put wire bytes through decoder, stream and index, and ask
// as a request would: whatever the engine mixes into its own hashes, both sides
// must give a block one name, or two.

type identity struct {
	t  *testing.T
	x  *kvindex.Index
	s  kvindex.Slot
	st *kvindex.Stream
	n  uint64
}

func newIdentity(t *testing.T, unit int) *identity {
	x, err := kvindex.New(&kvindex.Options{BlockTokens: unit})
	require.NoError(t, err)
	s := x.Attach("w", 0)
	st, err := x.NewStream(s, kvindex.StreamConfig{Scope: block.Scope{Model: "m"}})
	require.NoError(t, err)
	return &identity{t: t, x: x, s: s, st: st}
}

func (e *identity) tell(events ...any) {
	var b kvindex.Batch
	require.NoError(e.t, NewDecoder().Decode(&b, e.n, batchOf(events...)))
	require.Zero(e.t, b.Malformed)
	e.n++
	e.st.Apply(&b)
}

func (e *identity) depth(scope block.Scope, tokens []uint32, media ...block.Media) int {
	h, err := block.NewHasher(scope, e.x.BlockTokens(), nil)
	require.NoError(e.t, err)
	var o kvindex.Overlap
	e.x.Lookup(&o, h.AppendHashes(nil, tokens, media))
	return o.Depth(e.s, kvindex.TierGPU)
}

func prompt16(n int) (tokens []uint32, wire list) {
	for i := range n {
		tokens, wire = append(tokens, uint32(7*i+1)), append(wire, 7*i+1)
	}
	return tokens, wire
}

// An adapter's name stands in lora_name and again in the extra keys of each block:
// it is no image.
func TestH2AdapterInExtraKeys(t *testing.T) {
	tokens, wire := prompt16(64)
	lora := list{"sql-lora"}
	for name, event := range map[string]any{
		"map": pairs{"type", "BlockStored", "block_hashes", list{1, 2, 3, 4}, "parent_block_hash", nil, "token_ids", wire, "block_size", 16,
			"lora_id", 1, "medium", "GPU", "lora_name", "sql-lora", "extra_keys", list{lora, lora, lora, lora}},
		"array": list{"BlockStored", list{1, 2, 3, 4}, nil, wire, 16, 1, "GPU", "sql-lora", list{lora, lora, lora, lora}, 0, "full_attention", nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newIdentity(t, 16)
			e.tell(event)
			require.Equal(t, 4, e.depth(block.Scope{Model: "m", Adapter: "sql-lora"}, tokens))
			require.Zero(t, e.depth(block.Scope{Model: "m"}, tokens))
			require.Zero(t, e.depth(block.Scope{Model: "m", Adapter: "sql"}, tokens))
			require.Zero(t, e.depth(block.Scope{Model: "m", Adapter: "sql-lora", Tenant: "sql-lora"}, tokens))
		})
	}
}

// One engine hash for the same tokens under the base model and under an adapter:
// two entries, and each is removed by itself as far as the engine's news allow.
func TestH3OneEngineHashForBaseAndAdapter(t *testing.T) {
	tokens, wire := prompt16(32)
	stored := func(adapter any) list {
		return list{"BlockStored", list{1, 2}, nil, wire, 16, nil, "GPU", adapter, list{nil, nil}, 0, "full_attention", nil}
	}
	base, lora := block.Scope{Model: "m"}, block.Scope{Model: "m", Adapter: "lora"}
	e := newIdentity(t, 16)
	e.tell(stored("lora"))
	require.Zero(t, e.depth(base, tokens), "the base model never matches the adapter's blocks")
	e.tell(stored(nil))
	require.Equal(t, 2, e.depth(base, tokens))
	require.Equal(t, 2, e.depth(lora, tokens))
	e.tell(list{"BlockRemoved", list{2}, "GPU", 0})
	require.LessOrEqual(t, e.depth(base, tokens)+e.depth(lora, tokens), 3, "one of them at least is gone")
}

// What stands in the place of an adapter's name is read by both sides in one way.
func TestH5AdapterReadBack(t *testing.T) {
	tokens, wire := prompt16(32)
	e := newIdentity(t, 16)
	e.tell(list{"BlockStored", list{1, 2}, nil, wire, 16, nil, "GPU", "a", list{list{"a"}, list{"a"}}, 0, "full_attention", nil})
	require.Equal(t, 2, e.depth(block.Scope{Model: "m", Adapter: "a"}, tokens))
	// An old release names an adapter by number only: kept apart from all others.
	e.tell(list{"AllBlocksCleared"}, list{"BlockStored", list{1, 2}, nil, wire, 16, 7})
	require.Zero(t, e.depth(block.Scope{Model: "m"}, tokens))
	require.Zero(t, e.depth(block.Scope{Model: "m", Adapter: "a"}, tokens))
	// No adapter is 0 or nil there.
	for _, none := range []any{nil, 0} {
		e.tell(list{"AllBlocksCleared"}, list{"BlockStored", list{1, 2}, nil, wire, 16, none})
		require.Equal(t, 2, e.depth(block.Scope{Model: "m"}, tokens))
	}
}

// Two engines whose hashes have different seeds, one with digests: the engine's
// hash is only a name.
func TestH8EngineSeeds(t *testing.T) {
	tokens, wire := prompt16(32)
	for _, hashes := range []list{
		{uint64(1) << 63, 3}, {-5, -6}, {[]byte("0123456789abcdef0123456789abcdef"), []byte("fedcba9876543210")},
	} {
		e := newIdentity(t, 16)
		e.tell(list{"BlockStored", hashes, nil, wire, 16, nil, "GPU"})
		require.Equal(t, 2, e.depth(block.Scope{Model: "m"}, tokens))
		e.tell(list{"BlockRemoved", hashes[1:], "GPU"})
		require.Equal(t, 1, e.depth(block.Scope{Model: "m"}, tokens))
	}
}

// An image that goes on over several blocks and a salt on the first, as an engine
// spells them out block by block, are what a request says in one piece.
func TestMediaReadBack(t *testing.T) {
	tokens, wire := prompt16(64)
	e := newIdentity(t, 16)
	e.tell(pairs{"type", "BlockStored", "block_hashes", list{1, 2, 3, 4}, "parent_block_hash", nil, "token_ids", wire, "block_size", 16,
		"extra_keys", list{list{list{"img", 10}, "salt"}, list{list{"img", -6}}, list{list{"img", -22}, list{"snd", 15}}, list{list{"snd", -1}}}})
	scope := block.Scope{Model: "m", Tenant: "salt"}
	img, snd := block.Media{ID: "img", Offset: 10, Length: 23}, block.Media{ID: "snd", Offset: 47, Length: 2}
	require.Equal(t, 4, e.depth(scope, tokens, img, snd))
	require.Equal(t, 2, e.depth(scope, tokens, img))
	require.Zero(t, e.depth(scope, tokens, snd))
	require.Zero(t, e.depth(block.Scope{Model: "m"}, tokens, img, snd))
}
