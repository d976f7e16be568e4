package block_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex/block"
)

func TestCheckMedia(t *testing.T) {
	h := newHasher(t, block.Scope{}, 16)
	require.NoError(t, h.CheckMedia(nil))
	require.NoError(t, h.CheckMedia([]block.Media{{ID: "a", Offset: -3, Length: 4}}))
	for _, c := range []struct {
		m    block.Media
		want error
	}{
		{block.Media{Length: 1}, block.ErrMediaID},
		{block.Media{ID: strings.Repeat("x", block.MaxField+1), Length: 1}, block.ErrMediaID},
		{block.Media{ID: "a"}, block.ErrMediaLength},
		{block.Media{ID: "a", Length: -1}, block.ErrMediaLength},
		{block.Media{ID: "a", Offset: -1 << 31, Length: 1}, block.ErrMediaOffset},
	} {
		err := h.CheckMedia([]block.Media{{ID: "fine", Length: 1}, c.m})
		require.ErrorIs(t, err, c.want)
		require.ErrorIs(t, err, block.ErrMedia)
		require.ErrorContains(t, err, "item 1")
	}
	err := h.CheckMedia([]block.Media{{}, {ID: "a", Offset: -1 << 31}})
	for _, want := range []error{block.ErrMediaID, block.ErrMediaLength, block.ErrMediaOffset} {
		require.ErrorIs(t, err, want)
	}
	require.ErrorIs(t, h.CheckMedia(make([]block.Media, block.MaxMedia+1)), block.ErrMediaCount)
}

// Only blocks that an item touches, and those after them, change.
func TestMediaTouches(t *testing.T) {
	h := newHasher(t, block.Scope{}, 16)
	tokens := seq(96)
	plain := h.AppendHashes(nil, tokens, nil)
	for _, c := range []struct {
		name        string
		m           block.Media
		first, size int // the first touched block; -1 none
	}{
		{"inside", block.Media{ID: "a", Offset: 17, Length: 2}, 1, 1},
		{"across", block.Media{ID: "a", Offset: 30, Length: 20}, 1, 3},
		{"one token over the border", block.Media{ID: "a", Offset: 30, Length: 3}, 1, 2},
		{"up to the border", block.Media{ID: "a", Offset: 30, Length: 2}, 1, 1},
		{"before", block.Media{ID: "a", Offset: -4, Length: 4}, -1, 0},
		{"from before", block.Media{ID: "a", Offset: -4, Length: 5}, 0, 1},
		{"behind", block.Media{ID: "a", Offset: 96, Length: 5}, -1, 0},
		{"no length", block.Media{ID: "a", Offset: 20}, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := h.AppendHashes(nil, tokens, []block.Media{c.m})
			for i := range got {
				if changed := c.first >= 0 && i >= c.first; changed != (got[i] != plain[i]) {
					t.Errorf("block %d: changed %v, want %v", i, got[i] != plain[i], changed)
				}
			}
			if c.first < 0 {
				return
			}
			// A continuation from the first touched block on, cut to the blocks the
			// item touches, must see it; one after them must not.
			after := c.first + c.size
			if after < len(got) {
				require.Equal(t, got[after:], h.Extend(nil, got[after-1], true, tokens[16*after:], nil))
			}
		})
	}
}

// An engine announces media per block, as (id, begin relative to the block). The
// chain must be the one that a request with whole items has.
func TestMediaFromEvents(t *testing.T) {
	h := newHasher(t, block.Scope{}, 16)
	rapid.Check(t, func(t *rapid.T) {
		const blocks = 8
		tokens := seq(blocks * 16)
		items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) block.Media {
			return block.Media{
				ID:     rapid.SampledFrom([]string{"a", "b", "sha256:0123"}).Draw(t, "id"),
				Offset: rapid.IntRange(-20, blocks*16).Draw(t, "offset"),
				Length: rapid.IntRange(1, 50).Draw(t, "length"),
			}
		}), 0, 6).Draw(t, "items")
		var event []block.Media
		for b := range blocks {
			for _, m := range items {
				if m.Offset < 16*b+16 && m.Offset+m.Length > 16*b {
					event = append(event, block.MediaInBlock(m.ID, 16*b, m.Offset-16*b))
				}
			}
		}
		require.Equal(t, h.AppendHashes(nil, tokens, items), h.AppendHashes(nil, tokens, event))
		require.Equal(t, h.AppendKeys(nil, tokens, items), h.AppendKeys(nil, tokens, event))
		for b := range event {
			require.NoError(t, h.CheckMedia(event[b:b+1]))
		}
	})
}

// A list in which everything is wrong gives an error that can still be read.
func TestCheckMediaTellsSome(t *testing.T) {
	err := newHasher(t, block.Scope{}, 16).CheckMedia(make([]block.Media, block.MaxMedia))
	require.ErrorIs(t, err, block.ErrMediaID)
	require.Less(t, len(err.Error()), 20_000)
}
