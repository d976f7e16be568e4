package kvindex

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

// mediaEvent is a store of n engine blocks of size tokens.
func mediaEvent(n, size int, media []block.Media) Event {
	e := Event{Kind: EventStored, Tier: TierGPU, BlockSize: size, Tokens: make([]uint32, n*size), Media: media}
	for i := range n {
		e.Hashes = append(e.Hashes, uint64(i+1))
	}
	for i := range e.Tokens {
		e.Tokens[i] = uint32(i)
	}
	return e
}

// An image over many blocks, which the engine names again for each of them, is one
// image: the work is in proportion to the blocks, and the hashes are those of the
// image named once.
func TestMediaOfManyBlocks(t *testing.T) {
	for _, size := range []int{1, 4, 16, 24} {
		_, st := newTestStream(t, StreamConfig{})
		n := 16000
		var media []block.Media
		for i := range n {
			media = append(media, block.MediaInBlock("cat", i*size, 5-i*size))
		}
		e := mediaEvent(n, size, media)
		require.True(t, st.spreadMedia(&e, size))
		require.Equal(t, []block.Media{{ID: "cat", Offset: 5, Length: (n-1)*size + 1 - 5}}, st.spread)
		r := st.Apply(&Batch{Events: []Event{e}})
		require.Zero(t, r.Counts.Refused)
		h, err := block.NewHasher(block.Scope{}, 16, nil)
		require.NoError(t, err)
		chain := h.AppendHashes(nil, e.Tokens, []block.Media{{ID: "cat", Offset: 5, Length: (n-1)*size + 1 - 5}})
		var o Overlap
		st.ix.(*Index).Lookup(&o, chain)
		require.Equal(t, n*size/16, o.Depth(st.Slot(), TierGPU), "engine blocks of %d", size)
	}
}

// Media that overlap as none do are refused before they cost anything.
func TestMediaThatOverlap(t *testing.T) {
	for _, size := range []int{4, 16} {
		_, st := newTestStream(t, StreamConfig{})
		var media []block.Media
		for i := range 1000 {
			media = append(media, block.Media{ID: "cat", Offset: -i, Length: 1 << 20})
		}
		r := st.Apply(&Batch{Events: []Event{mediaEvent(1000, size, media)}})
		require.Equal(t, uint64(1000), r.Counts.Refused)
		require.Zero(t, r.Counts.Stored)
	}
}

// A time that is no number says nothing, and hides no restart that comes after.
func TestTimesThatAreNone(t *testing.T) {
	for _, odd := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		_, st := newTestStream(t, StreamConfig{NoReplay: true})
		for i, at := range []float64{100, 101, odd, 103} {
			r := st.Apply(&Batch{Seq: uint64(i), Time: at})
			require.Equal(t, StreamLive, r.State)
		}
		require.Equal(t, 103.0, st.Stats().LastTime, "%v", odd)
		r := st.Apply(&Batch{Seq: 1, Time: 200})
		require.Equal(t, uint64(1), r.Counts.Restarts, "%v", odd)

		_, st = newTestStream(t, StreamConfig{NoReplay: true})
		st.Apply(&Batch{Seq: 0, Time: 100})
		st.Apply(&Batch{Seq: 1, Time: odd}) // the last word before the restart
		r = st.Apply(&Batch{Seq: 1, Time: 200})
		require.Equal(t, uint64(1), r.Counts.Restarts, "%v", odd)
		require.Equal(t, 200.0, st.Stats().LastTime)
	}
}
