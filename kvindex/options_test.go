package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

func TestOptionsNameEveryFault(t *testing.T) {
	_, err := New(&Options{MaxBytes: 1, BlockTokens: block.MaxBlockTokens + 1, Scheme: "nonsense"})
	require.ErrorIs(t, err, block.ErrScheme)
	require.EqualError(t, err, `kvindex: Options.MaxBytes is 1, want at least 4194304, or 0 for no limit
kvindex: Options.BlockTokens is 65537, want 1 to 65536, or 0 for 16
kvindex: Options.Scheme is "nonsense", want "stator-blake3-1" or "dynamo-xxh3-1337", or nothing for the first: block: hash scheme does not match`)
}

// What the index carries is what the other parts of a program compare with.
func TestOptionsAreCarried(t *testing.T) {
	for _, c := range []struct {
		opts   *Options
		tokens int
		scheme block.Scheme
	}{
		{nil, 16, block.SchemeBLAKE3},
		{&Options{BlockTokens: 64, Scheme: block.SchemeDynamo}, 64, block.SchemeDynamo},
		{&Options{BlockTokens: block.MaxBlockTokens}, block.MaxBlockTokens, block.SchemeBLAKE3},
	} {
		x := newIndex(t, c.opts)
		require.Equal(t, c.tokens, x.BlockTokens())
		require.Equal(t, c.scheme, x.Scheme())
	}
}
