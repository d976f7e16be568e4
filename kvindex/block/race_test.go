//go:build race

package block_test

// Under the race detector a sync.Pool forgets at random, so the working memory
// of media, long blocks and byte chains is made anew now and then.
const poolForgets = true
