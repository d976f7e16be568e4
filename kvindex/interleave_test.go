package kvindex

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

// epochs is what a slot number stood for during a lookup, one attachment or time
// between two clears after another: all that each ever held, by tier.
type epochs map[uint32][]*[Tiers]map[block.Hash]bool

// TestInterleavings puts writers' work between the single reads of a lookup, at
// random places, and holds the answer against what every slot held at any moment
// of it. Nothing may be counted that was not there, nor blocks of two workers, or
// from before and after a clear, put together. This finds in one goroutine what
// parallel readers meet once in a million lookups.
func TestInterleavings(t *testing.T) {
	for _, c := range []struct {
		name         string
		slots, tiers int
		kind         string
	}{
		{"gpu", 4, 1, "h"},
		{"tiers", 4, 4, "hn"},
		{"many", 90, 2, "nnd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(modelSeeds) {
				if err := interleave(seed, c.slots, c.tiers, c.kind, writerRounds/(1+c.slots/30)); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

func interleave(seed uint64, slots, tiers int, kind string, rounds int) error {
	r := rand.New(rand.NewPCG(seed, 11))
	x, err := New(nil)
	if err != nil {
		return err
	}
	idle := x.Bytes()
	m := &treeModel{x: x}
	m.attach(slots, kind)
	cs := makeChains(r, 5, 12)
	var o Overlap
	var failed error
	for range rounds {
		if err := m.step(r, cs, tiers); err != nil {
			return err
		}
		q := cs[r.IntN(len(cs))]
		seen := epochs{}
		m.note(seen, nil)
		left := 1 + r.IntN(4) // few changes, so that what is wrong is not corrected
		w := walk{x: x, o: &o, q: asWords(q)}
		w.between = func() {
			if left == 0 || r.IntN(4) > 0 || failed != nil {
				return
			}
			left--
			for range 1 + r.IntN(3) {
				before := m.cleared()
				switch n := r.IntN(6); {
				case n == 0 && slots < 10:
					i := r.IntN(slots)
					x.Detach(m.slots[i].s)
					x.Sweep()
					m.again(r.IntN(slots)) // the number may go to another
					m.again(i)
				case n == 1 && slots < 10:
					k := m.slots[r.IntN(slots)]
					x.Clear(k.s)
					k.reset()
				default:
					failed = m.step(r, cs, tiers)
				}
				m.note(seen, before)
			}
		}
		w.lookup()
		if failed != nil {
			return failed
		}
		if err := seen.judge(&o, q); err != nil {
			return err
		}
	}
	if err := x.check(); err != nil {
		return err
	}
	return m.finish(idle)
}

// cleared notes, by slot number, which sets stand for it: a clear or another
// attachment replaces them.
func (m *treeModel) cleared() map[uint32]map[block.Hash]bool {
	out := map[uint32]map[block.Hash]bool{}
	for _, k := range m.slots {
		out[k.s.Num()] = k.held[0]
	}
	return out
}

// note adds what is held now to what was seen. Sets that changed their identity
// since before begin a new epoch.
func (m *treeModel) note(seen epochs, before map[uint32]map[block.Hash]bool) {
	for _, k := range m.slots {
		num := k.s.Num()
		es := seen[num]
		if len(es) == 0 || !same(before[num], k.held[0]) {
			es = append(es, &[Tiers]map[block.Hash]bool{{}, {}, {}, {}})
			seen[num] = es
		}
		for t := range k.held {
			maps.Copy(es[len(es)-1][t], k.held[t])
		}
	}
}

// same says whether a and b are one map.
func same(a, b map[block.Hash]bool) bool {
	if a == nil || b == nil {
		return false
	}
	const probe = 0 // no block has this hash
	a[probe] = true
	_, ok := b[probe]
	delete(a, probe)
	return ok
}

// judge compares an answer with the best that any epoch of each slot allows.
func (seen epochs) judge(o *Overlap, q []block.Hash) error {
	var dense [2048]uint32
	for t := TierGPU; t < Tiers; t++ {
		o.Dense(dense[:], t)
		for num, d := range dense {
			if d == 0 {
				continue
			}
			best := 0
			for _, e := range seen[uint32(num)] {
				k := treeSlot{held: *e}
				best = max(best, k.depth(q, t))
			}
			if int(d) > best {
				return fmt.Errorf("slot number %d, tier %v: depth %d, it never had more than %d of %d", num, t, d, best, len(q))
			}
		}
	}
	return nil
}

// once runs f at the n-th window of a walk.
func once(n int, f func()) func() {
	return func() {
		if n--; n == 0 {
			f()
		}
	}
}

// A slot number that begins to stand for something else in the middle of a lookup
// must not put the blocks of both together, wherever the change comes in.
func TestLookupDoesNotMixGenerations(t *testing.T) {
	for n := 1; n < 12; n++ {
		for _, how := range []string{"another worker", "clear"} {
			x := newIndex(t, nil)
			c := chainOf(7, 64)
			keeper := x.Attach("keeper", 0) // keeps both runs where they are
			require.NoError(t, x.Store(keeper, TierDisk, 0, c[32:]))
			require.NoError(t, x.Store(keeper, TierDisk, 0, c[:32]))
			a := x.Attach("a", 0)
			require.NoError(t, x.Store(a, TierGPU, 0, c[:32]))
			var o Overlap
			w := walk{x: x, o: &o, q: asWords(c), between: once(n, func() {
				s := a
				if how == "clear" {
					x.Clear(a)
				} else {
					x.Detach(a)
					x.Sweep()
					s = x.Attach("b", 0)
					require.Equal(t, a.Num(), s.Num())
				}
				require.NoError(t, x.Store(s, TierGPU, 0, c[32:]))
			})}
			w.lookup()
			require.LessOrEqual(t, o.Depth(a, TierGPU), 32, "%s at window %d", how, n)
			require.Equal(t, 64, o.Depth(keeper, TierDisk))
		}
	}
}

// A chunk that was given back and made anew in the middle of a lookup: the reader
// must not see the old hashes under the new run.
func TestLookupFollowsNewChunks(t *testing.T) {
	for n := 1; n < 8; n++ {
		x := newIndex(t, nil)
		keeper := x.Attach("keeper", 0)
		require.NoError(t, x.Store(keeper, TierGPU, 0, chainOf(1, chunkLen))) // fills the first chunk
		old := chainOf(2, 8)
		renewed := chainOf(3, 8)
		renewed[0] = old[0] ^ 1<<20 // the same tag and place in the table of heads
		a := x.Attach("a", 0)
		require.NoError(t, x.Store(a, TierGPU, 0, old))
		require.Len(t, x.hashes.mark, 2)
		u, done := x.Attach("u", 0), false
		var o Overlap
		w := walk{x: x, o: &o, q: asWords(old), between: once(n, func() {
			x.Remove(a, TierGPU, old)
			x.Sweep()
			require.Len(t, x.hashes.mark, 1)
			done = true
			require.NoError(t, x.Store(u, TierGPU, 0, renewed))
			require.Len(t, x.hashes.mark, 2)
		})}
		w.lookup()
		if !done {
			require.Greater(t, n, 3, "windows")
			continue
		}
		require.Zero(t, o.Depth(u, TierGPU), "window %d", n)
	}
}

// A set of holders that moves into a chunk made in the middle of a lookup: the
// reader must not follow it through the directory that it had before, and lose
// workers that held everything all along without saying so.
func TestLookupFollowsNewWords(t *testing.T) {
	for _, tier := range []Tier{TierGPU, TierCPU} {
		for n := 1; n < 8; n++ {
			x := newIndex(t, nil)
			c := chainOf(1, 64)
			var slots []Slot
			for i := range 8*unit*64 + 1 {
				slots = append(slots, x.Attach("w", i))
			}
			held, late := slots[:8], slots[len(slots)-1]
			for _, s := range held {
				require.NoError(t, x.Store(s, tier, 0, c))
			}
			done := false
			var o Overlap
			w := walk{x: x, o: &o, q: asWords(c), between: once(n, func() {
				for chunks := len(x.words.mark); len(x.words.mark) == chunks; { // use up the first chunk
					require.True(t, x.words.ready(chunkLen/4, 0))
					x.words.alloc(chunkLen / 4)
				}
				for { // and what is left of it in smaller windows
					i, ok := x.words.find(unit)
					if !ok || x.words.first[i]-1 >= chunkLen {
						break
					}
					x.words.alloc(unit)
				}
				require.NoError(t, x.Store(late, tier, 0, c))
				r := x.hrun(x.findHead(uint64(c[0])))
				whole, _, _, _ := x.plane(r, tier)
				require.GreaterOrEqual(t, (uint32(*whole>>32)-1)*unit, uint32(chunkLen), "the set has not moved")
				done = true
			})}
			w.lookup()
			if !done {
				require.Greater(t, n, 3, "windows")
				continue
			}
			for _, s := range held {
				require.Equal(t, 64, o.Depth(s, tier), "%v, window %d", tier, n)
			}
		}
	}
}
