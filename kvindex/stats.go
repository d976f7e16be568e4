package kvindex

// Stats describes an index at one moment. All of it is control path: the index
// never touches the bytes of a block.
type Stats struct {
	// Bytes is the memory that the index keeps, MaxBytes the budget (0 = none).
	// The parts below add up to Bytes.
	Bytes, MaxBytes int64

	RunBytes      int64 // headers of runs
	HashBytes     int64 // hashes and names of blocks
	CoverageBytes int64 // who holds what, where it does not fit the headers
	NameBytes     int64 // maps from name to place
	HeadBytes     int64 // the table of first blocks
	SlotBytes     int64 // slots, workers' names, scopes; Go maps are estimated

	Slots  int // attached
	Dying  int // detached and not yet swept
	Scopes int // pairs of adapter and tenant in use
	Runs   int // pieces of chain
	Blocks int // distinct blocks

	// Holders counts, by tier, pairs of a block and a slot that holds it there,
	// those of dying slots included.
	Holders [Tiers]int

	// SideNames counts blocks that a slot calls otherwise than the index does, and
	// further names of blocks, with some that have lost their block meanwhile.
	SideNames int

	Refused         uint64 // stores refused for the budget
	UnknownRemovals uint64 // removed blocks that the slot did not hold
	Splits          uint64 // runs cut in two
	Forgotten       uint64 // blocks given up by removals that found no memory
}

// counts are the figures that only grow.
type counts struct {
	Refused, UnknownRemovals, Splits, Forgotten uint64
}

// Stats returns the state of the index. It takes the writers' lock for a moment.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Stats{
		Bytes: x.mem.total.Load(), MaxBytes: x.mem.max,
		RunBytes:      x.mem.by[kindRuns].Load(),
		HashBytes:     x.mem.by[kindHashes].Load(),
		CoverageBytes: x.mem.by[kindCover].Load(),
		NameBytes:     x.mem.by[kindNames].Load(),
		HeadBytes:     x.mem.by[kindHeads].Load(),
		SlotBytes:     x.mem.by[kindSlots].Load(),

		Slots:  len(x.owners),
		Dying:  len(x.dead),
		Scopes: len(x.scopeIDs),
		Runs:   x.nruns,
		Blocks: int(x.nblocks),

		Refused:         x.count.Refused,
		UnknownRemovals: x.count.UnknownRemovals,
		Splits:          x.count.Splits,
		Forgotten:       x.count.Forgotten,
	}
	for t, n := range x.holders {
		s.Holders[t] = int(n)
	}
	if x.sided > 0 {
		for _, k := range x.owners {
			s.SideNames += k.side.used
		}
	}
	return s
}

// Held is the number of blocks that an attached slot holds in each tier; a block
// that lies in two tiers counts in both. It is exact but while a Clear of the slot
// is under way. It costs the writers' lock for a moment and no pass over anything,
// so a page of many workers may ask for each. A slot that is not attached holds
// nothing.
func (x *Index) Held(s Slot) (n [Tiers]int) {
	k := x.slot(s)
	if k == nil {
		return n
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.gone.Load() {
		return n
	}
	for t, h := range k.held {
		n[t] = int(h)
	}
	return n
}

// Bytes is the memory that the index keeps.
func (x *Index) Bytes() int64 { return x.mem.total.Load() }
