package kvindex

import (
	"sync/atomic"
	"unsafe"

	"github.com/stator-go/stator/kvindex/block"
)

// An Index says which slots hold which blocks, in which tier. All methods may be
// called from any goroutine at any time; see the package comment for what
// concurrent calls see of each other.
type Index struct {
	opts Options
	mem  budget

	// What readers follow. Each is replaced as a whole; the words behind are
	// atomic.
	dirs  atomic.Pointer[dirs]
	heads atomic.Pointer[headTable]
	live  atomic.Pointer[[]uint64]                    // bits of the slots that count
	table atomic.Pointer[[]atomic.Pointer[slotState]] // by slot number
	reuse atomic.Uint64                               // slots that began to count, again or for the first time

	// The tree, below, changes under mu only: for microseconds at a time, by one
	// writer of many. The order of locks is slotState.mu, mu, nameMap.mu.
	mu spinLock

	d        *dirs
	named    []*wordChunk // names of blocks, parallel to d.hashes
	metas    []*metaBlock
	lowMetas []*lowerMetas
	avail    uint32 // chunk that newRun looks at first
	hashes   spans
	words    spans
	head     *headTable
	filter   []uint64 // bits of the heads; heads that went may be in it
	filtered int

	maps     []*nameMap // 0 is none
	freeMaps []uint32

	owners    map[owner]*slotState
	gen       uint32
	taken     []uint64     // slot numbers in use, by live slots and by dead ones not yet swept
	lowest    int          // word of taken that may have a free number; none before it
	dead      []*slotState // to be swept
	deadBits  []uint64
	slotWords uint32 // length of the bitsets of slots
	sided     int    // slots that have a side map
	cursor    uint32 // of the sweep, a run
	freed     int    // runs cut since the last trim

	scopes   []scope
	scopeIDs map[scopeKey]uint32

	nruns   int
	nblocks int64
	holders [Tiers]int64
	count   counts
	ends    []uint32 // scratch of splitAt
}

// New returns an empty index; nil options are the defaults. The error joins all
// faults of the options.
func New(opts *Options) (*Index, error) {
	x := &Index{}
	if opts != nil {
		x.opts = *opts
	}
	if err := x.opts.complete(); err != nil {
		return nil, err
	}
	x.mem.max = x.opts.MaxBytes
	x.owners = map[owner]*slotState{}
	x.scopeIDs = map[scopeKey]uint32{}
	x.scopes = make([]scope, 1)
	x.maps = make([]*nameMap, 1)
	x.setDirs(&dirs{})
	x.setHeads(newHeads(minHeads))
	x.filter = make([]uint64, filterSize(0))
	x.mem.add(kindHeads, int64(len(x.head.slots)+len(x.filter))*8)
	x.live.Store(&[]uint64{})
	x.table.Store(&[]atomic.Pointer[slotState]{})
	x.hashes.grow = x.growHashes
	x.words.grow = x.growWords
	return x, nil
}

// Scheme is the scheme of the hashes that the index is told and asked about, as
// Options.Scheme gave it.
func (x *Index) Scheme() block.Scheme { return x.opts.Scheme }

// BlockTokens is the number of tokens of a block.
func (x *Index) BlockTokens() int { return x.opts.BlockTokens }

func (x *Index) setDirs(d *dirs) {
	x.d = d
	x.dirs.Store(d)
}

// growHashes adds a chunk of hashes and one of names; free windows keep their
// links among the names, which only writers read.
func (x *Index) growHashes(i uint32, keep int64) *wordChunk {
	if !x.mem.take(kindHashes, hashChunkBytes, keep) {
		return nil
	}
	names := new(wordChunk)
	d := *x.d
	if int(i) == len(d.hashes) {
		x.named = append(x.named, names)
		d.hashes = append(d.hashes, new(wordChunk))
	} else {
		x.named[i] = names
		d.hashes = replaced(d.hashes, int(i), new(wordChunk))
	}
	x.setDirs(&d)
	return names
}

func (x *Index) growWords(i uint32, keep int64) *wordChunk {
	if !x.mem.take(kindCover, wordChunkBytes, keep) {
		return nil
	}
	c := new(wordChunk)
	d := *x.d
	if int(i) == len(d.words) {
		d.words = append(d.words, c)
	} else {
		d.words = replaced(d.words, int(i), c)
	}
	x.setDirs(&d)
	return c
}

const hashChunkBytes = wordChunkBytes + chunkLen*8

// asWords is a chain as words: a Hash is a uint64 with a name.
func asWords(chain []block.Hash) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.SliceData(chain)), len(chain))
}
