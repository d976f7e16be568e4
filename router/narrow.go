package router

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/stator-go/stator/kvindex"
)

// A WholeLister is a policy that may have to see every candidate. Others are
// shown a part when there are more than Options.MaxCandidates: the rows that hold
// some of the prompt, and as many others drawn at random.
type WholeLister interface {
	// WholeList says whether the policy must see all candidates. New asks once.
	WholeList() bool
}

// narrower is what bounds the number of rows that a pick scores. Over the bound,
// the rows are those that the index lists for the chain, those whose outstanding
// requests share its beginning, and as many as the bound drawn uniformly from the
// rest. No step of it takes time for each worker but to clear and read one bit.
// (View.fill clears its tables whole, four bytes a worker and table: about 1 us for
// 10,000 workers.)
//
// The best of 512 drawn ones is on average the 1/513 quantile of all, so little
// is lost against the best of all; and routers that see the same reports draw
// different ones, which keeps them from herding.
type narrower struct {
	bound int // most rows of one kind; negative = none
	plain bool

	chosen []uint64 // bits by place in the worker list
	rows   []*worker
	byNum  []*worker // the worker list by slot number
	byID   []*worker // and by worker id; nil for those that have left
	// decks are the open workers of a role in whatever order the draws left them
	// in. A partial shuffle draws uniformly from any order.
	decks  [roles][]*worker
	listed []listing
}

// A listing is one group or pair of an overlap.
type listing struct {
	depth uint32
	tier  kvindex.Tier
	group bool
	at    uint32 // index of the group, slot number of the pair
}

// compare puts the deepest first, then the fastest tier, then slot numbers of at
// least from before lower ones, which wrap around.
func (l listing) compare(m listing, from uint32) int {
	kind := 0
	if l.group != m.group {
		kind = 1
		if m.group {
			kind = -1
		}
	}
	return cmp.Or(cmp.Compare(m.depth, l.depth), cmp.Compare(l.tier, m.tier), kind, cmp.Compare(l.at-from, m.at-from))
}

// over says whether n candidates are more than a pick scores.
func (n *narrower) over(candidates int) bool { return n.bound >= 0 && candidates > n.bound }

// resize follows a change of the worker list.
func (n *narrower) resize(r *Router, top uint32) {
	*n = narrower{bound: n.bound}
	if !n.over(len(r.rows)) {
		return
	}
	n.chosen = make([]uint64, (len(r.rows)+63)/64)
	n.rows = make([]*worker, 0, len(r.rows))
	n.byNum = make([]*worker, top+1)
	n.byID = make([]*worker, r.nextID)
	for _, w := range r.rows {
		n.byNum[w.Slot.Num()], n.byID[w.id] = w, w
	}
	for role, open := range r.open {
		if n.over(len(open)) {
			n.decks[role] = slices.Clone(open)
		}
	}
}

// choose marks a worker and says whether it was not.
func (n *narrower) choose(w *worker) bool {
	word, bit := &n.chosen[w.pos/64], uint64(1)<<(w.pos%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// collect is the chosen ones in the order of the worker list.
func (n *narrower) collect(list []*worker) []*worker {
	n.rows = n.rows[:0]
	for j, word := range n.chosen {
		for ; word != 0; word &= word - 1 {
			n.rows = append(n.rows, list[j*64+bits.TrailingZeros64(word)])
		}
	}
	return n.rows
}

// narrow cuts the view's rows down to the bound; false when they are within it
// or all have to stay. The view is filled.
func (r *Router) narrow(ov *kvindex.Overlap) bool {
	n, v := &r.narrower, &r.view
	if !n.over(len(v.rows)) {
		return false
	}
	clear(n.chosen)
	rest := len(v.rows) - r.chooseListed(ov) - r.chooseInFlight()
	narrowed := rest > n.bound
	if narrowed {
		deck := r.filtered
		if n.plain {
			deck = n.decks[v.role]
		}
		for i, left := 0, n.bound; left > 0; i++ {
			k := i + v.Intn(len(deck)-i)
			deck[i], deck[k] = deck[k], deck[i]
			if n.choose(deck[i]) {
				left--
			}
		}
		v.rows = n.collect(r.rows)
	}
	if n.plain && r.quiet > 0 {
		for _, w := range v.rows {
			r.settle(w, v.now)
		}
	}
	return narrowed
}

// widen gives the view back all rows that narrow left out.
func (r *Router) widen() {
	n, v := &r.narrower, &r.view
	if n.plain {
		v.rows = r.open[v.role]
		if r.quiet > 0 {
			r.settleAll(v.now)
		}
		return
	}
	for _, w := range r.filtered {
		n.choose(w)
	}
	v.rows = n.collect(r.rows)
}

// eligible says whether a worker, nil for none, is among the candidates.
func (r *Router) eligible(w *worker) bool {
	return w != nil && !w.Draining && w.serves(r.view.role) && (r.narrower.plain || w.passed == r.seq)
}

// chooseListed chooses those that the overlap lists, the deepest first when they
// are more than the bound, and returns their number. Where the bound cuts a
// depth in two, it goes on from a random slot number, so that not the same ones
// are left out each time.
func (r *Router) chooseListed(ov *kvindex.Overlap) (chosen int) {
	n := &r.narrower
	n.listed = n.listed[:0]
	total := 0
	for t := range kvindex.Tier(kvindex.Tiers) {
		for i, g := range ov.Groups(t) {
			for _, word := range ov.Words(t, g) {
				total += bits.OnesCount64(word)
			}
			n.listed = append(n.listed, listing{g.Depth, t, true, uint32(i)})
		}
		for _, p := range ov.Pairs(t) {
			n.listed = append(n.listed, listing{p.Depth, t, false, p.Num})
			total++
		}
	}
	from := uint32(0)
	if total > n.bound {
		from = uint32(r.view.Intn(len(n.byNum)))
		slices.SortFunc(n.listed, func(a, b listing) int { return a.compare(b, from) })
	}
	for _, l := range n.listed {
		if chosen == n.bound {
			break
		}
		if !l.group {
			chosen += r.chooseNum(l.at)
			continue
		}
		g := ov.Groups(l.tier)[l.at]
		chosen += r.chooseGroup(g.Base, ov.Words(l.tier, g), from, n.bound-chosen)
	}
	return chosen
}

// chooseNum chooses an eligible worker by slot number and returns 1 if it was not
// chosen before.
func (r *Router) chooseNum(num uint32) int {
	n := &r.narrower
	if int(num) < len(n.byNum) && r.eligible(n.byNum[num]) && n.choose(n.byNum[num]) {
		return 1
	}
	return 0
}

// chooseGroup chooses up to room members of a group, those with numbers of at
// least from first.
func (r *Router) chooseGroup(base uint32, words []uint64, from uint32, room int) (chosen int) {
	for _, below := range []bool{false, true} {
		for j, word := range words {
			first := (uint64(base) + uint64(j)) * 64
			mask := ^uint64(0) // bits of numbers from on
			if first+64 <= uint64(from) {
				mask = 0
			} else if first < uint64(from) {
				mask <<= uint64(from) - first
			}
			if below {
				mask = ^mask
			}
			for word &= mask; word != 0; word &= word - 1 {
				if chosen == room {
					return chosen
				}
				chosen += r.chooseNum(uint32(first) + uint32(bits.TrailingZeros64(word)))
			}
		}
	}
	return chosen
}

// chooseInFlight chooses those whose outstanding requests share the beginning of
// the chain last walked, from the deepest run up, to as many as the bound, and
// returns how many it added.
func (r *Router) chooseInFlight() (chosen int) {
	n, t := &r.narrower, r.trie
	for at := t.tip.node; at != 0 && chosen < n.bound; at = t.nodes[at].parent {
		refs := t.nodes[at].refs
		from := 0
		if len(refs) > n.bound {
			from = r.view.Intn(len(refs))
		}
		for k := range refs {
			if k += from; k >= len(refs) {
				k -= len(refs)
			}
			if w := n.byID[refs[k].worker]; chosen < n.bound && r.eligible(w) && n.choose(w) {
				chosen++
			}
		}
	}
	return chosen
}
