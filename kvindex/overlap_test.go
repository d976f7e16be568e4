package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOverlapFilledByHand(t *testing.T) {
	var o Overlap
	require.True(t, o.Empty())
	words := []uint64{1 << 3, 1<<63 | 1}
	o.AddGroup(TierGPU, 7, 1, words)
	words[0] = 0 // they were copied
	o.AddPair(TierGPU, 5, 2)
	o.AddPair(TierDisk, 5, 9)
	o.LowerBound = true
	require.False(t, o.Empty())

	for _, c := range []struct {
		num   uint32
		depth [Tiers]int
	}{
		{64 + 3, [Tiers]int{7, 7, 7, 7}},
		{128, [Tiers]int{7, 7, 7, 7}},
		{128 + 63, [Tiers]int{7, 7, 7, 7}},
		{5, [Tiers]int{2, 2, 9, 9}},
		{3, [Tiers]int{}},
		{64 + 4, [Tiers]int{}},
		{192, [Tiers]int{}},
		{1 << 20, [Tiers]int{}},
	} {
		for u, want := range c.depth {
			require.Equal(t, want, o.Depth(MakeSlot(c.num, 1), Tier(u)), "slot %d, tier %d", c.num, u)
		}
	}
	// Dense by tiers from the fastest down gives the same, as far as dst reaches.
	for _, size := range []int{0, 6, 68, 129, 400} {
		dst := make([]uint32, size)
		for u := TierGPU; u < Tiers; u++ {
			o.Dense(dst, u)
			for num, d := range dst {
				require.Equal(t, o.Depth(MakeSlot(uint32(num), 1), u), int(d), "slot %d, tier %v", num, u)
			}
		}
	}
	o.Reset()
	require.True(t, o.Empty())
	require.False(t, o.LowerBound)
	require.Zero(t, o.Depth(MakeSlot(5, 1), TierObject))
}

// The answers of a real index written out densely agree with Depth.
func TestOverlapDenseAgrees(t *testing.T) {
	x := newIndex(t, nil)
	r := rand.New(rand.NewPCG(1, 1))
	m := &treeModel{x: x}
	m.attach(150, "h")
	cs := makeChains(r, 4, 30)
	var o Overlap
	dst := make([]uint32, 200)
	for step := range 1000 {
		require.NoError(t, m.step(r, cs, Tiers))
		if step%10 != 0 {
			continue
		}
		q := cs[r.IntN(len(cs))]
		x.Lookup(&o, q)
		clear(dst)
		for u := TierGPU; u < Tiers; u++ {
			o.Dense(dst, u)
			for _, k := range m.slots {
				require.Equal(t, k.depth(q, u), int(dst[k.s.Num()]))
			}
		}
	}
}

func TestParseTier(t *testing.T) {
	for medium, want := range map[string]Tier{
		"": TierGPU, "gpu": TierGPU, "GPU": TierGPU,
		"CPU": TierCPU, "cpu_pinned": TierCPU, "CPU_TIER1": TierCPU,
		"DISK": TierDisk, "Storage": TierDisk, "NVME": TierDisk, "CPU_TIER2": TierDisk,
		"EXTERNAL": TierObject, "NETWORK": TierObject, "REMOTE": TierObject, "shared": TierObject,
		"disk2": TierUnknown, "g": TierUnknown, "gpu ": TierUnknown, "TPU": TierUnknown,
	} {
		require.Equal(t, want, ParseTier(medium), "%q", medium)
	}
	require.Equal(t, "unknown", TierUnknown.String())
	require.Equal(t, "disk", TierDisk.String())
	tier := TierUnknown
	require.Zero(t, testing.AllocsPerRun(10, func() { tier = ParseTier("cpu_pinned") }))
	require.Equal(t, TierCPU, tier)
}
