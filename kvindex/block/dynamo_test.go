package block_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

// The vectors are facts about Dynamo's own output for tokens 1 to 8 in blocks
// of 4.
func TestDynamoVectors(t *testing.T) {
	h, err := block.NewHasher(block.Scope{Model: "any"}, 4, &block.Options{Scheme: block.SchemeDynamo})
	require.NoError(t, err)
	got := h.AppendHashes(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}, nil)
	require.Equal(t, []block.Hash{14643705804678351452, 4945711292740353085}, got)
	require.Equal(t, block.Hash(16777012769546811212), h.AppendHashes(nil, []uint32{5, 6, 7, 8}, nil)[0])
	require.Equal(t, got[1:], h.Extend(nil, got[0], true, []uint32{5, 6, 7, 8}, nil))
}

func TestDynamoScope(t *testing.T) {
	o := &block.Options{Scheme: block.SchemeDynamo}
	_, err := block.NewHasher(block.Scope{Model: "m", Revision: "r"}, 16, o)
	require.NoError(t, err)
	for _, s := range []block.Scope{{Adapter: "a"}, {Tenant: "t"}, {Group: "1"}} {
		_, err := block.NewHasher(s, 16, o)
		if !errors.Is(err, block.ErrScope) {
			t.Errorf("%+v: got %v, want ErrScope", s, err)
		}
	}
}

// Dynamo has no fixed form for media and byte chains. They get names of their
// own: as many as there are blocks, and none that a text chain could have.
func TestDynamoForeignForms(t *testing.T) {
	h, err := block.NewHasher(block.Scope{}, 4, &block.Options{Scheme: block.SchemeDynamo})
	require.NoError(t, err)
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	text := h.AppendHashes(nil, tokens, nil)
	seen := map[block.Hash]bool{text[0]: true, text[1]: true}
	for _, m := range [][]block.Media{
		{{ID: "a", Offset: 0, Length: 2}},
		{{ID: "a", Offset: 1, Length: 2}},
		{{ID: "b", Offset: 0, Length: 2}},
	} {
		require.ErrorIs(t, h.CheckMedia(m), block.ErrMediaScheme)
		got := h.AppendHashes(nil, tokens, m)
		require.Len(t, got, 2)
		for _, x := range got {
			require.False(t, seen[x], "hash %s twice", x)
			seen[x] = true
		}
	}
	raw := make([]byte, 32)
	for i := range tokens {
		raw[4*i] = byte(tokens[i])
	}
	for _, x := range h.AppendBytes(nil, raw, nil) {
		require.False(t, seen[x], "byte chain gives a token chain's hash")
	}
}
