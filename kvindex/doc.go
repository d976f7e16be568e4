// Package kvindex says which worker holds which prefix of a prompt in its KV
// cache, and where: in GPU memory, host memory, on disk or in shared storage. A
// router asks it once a request and gets the depth of every worker.
//
// # Use
//
// An [Index] is told what workers hold and asked with a chain of block hashes
// (see package block):
//
//	x, err := kvindex.New(nil)
//	s := x.Attach("worker-7", 0)              // a slot for (worker, rank)
//	err = x.Store(s, kvindex.TierGPU, 0, chain)
//	x.Remove(s, kvindex.TierGPU, chain[40:])
//	var o kvindex.Overlap                     // reused from request to request
//	x.Lookup(&o, chain)
//	depth := o.Depth(s, kvindex.TierGPU)      // or by group: see Overlap
//	x.Detach(s)                               // the worker is gone
//	x.Sweep()                                 // now and then
//
// A [Stream] feeds a slot from the event channel of an engine: it keeps sequence
// numbers, counts copies, parks blocks whose parent is not known yet, and turns
// the engine's own names and block size into chains. A slot is fed by a Stream or
// directly, never both.
//
// # What answers mean
//
// Depths count leading blocks: a worker drops out at its first gap, whatever it
// holds behind it, and what is behind the gap counts again when the gap is filled.
// Tiers are cumulative: the depth in a tier counts leading blocks that lie in that
// tier or a faster one, in one walk for all. All workers are listed; there is no
// cap. Holding is a set: a block stored twice is gone after one removal.
//
// Never overcount. A block counts only if the slot held it at some moment of the
// lookup; beside writers an answer may be too low, and says so where the walk was
// cut short ([Overlap].LowerBound). A 64-bit hash names a prefix: a collision, one
// in 2^64 for a pair of prefixes, costs a badly placed request and never a wrong
// output.
//
// # Concurrency
//
// Everything may be called from any goroutine. Lookups take no lock and write
// nothing that others read. Stores and removals for different slots run in
// parallel but for a lock around the shared structure that is held for some
// microseconds; those for one slot follow each other. [Index.Detach] and
// [Index.Clear] of all tiers are one step for lookups that begin after. There are
// no goroutines, clocks or callbacks inside: nothing needs closing, and memory of
// workers that left returns when others store and when [Index.Sweep] is called.
//
// # How it works
//
// Blocks lie in runs: pieces of chain, up to 2^16 blocks, in slabs of words that
// the garbage collector does not scan. A chained hash names its whole prefix, so
// one table finds a run by the hash of its first block, two chains are compared at
// their last common position first, and a prompt of any length costs a cache line
// or two a run. A run splits only where many holders end at the same block;
// divergence never splits.
//
// Who holds a run is kept by tier: four entries in the run's own cache line, then
// a bitset of slots that hold all of it and a list of intervals for the others. The
// tiers below the GPU have a cache line of their own, which a lookup does not
// touch where it says that they are not in use. Readers check a version before and
// after; freed chunks stay readable until the last reader let go of them, by the
// garbage collector.
//
// Writers find blocks by name in a map of each worker's own: 16 to 18 bytes a name,
// for the blocks that it was the first to store. Workers that call a block
// otherwise, because their engine's hash seed is another, keep a side map; its
// names count while the very block that they were given to is there and held.
//
// # Limits
//
// 2^20-1 slots, 2^26 runs, 2^32 words of hashes; [Options].MaxBytes is a hard
// budget for all memory that the index keeps (Go maps of workers and scopes are
// counted by estimate, scratch memory of calls is not counted), and a full index
// refuses stores with [ErrBudget]. Plan 30 to 36 bytes for each block that one
// worker holds, and less than one for each further holder of a block that a
// thousand share. [Index.Clear] takes a pass over the runs.
//
// # Sources
//
// The walk follows the ideas of the arena indexes of NVIDIA Dynamo's KV router
// (runs, children at any offset, candidates intersected at every hop) and of
// SMG's chain index; sequence locks are Lamport's and Boehm's ("Can Seqlocks Get
// Along With Programming Language Memory Models?", 2012).
package kvindex
