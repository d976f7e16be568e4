package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex/block"
)

// naiveChains is the definition of the trie: the chains, each with its worker.
type naiveChains []struct {
	worker uint32
	chain  []block.Hash
}

func (n naiveChains) depth(worker uint32, chain []block.Hash) int {
	best := 0
	for _, c := range n {
		if c.worker == worker {
			best = max(best, common(c.chain, chain))
		}
	}
	return best
}

// distinct counts different prefixes, since a block is its whole prefix.
func (n naiveChains) distinct(worker uint32) int {
	seen := map[string]bool{}
	for _, c := range n {
		if c.worker != worker {
			continue
		}
		key := ""
		for _, h := range c.chain {
			key += string(rune(h)) + ","
			seen[key] = true
		}
	}
	return len(seen)
}

// checkTrie verifies the invariants in the type comment.
func checkTrie(t require.TestingT, tr *trie, outstanding int) {
	kids := make([]int, len(tr.nodes))
	ends, live := 0, 0
	for _, at := range tr.table.slots {
		if at == 0 {
			continue
		}
		live++
		n := &tr.nodes[at]
		kids[n.parent]++
		ends += int(n.ends)
		require.NotEmpty(t, n.run)
		require.NotEmpty(t, n.refs)
		for i, r := range n.refs {
			require.Positive(t, r.n)
			if i > 0 {
				require.Less(t, n.refs[i-1].worker, r.worker, "sorted")
			}
			if n.parent != 0 {
				p := &tr.nodes[n.parent]
				j, ok := p.find(r.worker)
				require.True(t, ok)
				require.LessOrEqual(t, r.n, p.refs[j].n)
			}
		}
	}
	for _, at := range tr.table.slots {
		if at != 0 {
			n := &tr.nodes[at]
			require.Equal(t, kids[at], int(n.kids))
			require.False(t, n.kids == 1 && n.ends == 0, "node %d should be merged", at)
		}
	}
	require.Equal(t, tr.live, live)
	require.LessOrEqual(t, live, 2*outstanding)
	require.LessOrEqual(t, ends, outstanding)
}

func TestTrieAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const workers = 4
		tr := newTrie()
		var (
			model naiveChains
			ends  []uint32
			size  [workers]int
		)
		// Chains over a small alphabet, so that they share, split, contain one
		// another, and also name the same block behind different prefixes.
		chain := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) block.Hash {
			return block.Hash(rapid.Uint64Range(1, 3).Draw(t, "block"))
		}), 0, 12)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(model) > 0 && rapid.Bool().Draw(t, "remove") {
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				size[model[i].worker] -= tr.remove(model[i].worker, ends[i])
				model = append(model[:i], model[i+1:]...)
				ends = append(ends[:i], ends[i+1:]...)
			} else {
				c, w := chain.Draw(t, "chain"), rapid.Uint32Range(0, workers-1).Draw(t, "worker")
				var depth [workers]uint32
				tr.walk(depth[:], c)
				for k := range depth {
					require.Equal(t, model.depth(uint32(k), c), int(depth[k]), "worker %d", k)
				}
				end, grown := tr.insert(w, c)
				size[w] += grown
				ends = append(ends, end)
				model = append(model, struct {
					worker uint32
					chain  []block.Hash
				}{w, c})
			}
			for k := range size {
				require.Equal(t, model.distinct(uint32(k)), size[k], "worker %d", k)
			}
			checkTrie(t, tr, len(model))
		}
		for i := range model {
			size[model[i].worker] -= tr.remove(model[i].worker, ends[i])
		}
		require.Zero(t, size)
		checkTrie(t, tr, 0)
	})
}

// A chain that is split by every short-lived neighbour must come back to one
// node each time, or long-lived requests would crumble into single blocks.
func TestTrieMergesAfterSplits(t *testing.T) {
	tr := newTrie()
	long := chainOf(1, 200)
	depth := make([]uint32, 2)
	tr.walk(depth, long)
	end, grown := tr.insert(0, long)
	require.Equal(t, 200, grown)
	for k := 1; k < 200; k++ {
		tr.walk(depth, branch(long[:k], 99, 5))
		other, grown := tr.insert(1, branch(long[:k], 99, 5))
		require.Equal(t, k+5, grown)
		require.Equal(t, 3, tr.live)
		require.Equal(t, k+5, tr.remove(1, other))
		require.Equal(t, 1, tr.live)
	}
	require.Equal(t, long, tr.nodes[end].run)
	require.Equal(t, 200, tr.remove(0, end))
	require.Zero(t, tr.live)
}
