package block_test

import (
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex/block"
)

func drawMedia(t *rapid.T, tokens int) []block.Media {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) block.Media {
		return block.Media{
			ID:     rapid.StringN(0, 5, -1).Draw(t, "id"),
			Offset: rapid.IntRange(-tokens, tokens).Draw(t, "offset"),
			Length: rapid.IntRange(0, tokens).Draw(t, "length"),
		}
	}), 0, 4).Draw(t, "media")
}

// A chain made at once and one made piece by piece are the same, whatever the
// cuts, in both schemes; a shifted copy of the media list is the same list.
func TestExtendEqualsAppend(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 4, 16, 17, 300}).Draw(t, "tokens per block")
		scheme := rapid.SampledFrom([]block.Scheme{block.SchemeBLAKE3, block.SchemeDynamo}).Draw(t, "scheme")
		h, err := block.NewHasher(block.Scope{Model: "m"}, n, &block.Options{Scheme: scheme})
		require.NoError(t, err)
		blocks := rapid.IntRange(0, 12).Draw(t, "blocks")
		tokens := seq(blocks*n + n/2)
		media := drawMedia(t, len(tokens))
		all, keys := h.AppendHashes(nil, tokens, media), h.AppendKeys(nil, tokens, media)
		require.Len(t, all, blocks)

		var got []block.Hash
		gotKeys, parentKey := []block.Key(nil), h.Root()
		for at := 0; at < blocks; {
			step := rapid.IntRange(1, blocks-at).Draw(t, "step")
			var shifted []block.Media
			for _, m := range media {
				m.Offset -= at * n
				shifted = append(shifted, m)
			}
			part := tokens[at*n : (at+step)*n]
			var parent block.Hash
			if at > 0 {
				parent = got[at-1]
			}
			got = h.Extend(got, parent, at > 0, part, shifted)
			gotKeys = h.ExtendKeys(gotKeys, parentKey, part, shifted)
			at += step
			parentKey = gotKeys[at-1]
		}
		require.True(t, slices.Equal(all, got))
		require.True(t, slices.Equal(keys, gotKeys))
	})
}

// input is everything a chain of keys covers.
type input struct {
	scope  block.Scope
	n      int
	tokens []uint32
	media  []block.Media
}

func (in *input) keys(t require.TestingT) []block.Key {
	h, err := block.NewHasher(in.scope, in.n, nil)
	require.NoError(t, err)
	return h.AppendKeys(nil, in.tokens, in.media)
}

// identity says in words what the last block's name may depend on, written with
// quotes and lengths so that it cannot alias itself.
func (in *input) identity() string {
	blocks := len(in.tokens) / in.n
	out := fmt.Sprintf("%q", []string{in.scope.Model, in.scope.Revision, in.scope.Adapter, in.scope.Tenant, in.scope.Group})
	for b := range blocks {
		var items []string
		for _, m := range in.media {
			if m.Length > 0 && m.Offset < (b+1)*in.n && m.Offset+m.Length > b*in.n {
				items = append(items, fmt.Sprintf("%d %q", m.Offset-b*in.n, m.ID))
			}
		}
		sort.Strings(items)
		out += fmt.Sprintf(" [%d %q]", in.tokens[b*in.n:(b+1)*in.n], slices.Compact(items))
	}
	return out
}

// Two inputs have one name exactly when scope, tokens and media per block agree.
// Short alphabets and lengths make near misses likely: content that crosses a
// field's border, ids cut elsewhere, tokens that look like a media record.
func TestNoAliases(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune{'a', 0, 1, 2}), 0, 3, -1)
	draw := rapid.Custom(func(t *rapid.T) input {
		n := rapid.IntRange(1, 3).Draw(t, "n")
		in := input{
			scope: block.Scope{Model: text.Draw(t, "model"), Revision: text.Draw(t, "revision"), Tenant: text.Draw(t, "tenant")},
			n:     n, tokens: make([]uint32, n*rapid.IntRange(1, 3).Draw(t, "blocks")),
		}
		for i := range in.tokens {
			in.tokens[i] = rapid.Uint32Range(0, 1).Draw(t, "token")
		}
		for range rapid.IntRange(0, 2).Draw(t, "items") {
			in.media = append(in.media, block.Media{
				ID:     text.Draw(t, "id"),
				Offset: rapid.IntRange(-1, len(in.tokens)).Draw(t, "offset"),
				Length: rapid.IntRange(0, 3).Draw(t, "length"),
			})
		}
		return in
	})
	seen := map[block.Key]string{}
	ids := map[string]block.Key{}
	rapid.Check(t, func(t *rapid.T) {
		in := draw.Draw(t, "input")
		keys := in.keys(t)
		key, id := keys[len(keys)-1], in.identity()
		if old, ok := seen[key]; ok && old != id {
			t.Fatalf("one key for two inputs:\n%s\n%s", old, id)
		}
		if old, ok := ids[id]; ok && old != key {
			t.Fatalf("two keys for one input: %s", id)
		}
		seen[key], ids[id] = id, key
	})
	require.Greater(t, len(seen), 20)
}

// A block of tokens that spells out a media record must not stand for the
// record: its digest would be the key under which the touched block is hashed.
func TestMediaRecordIsNotABlock(t *testing.T) {
	const n = 8
	// The record of one item "abcd" at offset 0 has 21 bytes, which no block has.
	// Nearest to it are the record without its first byte and the record with
	// zeros up to a whole word.
	h := newHasher(t, block.Scope{}, n)
	touched := h.AppendKeys(nil, seq(n), []block.Media{{ID: "abcd", Length: n}})[0]
	for _, spelled := range [][]uint32{
		{1, 4, 0x64636261, 0, 0},
		{0x0000014d, 0x00000400, 0x63626100, 0x00000064, 0, 0},
	} {
		for size := len(spelled) - 1; size <= 16; size++ {
			tokens := make([]uint32, size)
			copy(tokens, spelled)
			first := newHasher(t, block.Scope{}, size).AppendKeys(nil, tokens, nil)[0]
			require.NotEqual(t, touched, h.ExtendKeys(nil, first, seq(n), nil)[0])
		}
	}
}
