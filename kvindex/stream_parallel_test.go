package kvindex

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stator-go/stator/kvindex/block"
	"github.com/stretchr/testify/require"
)

// TestStreamsParallel: streams of different slots run beside each other and
// beside lookups, all on the same blocks. No answer is above what a worker ever
// holds, and the last one is exact.
func TestStreamsParallel(t *testing.T) {
	const workers, rounds = 4, 100
	x, err := New(nil)
	require.NoError(t, err)
	h, err := block.NewHasher(block.Scope{}, 16, nil)
	require.NoError(t, err)
	events := chainEvents(1, 4, 8)
	var prompt []uint32
	for _, e := range events {
		prompt = append(prompt, e.Tokens...)
	}
	chain := h.AppendHashes(nil, append(prompt, make([]uint32, 64)...), nil)

	slots := make([]Slot, workers)
	var wg sync.WaitGroup
	for w := range workers {
		slots[w] = x.Attach(fmt.Sprint("w", w), 0)
		st, err := x.NewStream(slots[w], StreamConfig{})
		require.NoError(t, err)
		wg.Go(func() {
			mine := chainEvents(1, 4, 8)[:w+1] // worker w holds 8 (w+1) blocks at most
			store, remove := &Batch{Events: mine}, &Batch{Events: removeEvents(mine)}
			for i := range uint64(rounds) {
				store.Seq, remove.Seq = 2*i, 2*i+1
				st.Apply(store)
				if i < rounds-1 {
					st.Apply(remove)
				}
			}
		})
	}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		var o Overlap
		for {
			x.Lookup(&o, chain)
			for w, s := range slots {
				if n := o.Depth(s, TierGPU); n > 8*(w+1) {
					t.Errorf("worker %d: depth %d", w, n)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	wg.Wait()
	close(stop)
	reader.Wait()
	var o Overlap
	x.Lookup(&o, chain)
	for w, s := range slots {
		require.Equal(t, 8*(w+1), o.Depth(s, TierGPU), w)
	}
}

// TestStreamDetachRace: E14, with the slot going away while its events are being
// applied.
func TestStreamDetachRace(t *testing.T) {
	x, err := New(nil)
	require.NoError(t, err)
	for range 20 {
		s := x.Attach("w", 0)
		st, err := x.NewStream(s, StreamConfig{})
		require.NoError(t, err)
		started := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			b := &Batch{Events: chainEvents(1, 4, 16)}
			for st.State() != StreamDead {
				st.Apply(b)
				if b.Seq++; b.Seq == 2 {
					close(started)
				}
			}
		})
		<-started
		x.Detach(s)
		wg.Wait()
		require.Zero(t, st.Stats().CopyNames)
		x.Sweep()
		require.Zero(t, x.Stats().Blocks)
	}
}
