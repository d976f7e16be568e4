// Package router picks the worker that will answer a request first and books
// the work on it in the same step.
//
// A [Router] knows three things about each worker: how much of the prompt it
// already holds (from an [Index]), what this router itself has sent there and
// not yet seen finished (its own ledger), and what the engine last said about
// itself (a [Load], kept apart from the ledger and aged). A [Policy] turns them
// into one number per worker; the smallest wins and equal ones are drawn at
// random. The default policy, [Expected], counts in seconds: time in the queue,
// prefill of what is missing, wait for memory, the delay put on requests that
// come later, and the cost to those who are decoding.
//
// # Use
//
// Call [Router.SetWorkers] when the set of workers changes and
// [Router.Pick] once per request. The [Lease] that comes back holds the booking:
// tell it of the first token, of further tokens and of the end.
//
//	lease, err := r.Pick(&router.Request{Chain: hashes, Tokens: n})
//	if err != nil { ... }
//	defer lease.Done(nil) // harmless after another Done
//	// send the request to lease.Slot()
//
// When a worker fails before it has sent a byte, [Lease.Retry] gives the booking
// back and books the next best worker, in one step. A caller that wants to
// follow the order of the first decision names the slots of
// [Decision.Alternates] one by one in [Request.Only].
//
// # Promises
//
//   - Pick never blocks on anything but a short mutex and allocates nothing but
//     the lease. The index is read before the mutex is taken. Scoring and booking
//     happen under one hold of it, so equal requests in a burst see one another.
//   - Everything a booking adds is taken away by Done, exactly once, whatever the
//     order of calls and also after the worker has left or come back.
//   - A booking has no expiry: a request that decodes for an hour is load for an
//     hour. A caller that drops a lease without Done leaks its booking.
//   - Unknown is not zero. A worker that has not reported, or whose report is
//     stale, is judged by the ledger; requests never halt for want of a report.
//   - The same workers, calls, times and random numbers give the same decisions:
//     clock and random source are options. The package starts no goroutine.
//
// # The ledger
//
// Per worker the ledger has the list of requests without a first token with
// their estimated seconds, the number of requests outstanding and decoding,
// their prompt tokens, and the set of distinct complete prompt blocks they
// hold. That set is kept by chain: one radix trie over all workers, whose nodes
// are runs of blocks with a count per worker. To book or return a prompt of 512
// blocks touches a few nodes, and one walk along a new prompt gives its
// in-flight match on every worker. Blocks of outstanding requests count as held
// by the worker although it has not announced them: this is what keeps a burst
// with a new prefix together.
//
// A request whose answer does not stream shows no first token. With
// [Request.Quiet] the ledger takes it to be past its prefill when its own estimate
// says so, or when a later request is, and learns nothing from that; otherwise it
// would count as waiting for its prefill until its end.
//
// A report corrects the ledger only by what the ledger cannot know, requests
// that reached the worker by another way: when an engine reports more requests
// than this router has there, the surplus is added to its queue and batch.
//
// # Timing constants
//
// Seconds come from a small model of an engine step, [Timing]. Unless
// [Options.FixedTiming] is set, its constants are learned from first tokens and
// completions by least squares: rows are divided by the time seen, those that miss
// by far count less, older ones fade over some 2,000, and every 100 the constants
// are renewed. None becomes negative, and what a pool never shows stays near where
// it began.
//
// # Limits
//
// Scoring takes about 25 ns a worker and is bounded: of more than
// [Options.MaxCandidates] workers, 512 by default, a pick scores those that hold
// some of the prompt and as many others as the bound, drawn at random. The best of
// these is little worse than the best of all, and gateways that draw differently
// do not herd. What still grows with the workers is the clearing of a few bytes
// for each and, per worker that the index lists, one write; and filters: a request
// with Only or Not, a retry, Limits, and a pause that lasts look at each worker.
// Cheap policies, and those with a model of their own, see all: [WholeLister]. There is
// no admission queue, no session affinity and no circuit breaker here; a few
// failures in a row only pause a worker for a moment. Request.Session and
// Request.Priority are not read by the policies of this package. Several routers
// over one set of workers see one another's requests only in the reports.
//
// # Sources
//
// The policies named after other projects are re-implementations of their
// published rules in this package's terms, there to be compared with: NVIDIA
// Dynamo's KV router (cost in blocks, and its lmetric option), the llm-d / Gateway
// API inference extension scorers (queue 2, utilisation 2, prefix 3), LMetric
// ("prefill tokens times batch size"), and the conductor of Mooncake (FAST 2025).
package router
