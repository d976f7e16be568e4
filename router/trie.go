package router

import (
	"slices"

	"github.com/stator-go/stator/kvindex/block"
)

// A trie holds the chains of all outstanding requests as runs of blocks. Every
// node counts, per worker, the requests whose chain goes through it, so shared
// prefixes are stored and counted once.
//
// Invariants: a node other than the root has a run of at least one block and a
// reference of at least one worker; a worker's count in a node is at least its
// count in each child; a node with one child and no request that ends in it is
// merged into the child, so the trie has at most twice as many nodes as there
// are outstanding requests with different chains.
//
// Nodes are named by number and never move to another one while a request ends
// in them: a split puts a new node above, a merge keeps the lower one. Freed nodes
// and their memory are used again; in a steady state nothing is allocated. What
// freed nodes keep is bounded, and short runs do not take the memory of long ones,
// so that a burst of long prompts leaves nothing behind for good.
type trie struct {
	nodes []node
	free  [2]uint32 // lists of freed nodes, linked by parent, with memory for short and for long runs; 0 = empty
	kept  int       // blocks for which freed nodes keep memory
	live  int
	table childTable

	tip tip // where the last walk ended
}

// node 0 is the root: no run, no references.
type node struct {
	run    []block.Hash
	refs   []workerRef // sorted by worker
	parent uint32
	kids   uint32 // number of children
	kidXor uint32 // exclusive or of the children's numbers: the child when there is one
	ends   uint32 // outstanding requests whose chain ends here
}

// A workerRef is how many requests on a worker go through a node.
type workerRef struct {
	worker uint32
	n      uint32
}

// A tip is the place where a walk left the trie: off blocks into the run of
// node, after depth blocks of the chain.
type tip struct {
	node       uint32
	off, depth int
}

const (
	// maxKeptRun bounds the memory a freed node keeps, in blocks, and maxKept that
	// of all of them.
	maxKeptRun = 1 << 13
	maxKept    = 1 << 20
	// shortRun is the longest run that counts as short.
	shortRun = 1 << 9
	// maxKeptRefs bounds the references for which a freed node keeps memory.
	maxKeptRefs = 1 << 7
)

func newTrie() *trie { return &trie{nodes: make([]node, 1, 64)} }

// walk follows chain and writes into depth, indexed by worker, how many leading
// blocks of it each worker's outstanding requests hold. Entries of workers that
// hold none are left as they are. Workers beyond depth must not occur.
func (t *trie) walk(depth []uint32, chain []block.Hash) {
	at, pos := uint32(0), 0
	for pos < len(chain) {
		next := t.table.find(t.nodes, at, chain[pos])
		if next == 0 {
			break
		}
		n := &t.nodes[next]
		k := common(n.run, chain[pos:])
		pos += k
		for _, r := range n.refs {
			depth[r.worker] = uint32(pos)
		}
		at = next
		if k < len(n.run) {
			t.tip = tip{at, k, pos}
			return
		}
	}
	t.tip = tip{at, len(t.nodes[at].run), pos}
}

// common is the length of the common prefix.
func common(a, b []block.Hash) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// insert adds one request on worker whose chain was the last one walked, with
// no change of the trie since. It returns the node in which the chain ends, to
// be handed to remove, and how many distinct blocks the worker holds more.
func (t *trie) insert(worker uint32, chain []block.Hash) (end uint32, grown int) {
	end = t.tip.node
	if t.tip.off < len(t.nodes[end].run) {
		end = t.split(end, t.tip.off)
	}
	if t.tip.depth < len(chain) {
		end = t.leaf(end, chain[t.tip.depth:])
	}
	for at := end; at != 0; at = t.nodes[at].parent {
		if t.nodes[at].add(worker) {
			grown += len(t.nodes[at].run)
		}
	}
	t.nodes[end].ends++
	return end, grown
}

// remove takes away one request on worker that ends in node end and returns how
// many distinct blocks the worker holds less.
func (t *trie) remove(worker, end uint32) (shrunk int) {
	t.nodes[end].ends--
	for at := end; at != 0; at = t.nodes[at].parent {
		if t.nodes[at].drop(worker) {
			shrunk += len(t.nodes[at].run)
		}
	}
	at := end
	for at != 0 && len(t.nodes[at].refs) == 0 {
		up := t.nodes[at].parent
		t.unlink(at)
		t.release(at)
		at = up
	}
	if n := &t.nodes[at]; at != 0 && n.kids == 1 && n.ends == 0 {
		t.merge(at, n.kidXor)
	}
	return shrunk
}

// leaf adds a child of parent with the given run and no references yet.
func (t *trie) leaf(parent uint32, run []block.Hash) uint32 {
	at := t.alloc(len(run))
	n := &t.nodes[at]
	n.run = append(n.run[:0], run...)
	t.link(parent, at)
	return at
}

// split moves the first k blocks of a node into a new one above it.
func (t *trie) split(at uint32, k int) uint32 {
	up := t.alloc(k)
	n, u := &t.nodes[at], &t.nodes[up]
	parent := n.parent
	t.unlink(at)
	u.run = append(u.run[:0], n.run[:k]...)
	u.refs = append(u.refs[:0], n.refs...)
	n.run = n.run[:copy(n.run, n.run[k:])]
	t.link(parent, up)
	t.link(up, at)
	return up
}

// merge puts the run of a node in front of its only child's and frees the node.
func (t *trie) merge(at, child uint32) {
	n, c := &t.nodes[at], &t.nodes[child]
	parent := n.parent
	t.unlink(child)
	t.unlink(at)
	n.run, c.run = c.run, append(n.run, c.run...)
	t.link(parent, child)
	t.release(at)
}

// link makes a node a child of parent; its run must be set.
func (t *trie) link(parent, at uint32) {
	n, p := &t.nodes[at], &t.nodes[parent]
	n.parent = parent
	p.kids++
	p.kidXor ^= at
	t.table.add(t.nodes, at)
}

// unlink takes a node from its parent; its run must still be what it was.
func (t *trie) unlink(at uint32) {
	t.table.del(t.nodes, at)
	p := &t.nodes[t.nodes[at].parent]
	p.kids--
	p.kidXor ^= at
}

// alloc takes a free node for a run of the given length.
func (t *trie) alloc(blocks int) uint32 {
	t.live++
	list := &t.free[0]
	if blocks > shortRun && t.free[1] != 0 {
		list = &t.free[1]
	}
	if at := *list; at != 0 {
		n := &t.nodes[at]
		*list = n.parent
		t.kept -= cap(n.run)
		return at
	}
	t.nodes = append(t.nodes, node{})
	return uint32(len(t.nodes) - 1)
}

func (t *trie) release(at uint32) {
	n := &t.nodes[at]
	run, refs, list := n.run[:0], n.refs[:0], &t.free[0]
	if cap(run) > maxKeptRun || t.kept+cap(run) > maxKept {
		run = nil
	}
	if cap(refs) > maxKeptRefs {
		refs = nil
	}
	if cap(run) > shortRun {
		list = &t.free[1]
	}
	t.kept += cap(run)
	*n = node{run: run, refs: refs, parent: *list}
	*list = at
	t.live--
}

// add counts one more request of a worker and says whether it is the first.
func (n *node) add(worker uint32) bool {
	i, ok := n.find(worker)
	if ok {
		n.refs[i].n++
		return false
	}
	n.refs = slices.Insert(n.refs, i, workerRef{worker, 1})
	return true
}

// drop counts one request of a worker less and says whether it was the last.
func (n *node) drop(worker uint32) bool {
	i, ok := n.find(worker)
	if !ok {
		return false
	}
	if n.refs[i].n--; n.refs[i].n > 0 {
		return false
	}
	n.refs = slices.Delete(n.refs, i, i+1)
	return true
}

// find is a binary search for the worker's reference.
func (n *node) find(worker uint32) (int, bool) {
	lo, hi := 0, len(n.refs)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); n.refs[mid].worker < worker {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(n.refs) && n.refs[lo].worker == worker
}

// A childTable finds a child by its parent and the first block of its run. It
// is a hash table with linear probing that stores only node numbers: the keys
// are in the nodes.
type childTable struct {
	slots []uint32 // 0 = empty; length a power of two
	n     int
}

// place is the home position of a key before masking.
func place(parent uint32, first block.Hash) uint64 {
	h := (uint64(first) ^ uint64(parent)*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

func (c *childTable) find(nodes []node, parent uint32, first block.Hash) uint32 {
	if c.n == 0 {
		return 0
	}
	mask := uint64(len(c.slots) - 1)
	for i := place(parent, first) & mask; ; i = (i + 1) & mask {
		at := c.slots[i]
		if at == 0 || nodes[at].parent == parent && nodes[at].run[0] == first {
			return at
		}
	}
}

func (c *childTable) add(nodes []node, at uint32) {
	if 2*(c.n+1) > len(c.slots) {
		old := c.slots
		c.slots = make([]uint32, max(16, 2*len(old)))
		for _, o := range old {
			if o != 0 {
				c.put(nodes, o)
			}
		}
	}
	c.put(nodes, at)
	c.n++
}

func (c *childTable) put(nodes []node, at uint32) {
	mask := uint64(len(c.slots) - 1)
	i := place(nodes[at].parent, nodes[at].run[0]) & mask
	for c.slots[i] != 0 {
		i = (i + 1) & mask
	}
	c.slots[i] = at
}

// del empties a node's position and moves up those that had been pushed past it.
func (c *childTable) del(nodes []node, at uint32) {
	mask := uint64(len(c.slots) - 1)
	i := place(nodes[at].parent, nodes[at].run[0]) & mask
	for c.slots[i] != at {
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		o := c.slots[j]
		if o == 0 {
			break
		}
		home := place(nodes[o].parent, nodes[o].run[0]) & mask
		if (j-home)&mask >= (j-i)&mask {
			c.slots[i] = o
			i = j
		}
	}
	c.slots[i] = 0
	c.n--
}
