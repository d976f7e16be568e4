package pool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// routerOver makes a router over an index of the given options, nil: over none.
func routerOver(t *testing.T, o *kvindex.Options, tokens int) *router.Router {
	t.Helper()
	var ix router.Index
	if o != nil {
		x, err := kvindex.New(o)
		require.NoError(t, err)
		ix = x
	}
	r, err := router.New(ix, &router.Options{BlockTokens: tokens})
	require.NoError(t, err)
	return r
}

// A pool that hashes otherwise than its router's index does is refused: nothing
// would ever match.
func TestPoolMustHashAsItsRouter(t *testing.T) {
	dynamo := &kvindex.Options{BlockTokens: 32, Scheme: block.SchemeDynamo}
	_, err := New(routerOver(t, dynamo, 0), &Options{BlockTokens: 16, Scheme: block.SchemeBLAKE3, MaxAttempts: -1})
	require.ErrorIs(t, err, block.ErrScheme)
	require.EqualError(t, err, `pool: Options.MaxAttempts is -1, want > 0, or 0 for 3
pool: Options.BlockTokens is 16, but the router has blocks of 32
pool: Options.Scheme is "stator-blake3-1", but the router's index has "dynamo-xxh3-1337": block: hash scheme does not match`)
	_, err = New(routerOver(t, nil, 64), &Options{BlockTokens: 16})
	require.EqualError(t, err, "pool: Options.BlockTokens is 16, but the router has blocks of 64")

	for _, c := range []struct {
		index, want *kvindex.Options
		tokens      int // of the router
		opts        *Options
	}{
		{dynamo, dynamo, 0, nil}, // takes what the index has
		{dynamo, dynamo, 32, &Options{BlockTokens: 32, Scheme: block.SchemeDynamo}},
		{nil, &kvindex.Options{BlockTokens: 64}, 64, nil},
		{nil, dynamo, 32, &Options{Scheme: block.SchemeDynamo}}, // nothing to compare with
		{&kvindex.Options{}, &kvindex.Options{BlockTokens: 16, Scheme: block.SchemeBLAKE3}, 0, &Options{}},
	} {
		p, err := New(routerOver(t, c.index, c.tokens), c.opts)
		require.NoError(t, err)
		require.Equal(t, c.want.BlockTokens, p.opts.BlockTokens)
		require.Equal(t, c.want.Scheme, p.opts.Scheme)
	}
}

// Every message names the field, what it is, and what it may be.
func TestOptionMessages(t *testing.T) {
	_, err := newPool(&fakeRouter{}, &Options{BlockTokens: -1, MaxScopes: -2, GuessBlocks: -3, MaxAttempts: -4, RetryBurst: -5,
		TokenizeTimeout: -time.Second, Backoff: -time.Millisecond, RetryRatio: 1.5})
	require.EqualError(t, err, `pool: Options.BlockTokens is -1, want > 0, or 0 for the router's
pool: Options.MaxScopes is -2, want > 0, or 0 for 1024
pool: Options.GuessBlocks is -3, want > 0, or 0 for 32768
pool: Options.MaxAttempts is -4, want > 0, or 0 for 3
pool: Options.RetryBurst is -5, want > 0, or 0 for 256
pool: Options.TokenizeTimeout is -1s, want > 0, or 0 for 5 s
pool: Options.Backoff is -1ms, want > 0, or 0 for 20 ms
pool: Options.RetryRatio is 1.5, want > 0 and at most 1, or 0 for 0.2`)
}
