package kvindex_test

import (
	"fmt"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

func ExampleNew() {
	x, err := kvindex.New(&kvindex.Options{MaxBytes: 1 << 30})
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt := []block.Hash{101, 102, 103, 104} // from a block.Hasher
	a, b := x.Attach("worker-a", 0), x.Attach("worker-b", 0)
	x.Store(a, kvindex.TierGPU, 0, prompt)
	x.Store(b, kvindex.TierGPU, 0, prompt[:2])
	x.Store(b, kvindex.TierCPU, prompt[1], prompt[2:3])

	var o kvindex.Overlap
	x.Lookup(&o, prompt)
	for _, s := range []kvindex.Slot{a, b} {
		name, _, _ := x.Worker(s)
		fmt.Println(name, "gpu", o.Depth(s, kvindex.TierGPU), "cpu", o.Depth(s, kvindex.TierCPU))
	}
	// Output:
	// worker-a gpu 4 cpu 4
	// worker-b gpu 2 cpu 3
}

func ExampleIndex_Remove() {
	x, _ := kvindex.New(nil)
	prompt := []block.Hash{101, 102, 103, 104}
	s := x.Attach("worker", 0)
	x.Store(s, kvindex.TierGPU, 0, prompt)
	depth := func() int {
		var o kvindex.Overlap
		x.Lookup(&o, prompt)
		return o.Depth(s, kvindex.TierGPU)
	}
	x.Remove(s, kvindex.TierGPU, prompt[1:2])
	fmt.Println("with a hole:", depth())
	x.Store(s, kvindex.TierGPU, prompt[0], prompt[1:2])
	fmt.Println("filled again:", depth())
	// Output:
	// with a hole: 1
	// filled again: 4
}

func ExampleOverlap_Dense() {
	x, _ := kvindex.New(nil)
	prompt := []block.Hash{101, 102, 103}
	for rank := range 3 {
		x.Store(x.Attach("worker", rank), kvindex.TierGPU, 0, prompt[:3-rank])
	}
	var o kvindex.Overlap
	x.Lookup(&o, prompt)
	depths := make([]uint32, 4) // by slot number, from 1
	o.Dense(depths, kvindex.TierGPU)
	fmt.Println(depths[1:])
	// Output: [3 2 1]
}

func ExampleIndex_Stats() {
	x, _ := kvindex.New(nil)
	s := x.Attach("worker", 0)
	x.Store(s, kvindex.TierGPU, 0, []block.Hash{101, 102, 103})
	x.Remove(s, kvindex.TierGPU, []block.Hash{103, 999})
	st := x.Stats()
	fmt.Println(st.Slots, st.Blocks, st.Holders[kvindex.TierGPU], st.UnknownRemovals)
	// Output: 1 2 2 1
}
