package vllm

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// An engine names an item again for each block that it touches. A message whose
// items claim to have begun long before, in blocks that did not name them, would
// take hours to hash: the event is malformed, and costs only itself.
func TestItemsTouchWhatIsNamed(t *testing.T) {
	event := func(blocks, items, back int) list {
		hashes, tokens, extra := list{}, list{}, list{}
		for i := range blocks {
			hashes, tokens, extra = append(hashes, i), append(tokens, 1), append(extra, nil)
		}
		last := list{}
		for i := range items {
			last = append(last, list{"i" + itoa(i), -back - i})
		}
		extra[blocks-1] = last
		return list{"BlockStored", hashes, nil, tokens, 1, nil, "GPU", nil, extra}
	}
	d := NewDecoder()
	var b kvindex.Batch
	for name, back := range map[string]int{"within the event": 1000, "before it": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, d.Decode(&b, 1, batchOf(event(4000, 4000, back), list{"AllBlocksCleared"})))
			require.Len(t, b.Events, 1)
			require.Equal(t, kvindex.EventCleared, b.Events[0].Kind)
			require.Equal(t, 1, b.Malformed)
		})
	}

	// What an engine does say is far from the bound, even where names are short
	// and every block is touched: one item over all blocks, and one a block.
	const blocks = 2000
	hashes, tokens, extra := list{}, list{}, list{}
	for i := range blocks {
		hashes, tokens = append(hashes, i), append(tokens, 1, 2)
		extra = append(extra, list{list{"v", -i * 2}, list{itoa(i), 1}, []byte{1}})
	}
	require.NoError(t, d.Decode(&b, 1, batchOf(list{"BlockStored", hashes, nil, tokens, 2, nil, "GPU", nil, extra})))
	require.Zero(t, b.Malformed)
	require.Len(t, b.Events[0].Media, 1+2*blocks)
	require.Equal(t, block.Media{ID: "v", Offset: 0, Length: 2*(blocks-1) + 1}, b.Events[0].Media[0])
}

// Lengths of 2^32 and the like, at every place where a length can stand, are
// found out before anything is set aside for them.
func TestAnnouncedLengths(t *testing.T) {
	var heads [][]byte
	for _, c := range []byte{0xdd, 0xdf, 0xdb, 0xc6, 0xc9} { // array, map, string, bytes, extension
		for _, n := range []uint32{1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
			heads = append(heads, binary.BigEndian.AppendUint32([]byte{c}, n))
		}
	}
	whole := value(nil, list{1.0, list{
		list{"BlockStored", list{1, 2}, 3, list{1, 2, 3, 4}, 2, nil, "GPU", "ad", list{list{"ad", list{"i", 1}}, nil}, 0, "full_attention"},
		pairs{"type", "BlockRemoved", "block_hashes", list{1}, "medium", "CPU", "remaining_copy_counts", list{1}},
	}, 0})
	d := NewDecoder()
	var b kvindex.Batch
	require.NoError(t, d.Decode(&b, 1, whole))
	require.Len(t, b.Events, 2)
	for at := range whole {
		for _, h := range heads {
			p := append(append(append([]byte{}, whole[:at]...), h...), whole[at:]...)
			_ = d.Decode(&b, 1, p)
			_ = d.Decode(&b, 1, p[:at+len(h)])
		}
	}
	require.LessOrEqual(t, cap(d.hashes)+cap(d.tokens)+cap(d.media), 4096)
}
