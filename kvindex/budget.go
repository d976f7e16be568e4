package kvindex

import "sync/atomic"

// kind is what memory is used for.
type kind int

const (
	kindRuns   kind = iota // run headers, of all tiers, and what writers keep beside them
	kindHashes             // hashes and names of blocks
	kindCover              // bitsets and lists of holders
	kindNames              // maps from name to place
	kindHeads              // the table of first blocks
	kindSlots              // slots, workers' names, scopes
	kinds
)

// budget counts the bytes that the index keeps, by kind, and says no when a
// limit would be passed. Memory is charged when it is allocated and credited
// when the index lets go of it, whenever the collector takes it.
type budget struct {
	max   int64 // 0 = none
	total atomic.Int64
	by    [kinds]atomic.Int64
}

// take charges n bytes unless that leaves less than keep below the limit.
func (b *budget) take(k kind, n, keep int64) bool {
	for {
		t := b.total.Load()
		if b.max > 0 && n > 0 && t+n > b.max-keep {
			return false
		}
		if b.total.CompareAndSwap(t, t+n) {
			b.by[k].Add(n)
			return true
		}
	}
}

// add charges (or credits) bytes that cannot be refused.
func (b *budget) add(k kind, n int64) {
	b.total.Add(n)
	b.by[k].Add(n)
}

// A removal may have to write down a hole, and must not fail: stores leave it
// this much.
const removalReserve = wordChunkBytes

// storeReserve is what stores leave besides, so that a worker that comes, or comes
// back, finds a slot in an index that is full.
const storeReserve = removalReserve + 64<<10
