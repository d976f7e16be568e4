package kvindex

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

// Cases that indexes of this kind get wrong, one test each. Where a case is about
// events, sequences or routing it is tested there.

func newIndex(t testing.TB, o *Options) *Index {
	t.Helper()
	x, err := New(o)
	require.NoError(t, err)
	return x
}

func chainOf(seed uint64, n int) []block.Hash {
	return makeChain(rand.New(rand.NewPCG(seed, 0)), nil, 0, n)
}

func reversed(c []block.Hash) []block.Hash {
	c = slices.Clone(c)
	slices.Reverse(c)
	return c
}

// All holders are listed: no cap on holders per block hides any.
func TestEveryHolderIsListed(t *testing.T) {
	x := newIndex(t, nil)
	c := chainOf(1, 512)
	var slots []Slot
	for w := range 1000 {
		slots = append(slots, x.Attach(fmt.Sprint(w), 0))
		require.NoError(t, x.Store(slots[w], TierGPU, 0, c))
	}
	var o Overlap
	x.Lookup(&o, c)
	require.Equal(t, 1000, o.listed())
	for _, s := range slots {
		require.Equal(t, 512, o.Depth(s, TierGPU))
	}
	// A thousand holders of one prompt cost bits, not entries.
	s := x.Stats()
	require.Equal(t, 512_000, s.Holders[TierGPU])
	require.Equal(t, 512, s.Blocks)
	require.LessOrEqual(t, len(x.entries(&x.hrun(1).list)), inlineEntries)
}

// A total miss costs one probe, however long the chain.
func TestMissCostsOneProbe(t *testing.T) {
	x := newIndex(t, nil)
	s := x.Attach("w", 0)
	require.NoError(t, x.Store(s, TierGPU, 0, chainOf(1, 512)))
	var o Overlap
	probes := 0
	for i := range uint64(200) {
		q := chainOf(100+i, 512)
		if uint64(q[0])&x.head.mask == uint64(chainOf(1, 1)[0])&x.head.mask {
			continue // meets the one head that there is
		}
		x.Lookup(&o, q)
		require.True(t, o.Empty())
		require.Equal(t, 1, o.scratch.probes)
		probes++
	}
	require.Greater(t, probes, 150)
}

func TestLookupAllocatesNothing(t *testing.T) {
	for _, n := range []int{1, 64, 300} {
		x := newIndex(t, nil)
		c := chainOf(1, 512)
		for w := range n {
			s := x.Attach(fmt.Sprint(w), 0)
			require.NoError(t, x.Store(s, TierGPU, 0, c[:512-w]))
			require.NoError(t, x.Store(s, TierCPU, 0, c[:1+w]))
		}
		var o Overlap
		x.Lookup(&o, c)
		require.Zero(t, testing.AllocsPerRun(100, func() { x.Lookup(&o, c) }), "%d workers", n)
	}
}

// Stores and removals allocate only when a table or a slab grows.
func TestStoreAllocatesNothing(t *testing.T) {
	x := newIndex(t, nil)
	s, u := x.Attach("w", 0), x.Attach("u", 0)
	c := chainOf(1, 256)
	back := reversed(c[16:])
	var dup []uint64
	names := asWords(c)
	once := func() {
		for _, t := range []Tier{TierGPU, TierCPU} {
			x.Store(s, t, c[15], c[16:])
			dup, _ = x.storeNamed(u, t, parentRef{has: true, name: uint64(c[15])}, 0, names[16:], c[16:], dup[:0])
		}
		for _, t := range []Tier{TierCPU, TierGPU} {
			x.Remove(s, t, back)
			x.removeNamed(u, t, asWords(back))
		}
	}
	require.NoError(t, x.Store(s, TierGPU, 0, c[:16]))
	_, err := x.storeNamed(u, TierGPU, parentRef{}, 0, names[:16], c[:16], nil)
	require.NoError(t, err)
	for range 4 {
		once()
	}
	require.Zero(t, testing.AllocsPerRun(100, once))
	require.NoError(t, x.check())
}

// Forks that come and go leave no bytes behind: runs that were split or cut, the
// lists of free memory, and the tables included.
func TestForksComeAndGo(t *testing.T) {
	x := newIndex(t, nil)
	r := rand.New(rand.NewPCG(2, 2))
	var slots []Slot
	for w := range 20 {
		slots = append(slots, x.Attach(fmt.Sprint(w), 0))
	}
	trunk := chainOf(1, 64)
	cycle := func() {
		type kept struct {
			s Slot
			c []block.Hash
		}
		var all []kept
		for range 200 {
			k := 1 + r.IntN(63)
			c := makeChain(r, trunk, k, 1+r.IntN(40))
			s := slots[r.IntN(len(slots))]
			require.NoError(t, x.Store(s, TierGPU, 0, c))
			all = append(all, kept{s, c})
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, k := range all {
			x.Remove(k.s, TierGPU, reversed(k.c))
		}
	}
	cycle()
	x.Sweep()
	s := x.Stats()
	require.Zero(t, s.Blocks)
	require.Zero(t, s.Runs)
	idle := x.Bytes()
	peak := int64(0)
	for i := range 60 {
		cycle()
		if i == 9 {
			peak = x.Bytes()
		}
	}
	require.LessOrEqual(t, x.Bytes(), peak+peak/4, "bytes creep")
	x.Sweep()
	require.NoError(t, x.check())
	require.Equal(t, idle, x.Bytes())
	require.NotZero(t, x.Stats().Splits)
}

// When all workers leave, memory returns to the idle value, tables included.
func TestAllLeave(t *testing.T) {
	x := newIndex(t, nil)
	idle := x.Bytes()
	var slots []Slot
	for w := range 300 {
		s := x.AttachSized(fmt.Sprint("worker-", w), 0, 2000)
		slots = append(slots, s)
		for i := range 10 {
			require.NoError(t, x.Store(s, Tier(i%Tiers), 0, chainOf(uint64(w*10+i), 150)))
		}
	}
	full := x.Bytes()
	require.Greater(t, full, idle+300*1500*16)
	for _, s := range slots {
		x.Detach(s)
	}
	x.Sweep()
	require.NoError(t, x.check())
	require.Equal(t, idle, x.Bytes())
	require.Equal(t, idle, x.Stats().Bytes)
}

// A map that was sized for a worker's capacity keeps that size while it lives.
func TestSizedMapStays(t *testing.T) {
	x := newIndex(t, nil)
	idle := x.Bytes()
	s := x.AttachSized("w", 0, 100_000)
	sized := x.Stats().NameBytes
	require.Greater(t, sized, int64(100_000*8))
	require.NoError(t, x.Store(s, TierGPU, 0, chainOf(1, 1000)))
	x.Sweep()
	require.Equal(t, sized, x.Stats().NameBytes)
	require.NoError(t, x.check())
	x.Detach(s)
	x.Sweep()
	require.Equal(t, idle, x.Bytes())
}

// Every distinct block of a day, stored and removed: no emptied cells remain.
func TestNoEmptiedCells(t *testing.T) {
	x := newIndex(t, nil)
	s := x.Attach("w", 0)
	x.Sweep()
	idle := x.Bytes()
	for i := range uint64(3000) {
		c := chainOf(i, 64)
		require.NoError(t, x.Store(s, TierGPU, 0, c))
		x.Remove(s, TierGPU, reversed(c))
	}
	require.Less(t, x.Bytes(), idle+runBlockBytes+hashChunkBytes+wordChunkBytes+1<<16)
	x.Sweep()
	require.Equal(t, idle, x.Bytes())
}

// Slots come back: however often workers flap, a new one is indexed.
func TestSlotNumbersComeBack(t *testing.T) {
	x := newIndex(t, nil)
	c := chainOf(1, 4)
	keep := x.Attach("keep", 0)
	require.NoError(t, x.Store(keep, TierGPU, 0, c))
	seen := map[Slot]bool{}
	for range 5000 {
		s := x.Attach("flap", 0)
		require.False(t, seen[s])
		seen[s] = true
		require.NoError(t, x.Store(s, TierGPU, 0, c))
		require.Less(t, s.Num(), uint32(100), "dead slots are not swept")
	}
	require.NoError(t, x.check())
	var o Overlap
	x.Lookup(&o, c)
	require.Equal(t, 2, o.listed())
}

// All 2^20-1 slot numbers can be in use at once; then there are no more, and no
// panic.
func TestAllSlotNumbers(t *testing.T) {
	x := newIndex(t, nil)
	idle := x.Bytes()
	c := chainOf(1, 3)
	first := x.Attach("first", 0)
	require.Equal(t, uint32(1), first.Num())
	require.NoError(t, x.Store(first, TierGPU, 0, c))
	// As if all but the last 150 numbers were taken.
	require.True(t, x.resizeSlots((maxSlot+1)/64))
	const free = 150
	for n := 2; n <= maxSlot-free; n++ {
		x.taken[n/64] |= 1 << (n % 64)
	}
	var last Slot
	for i := range free {
		last = x.Attach("w", i)
		require.Equal(t, uint32(maxSlot-free+1+i), last.Num())
		require.NoError(t, x.Store(last, Tier(i%Tiers), 0, c))
	}
	require.Equal(t, uint32(maxSlot), last.Num())
	require.Zero(t, x.Attach("one more", 0))
	require.ErrorIs(t, x.Store(0, TierGPU, 0, c), ErrSlot)
	var o Overlap
	x.Lookup(&o, c)
	require.Equal(t, 3, o.Depth(last, TierObject))
	require.Equal(t, 3, o.Depth(first, TierGPU))
	require.Equal(t, free+1, o.listed())
	x.Detach(first)
	s := x.Attach("one more", 0)
	require.Equal(t, first.Num(), s.Num())
	require.NotEqual(t, first, s)
	require.NoError(t, x.check())
	for n := 2; n <= maxSlot-free; n++ {
		x.taken[n/64] &^= 1 << (n % 64)
	}
	for _, k := range x.owners {
		x.Detach(MakeSlot(k.num, k.gen))
	}
	x.Sweep()
	require.NoError(t, x.check())
	require.Equal(t, idle, x.Bytes())
}

// A worker that leaves is invisible at once, whatever it held; the memory follows.
func TestDetachIsOneStep(t *testing.T) {
	x := newIndex(t, nil)
	s, u := x.Attach("big", 0), x.Attach("small", 0)
	for i := range uint64(200) {
		require.NoError(t, x.Store(s, TierGPU, 0, chainOf(i, 500)))
	}
	c := chainOf(0, 500)
	require.NoError(t, x.Store(u, TierGPU, 0, c[:10]))
	before := x.Stats().Holders[TierGPU]
	x.Detach(s)
	var o Overlap
	x.Lookup(&o, c)
	require.Equal(t, 1, o.listed())
	require.Zero(t, o.Depth(s, TierObject))
	require.Equal(t, 10, o.Depth(u, TierGPU))
	require.Equal(t, before, x.Stats().Holders[TierGPU], "the sweep is not part of Detach")
	for i := range uint64(40) { // stores of others sweep, some runs each
		require.NoError(t, x.Store(u, TierGPU, 0, chainOf(i, 5)))
	}
	require.Equal(t, 10+39*5, x.Stats().Holders[TierGPU])
	require.Zero(t, x.Stats().Dying)
}

// Blocks of one token and a prompt of 100,000 of them, for 50 workers, within a
// budget.
func TestLongPromptOfSmallBlocks(t *testing.T) {
	x := newIndex(t, &Options{BlockTokens: 1, MaxBytes: 16 << 20})
	c := chainOf(1, 100_000)
	for w := range 50 {
		require.NoError(t, x.Store(x.Attach(fmt.Sprint(w), 0), TierGPU, 0, c))
	}
	var o Overlap
	x.Lookup(&o, c)
	require.Equal(t, 50, o.listed())
	require.Equal(t, uint32(100_000), o.Groups(TierGPU)[0].Depth)
	require.Less(t, float64(x.Bytes())/5e6, 4.0, "bytes for each block and holder")
}

// Bytes for each block of one holder, and a million runs without children beyond
// the root: nothing is kept for each run but its header.
func TestBytesPerBlock(t *testing.T) {
	x := newIndex(t, nil)
	s := x.Attach("w", 0)
	for i := range uint64(1000) {
		require.NoError(t, x.Store(s, TierGPU, 0, chainOf(i, 500)))
	}
	require.Less(t, float64(x.Bytes())/500_000, 37.0)
	x = newIndex(t, nil)
	s = x.Attach("w", 0)
	for i := range uint64(100_000) {
		require.NoError(t, x.Store(s, TierGPU, 0, chainOf(i, 1)))
	}
	require.Less(t, float64(x.Bytes())/100_000, 300.0)
}

// Unbounded unique traffic against a budget: refused, counted, never above it,
// and what is there stays right. Room that comes back is used.
func TestBudgetRefuses(t *testing.T) {
	const limit = 8 << 20
	x := newIndex(t, &Options{MaxBytes: limit})
	idle := x.Bytes()
	m := &treeModel{x: x, full: true}
	m.attach(8, "n")
	refused, stored := 0, [][]block.Hash(nil)
	for i := range uint64(4000) {
		c := chainOf(i, 150)
		before := x.Stats().Refused
		require.NoError(t, m.store(int(i)%8, Tier(i%Tiers), c, 0, len(c)))
		if x.Stats().Refused > before {
			refused++
		} else {
			stored = append(stored, c)
		}
		require.LessOrEqual(t, x.Bytes(), int64(limit))
	}
	require.Equal(t, uint64(refused), x.Stats().Refused)
	require.Greater(t, refused, 100)
	require.Greater(t, x.Bytes(), int64(limit)*2/3, "refused with room left")
	require.NoError(t, x.check())
	var o Overlap
	for i := range uint64(4000) {
		if i%17 == 0 {
			require.NoError(t, m.compare(&o, chainOf(i, 150)))
		}
	}
	// Holes need memory of their own; there is some.
	r := rand.New(rand.NewPCG(3, 3))
	for _, c := range stored {
		w := r.IntN(8)
		require.NoError(t, m.remove(w, TierGPU, c[40:60]))
		require.NoError(t, m.remove(w, TierCPU, c[70:71]))
		require.LessOrEqual(t, x.Bytes(), int64(limit))
	}
	require.Zero(t, x.Stats().Forgotten)
	for i := range m.slots {
		x.Clear(m.slots[i].s)
		m.slots[i].reset()
	}
	require.NoError(t, m.store(0, TierGPU, stored[0], 0, 150))
	require.NoError(t, m.compare(&o, stored[0]))
	require.NoError(t, m.finish(idle))
}

// The whole model under a budget that refuses all the time.
func TestModelUnderBudget(t *testing.T) {
	for seed := range uint64(4) {
		x := newIndex(t, &Options{MaxBytes: MinBytes})
		idle := x.Bytes()
		r := rand.New(rand.NewPCG(seed, 8))
		m := &treeModel{x: x, full: true}
		m.attach(30, "nnd")
		cs := makeChains(r, 60, 600)
		// Fill what the model leaves, so that it meets the limit.
		for i := uint64(0); x.Stats().Refused == 0; i++ {
			x.Store(x.Attach("filler", int(i)), TierObject, 0, chainOf(1000+i, 900))
		}
		var o Overlap
		for step := range 1500 {
			require.NoError(t, m.step(r, cs, Tiers), "seed %d, step %d", seed, step)
			require.LessOrEqual(t, x.Bytes(), int64(MinBytes))
			if step%50 == 0 {
				require.NoError(t, x.check(), "seed %d, step %d", seed, step)
				require.NoError(t, m.compare(&o, cs[r.IntN(len(cs))]), "seed %d, step %d", seed, step)
			}
		}
		require.NotZero(t, x.Stats().Refused)
		for _, k := range x.owners {
			x.Detach(MakeSlot(k.num, k.gen))
		}
		require.NoError(t, m.finish(idle))
	}
}

// A removal that finds no memory for a hole gives up more than it was told, so
// that the answer is too low and not too high.
func TestRemovalWithoutMemory(t *testing.T) {
	x := newIndex(t, nil)
	c := chainOf(1, 100)
	var slots []Slot
	for w := range 5 {
		slots = append(slots, x.Attach(fmt.Sprint(w), 0))
		require.NoError(t, x.Store(slots[w], TierGPU, 0, c))
	}
	x.mem.max = x.mem.total.Load()
	x.words.grow = func(uint32, int64) *wordChunk { return nil }
	for {
		if _, ok := x.words.find(unit); !ok {
			break
		}
		x.words.alloc(unit) // no word is left
	}
	for _, s := range slots {
		x.Remove(s, TierGPU, c[50:51])
	}
	var o Overlap
	x.Lookup(&o, c)
	for _, s := range slots {
		require.LessOrEqual(t, o.Depth(s, TierGPU), 50)
	}
	require.NotZero(t, x.Stats().Forgotten)
}

// A slot may remember the map of a slot that is gone and swept.
func TestMapOfAnotherEnds(t *testing.T) {
	x := newIndex(t, nil)
	s := x.Attach("s", 0)
	c := chainOf(1, 8)
	for i := range 3 * maxOthers {
		u := x.Attach("u", i)
		require.NoError(t, x.Store(u, TierGPU, 0, c))
		require.NoError(t, x.Store(s, TierGPU, 0, c))
		require.Zero(t, x.Stats().SideNames, "ended maps count")
		x.Remove(s, TierGPU, c)
		x.Detach(u)
		x.Sweep()
		x.Remove(s, TierGPU, c) // unknown, and looked for everywhere
	}
	require.Equal(t, uint64(3*maxOthers*8), x.Stats().UnknownRemovals)
	require.LessOrEqual(t, len(x.slot(s).others), maxOthers)
	require.NoError(t, x.check())
}

// A slot that shares blocks with more slots than it looks up keeps their names
// itself.
func TestMoreSharersThanMaps(t *testing.T) {
	x := newIndex(t, nil)
	idle := x.Bytes()
	m := &treeModel{x: x}
	m.attach(2*maxOthers, "n")
	var o Overlap
	for i := range m.slots {
		c := chainOf(uint64(i), 6)
		require.NoError(t, m.store(i, TierGPU, c, 0, 6))
		require.NoError(t, m.store(0, TierCPU, c, 0, 6))
		require.NoError(t, m.compare(&o, c))
	}
	require.NotZero(t, x.Stats().SideNames)
	for i := range m.slots {
		c := chainOf(uint64(i), 6)
		require.NoError(t, m.store(0, TierCPU, c, 3, 6))
		require.NoError(t, m.remove(0, TierCPU, reversed(c)))
		require.NoError(t, m.compare(&o, c))
	}
	require.NoError(t, x.check())
	require.NoError(t, m.finish(idle))
}

// A store that found its slot and then had to wait until it was detached leaves
// nothing behind: the slot's name map is given up and must not be charged again.
func TestStoreAfterDetach(t *testing.T) {
	x := newIndex(t, nil)
	idle := x.Bytes()
	s := x.Attach("w", 0)
	k := x.slot(s)
	x.Detach(s)
	c := asWords(chainOf(1, 2000))
	_, err := x.storeIn(k, TierGPU, namingHash, parentRef{}, 0, c, c, nil, false)
	require.ErrorIs(t, err, ErrSlot)
	require.NoError(t, x.check())
	x.Sweep()
	require.Equal(t, idle, x.Bytes())
}

// Held is exact through stores, moves between tiers, removals and clears.
func TestHeld(t *testing.T) {
	x := newIndex(t, nil)
	a, b := x.Attach("a", 0), x.Attach("b", 0)
	c := chainOf(1, 40)
	want := func(s Slot, n ...int) {
		t.Helper()
		var w [Tiers]int
		copy(w[:], n)
		require.Equal(t, w, x.Held(s))
	}
	want(a)
	require.NoError(t, x.Store(a, TierGPU, 0, c))
	require.NoError(t, x.Store(a, TierGPU, 0, c[:9]))
	require.NoError(t, x.Store(a, TierCPU, 0, c[:10]))
	require.NoError(t, x.Store(b, TierObject, 0, c[:5]))
	want(a, 40, 10)
	want(b, 0, 0, 0, 5)
	x.Remove(a, TierGPU, c[5:15])
	x.Remove(a, TierGPU, c[5:6])
	want(a, 30, 10)
	x.Clear(a, TierGPU)
	want(a, 0, 10)
	x.Detach(b)
	want(b)
	x.Clear(a)
	want(a)
	want(Slot(0))
	want(MakeSlot(1<<20, 1))
}

func TestErrors(t *testing.T) {
	_, err := New(&Options{MaxBytes: 1000, BlockTokens: -1})
	require.ErrorContains(t, err, "Options.MaxBytes is 1000")
	require.ErrorContains(t, err, "Options.BlockTokens is -1")

	x := newIndex(t, nil)
	require.Equal(t, block.SchemeBLAKE3, x.Scheme())
	require.Equal(t, 16, x.BlockTokens())
	s := x.Attach("w", 3)
	name, rank, ok := x.Worker(s)
	require.Equal(t, []any{"w", 3, true}, []any{name, rank, ok})
	c := chainOf(1, 8)
	require.ErrorIs(t, x.Store(s, 4, 0, c), ErrTier)
	require.ErrorIs(t, x.Store(s, TierUnknown, 0, c), ErrTier)
	require.ErrorIs(t, x.Store(s, TierGPU, c[3], c[4:]), ErrParent)
	require.ErrorIs(t, x.Store(MakeSlot(s.Num(), s.Gen()+1), TierGPU, 0, c), ErrSlot)
	require.ErrorIs(t, x.Store(MakeSlot(5000, 1), TierGPU, 0, c), ErrSlot)
	require.NoError(t, x.Store(s, TierGPU, 0, nil))
	require.NoError(t, x.Store(s, TierGPU, 0, c))
	_, err = x.storeNamed(s, TierGPU, parentRef{}, 0, asWords(c), c, nil)
	require.ErrorIs(t, err, ErrNaming)
	_, _, err = x.storeKnown(s, TierCPU, asWords(c), nil)
	require.ErrorIs(t, err, ErrNaming)
	require.Equal(t, 8, x.removeNamed(s, TierGPU, asWords(c)))
	u := x.Attach("u", 0)
	_, err = x.storeNamed(u, TierGPU, parentRef{}, 0, asWords(c)[:3], c, nil)
	require.ErrorIs(t, err, ErrShape)
	_, err = x.storeNamed(u, TierGPU, parentRef{}, 0, asWords(c), c, nil)
	require.NoError(t, err)
	require.ErrorIs(t, x.Store(u, TierGPU, 0, c), ErrNaming)
	x.Remove(u, TierGPU, c)
	require.True(t, x.holdsNamed(u, TierGPU, uint64(c[7])))
	x.Detach(s)
	x.Detach(s)
	x.Clear(s)
	x.Remove(s, TierGPU, c)
	require.False(t, x.alive(s))
	_, _, ok = x.Worker(s)
	require.False(t, ok)
	require.True(t, errors.Is(x.Store(s, TierGPU, 0, c), ErrSlot))
	require.NoError(t, x.check())
}
