package kvindex

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex/block"
)

// A block that a slot holds under two names goes with the first removal, by
// either; the other name must not come to mean what is put in its place.
func TestTwoNamesOfOneBlock(t *testing.T) {
	for first, second := range map[uint64]uint64{1: 2, 2: 1} {
		x := newIndex(t, nil)
		s := x.Attach("w", 0)
		_, err := x.storeNamed(s, TierGPU, parentRef{}, 0, []uint64{1}, []block.Hash{100}, nil)
		require.NoError(t, err)
		dup, err := x.storeNamed(s, TierGPU, parentRef{}, 0, []uint64{2}, []block.Hash{100}, nil)
		require.NoError(t, err)
		require.Equal(t, []uint64{2}, dup)
		require.True(t, x.holdsNamed(s, TierGPU, 1))
		require.True(t, x.holdsNamed(s, TierGPU, 2))
		require.Zero(t, x.removeNamed(s, TierGPU, []uint64{first}))
		_, err = x.storeNamed(s, TierGPU, parentRef{}, 0, []uint64{3}, []block.Hash{300}, nil)
		require.NoError(t, err)
		for _, name := range []uint64{1, 2} {
			_, _, _, ok := x.resolve(s, name)
			require.False(t, ok, "name %d after removal of %d", name, first)
			require.False(t, x.holdsNamed(s, TierGPU, name))
		}
		_, err = x.storeNamed(s, TierGPU, parentRef{has: true, name: second}, 0, []uint64{4}, []block.Hash{400}, nil)
		require.ErrorIs(t, err, ErrParent)
		require.Equal(t, 1, x.removeNamed(s, TierGPU, []uint64{second}))
		require.Zero(t, x.removeNamed(s, TierGPU, []uint64{3}))
		require.Equal(t, 0, x.Stats().Blocks)
		require.NoError(t, x.check())
		x.purge(x.slot(s))
		require.Zero(t, x.Stats().SideNames)
	}
}

// A name that another slot gave to a block means nothing to a slot that shares
// other blocks with it and does not hold this one: engines whose names leave out
// the salt call different blocks so.
func TestNamesOfOthers(t *testing.T) {
	x := newIndex(t, nil)
	a, b := x.Attach("a", 0), x.Attach("b", 0)
	put := func(s Slot, name uint64, h block.Hash) {
		t.Helper()
		_, err := x.storeNamed(s, TierGPU, parentRef{}, 0, []uint64{name}, []block.Hash{h}, nil)
		require.NoError(t, err)
	}
	put(a, 7, 70)
	put(b, 7, 70) // b looks into the map of a from now on
	put(a, 1, 100)
	_, _, _, ok := x.resolve(b, 1)
	require.False(t, ok)
	_, unknown, err := x.storeKnown(b, TierCPU, []uint64{1}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, unknown)
	_, err = x.storeNamed(b, TierGPU, parentRef{has: true, name: 1}, 0, []uint64{2}, []block.Hash{200}, nil)
	require.ErrorIs(t, err, ErrParent)
	require.Equal(t, 1, x.removeNamed(b, TierGPU, []uint64{1}))

	put(b, 1, 101)
	h, _, _, ok := x.resolve(b, 1)
	require.True(t, ok)
	require.EqualValues(t, 101, h)
	require.Zero(t, x.removeNamed(b, TierGPU, []uint64{1}))
	require.True(t, x.holdsNamed(a, TierGPU, 1))
	require.Equal(t, [Tiers]int{1}, x.Held(b))

	require.Zero(t, x.removeNamed(a, TierGPU, []uint64{7})) // a named it and b holds it still
	h, _, _, ok = x.resolve(a, 7)
	require.True(t, ok)
	require.EqualValues(t, 70, h)
	require.NoError(t, x.check())
}

// An engine that makes new names for one block for ever, and never removes them,
// is refused at a bound, and has room again when its blocks are gone.
func TestSideNamesAreBounded(t *testing.T) {
	x := newIndex(t, nil)
	s := x.Attach("w", 0)
	c := chainOf(1, 64)
	made, refused := 0, 0
	store := func() []uint64 {
		names := make([]uint64, len(c))
		for i := range names {
			made++
			names[i] = uint64(made)
		}
		if _, err := x.storeNamed(s, TierGPU, parentRef{}, 0, names, c, nil); err != nil {
			require.ErrorIs(t, err, ErrBudget)
			refused++
		}
		return names
	}
	for range 200 {
		first := store()
		store()
		x.removeNamed(s, TierGPU, first)
	}
	require.NotZero(t, refused)
	require.LessOrEqual(t, x.Stats().SideNames, sideNamesSpare+sideNamesPerBlock*len(c)+len(c))
	require.NoError(t, x.check())
	x.Clear(s)
	refused = 0
	store()
	store()
	require.Zero(t, refused)
	require.NoError(t, x.check())
}

// Names that lost their block are dropped in the course of time.
func TestStaleNamesGo(t *testing.T) {
	x := newIndex(t, nil)
	s := x.Attach("w", 0)
	for i := range 400 {
		c := chainOf(uint64(i), 64)
		other := make([]uint64, len(c))
		for j, h := range c {
			other[j] = uint64(h) + 1
		}
		_, err := x.storeNamed(s, TierGPU, parentRef{}, 0, asWords(c), c, nil)
		require.NoError(t, err)
		_, err = x.storeNamed(s, TierGPU, parentRef{}, 0, other, c, nil)
		require.NoError(t, err)
		require.Zero(t, x.removeNamed(s, TierGPU, asWords(c)))
	}
	require.LessOrEqual(t, len(x.slot(s).side.slots), 512)
	x.slot(s).side.loose = 1 << 20 // as after many removals
	x.Sweep()
	require.Zero(t, x.Stats().SideNames)
	require.NoError(t, x.check())
}

// aliasSlot is what a slot must hold, and the names that must find it: those
// given since the block was last stored anew.
type aliasSlot struct {
	s     Slot
	held  [Tiers]map[block.Hash]bool
	names map[uint64]bool
}

func (k *aliasSlot) any(h block.Hash) bool { return k.held[0][h] || k.held[1][h] }

// TestNamesRapid gives blocks of few slots several names each, and compares what
// every name means with sets: a name may mean nothing once its block went by
// another, but never another block.
func TestNamesRapid(t *testing.T) {
	const salts = 3
	chains := [][]block.Hash{chainOf(1, 6), chainOf(2, 6)}
	chains[1] = append(append([]block.Hash{}, chains[0][:3]...), chains[1][3:]...)
	nameOf := func(h block.Hash, salt int) uint64 { return uint64(h) ^ uint64(salt)<<7 }
	rapid.Check(t, func(t *rapid.T) {
		x, _ := New(nil)
		idle := x.Bytes()
		var slots []*aliasSlot
		for i := range rapid.IntRange(1, 3).Draw(t, "slots") {
			k := &aliasSlot{s: x.Attach(fmt.Sprint(i), 0), names: map[uint64]bool{}}
			k.held[0], k.held[1] = map[block.Hash]bool{}, map[block.Hash]bool{}
			slots = append(slots, k)
		}
		slot, salt := rapid.SampledFrom(slots), rapid.IntRange(0, salts-1)
		tier := rapid.SampledFrom([]Tier{TierGPU, TierCPU})
		forget := func(k *aliasSlot, h block.Hash) {
			if !k.any(h) {
				for i := range salts {
					delete(k.names, nameOf(h, i))
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				k, u, c := slot.Draw(t, "slot"), tier.Draw(t, "tier"), rapid.SampledFrom(chains).Draw(t, "chain")
				from := rapid.IntRange(0, len(c)-1).Draw(t, "from")
				to := rapid.IntRange(from+1, len(c)).Draw(t, "to")
				p := parentRef{has: from > 0}
				if p.has {
					p.name = nameOf(c[from-1], salt.Draw(t, "parent"))
				}
				var names []uint64
				for range c[from:to] {
					names = append(names, nameOf(c[from+len(names)], salt.Draw(t, "salt")))
				}
				dup, err := x.storeNamed(k.s, u, p, 0, names, c[from:to], nil)
				if err != nil {
					if !p.has || k.names[p.name] {
						t.Fatal(err)
					}
					return
				}
				for i, h := range c[from:to] {
					was := false
					for _, d := range dup {
						was = was || d == names[i]
					}
					if was != k.held[u][h] {
						t.Fatalf("block %d: held before %v, want %v", i, was, k.held[u][h])
					}
					k.held[u][h], k.names[names[i]] = true, true
				}
			},
			"remove": func(t *rapid.T) {
				k, u, c := slot.Draw(t, "slot"), tier.Draw(t, "tier"), rapid.SampledFrom(chains).Draw(t, "chain")
				h := rapid.SampledFrom(c).Draw(t, "block")
				name := nameOf(h, salt.Draw(t, "salt"))
				must := k.held[u][h] && k.names[name]
				if gone := x.removeNamed(k.s, u, []uint64{name}) == 0; must && !gone || gone && !k.held[u][h] {
					t.Fatalf("removed %v, must %v, held %v", gone, must, k.held[u][h])
				} else if gone {
					delete(k.held[u], h)
					forget(k, h)
				}
			},
			"clear": func(t *rapid.T) {
				k, u := slot.Draw(t, "slot"), tier.Draw(t, "tier")
				x.Clear(k.s, u)
				old := k.held[u]
				k.held[u] = map[block.Hash]bool{}
				for h := range old {
					forget(k, h)
				}
			},
			"sweep": func(*rapid.T) { x.Sweep() },
			"": func(t *rapid.T) {
				for _, k := range slots {
					for _, c := range chains {
						for _, h := range c {
							for i := range salts {
								name := nameOf(h, i)
								got, _, _, ok := x.resolve(k.s, name)
								if ok && got != h || !ok && k.names[name] {
									t.Fatalf("%v: name %x means %x (%v), want %x", k.s, name, got, ok, h)
								}
								for _, u := range []Tier{TierGPU, TierCPU} {
									has := x.holdsNamed(k.s, u, name)
									if has && !k.held[u][h] || !has && k.held[u][h] && k.names[name] {
										t.Fatalf("%v: name %x in %v: %v", k.s, name, u, has)
									}
								}
							}
						}
					}
				}
				if err := x.check(); err != nil {
					t.Fatal(err)
				}
			},
		})
		for _, k := range slots {
			x.Detach(k.s)
		}
		x.Sweep()
		if got := x.Bytes(); got != idle {
			t.Fatalf("%d bytes left, %d when idle", got, idle)
		}
	})
}
