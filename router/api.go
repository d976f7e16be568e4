package router

import (
	"time"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// An Index says how much of a prompt each slot holds. *kvindex.Index is one.
// Implementations must be safe for concurrent use, must not keep or change
// chain, and must reset dst.
type Index interface {
	Lookup(dst *kvindex.Overlap, chain []block.Hash)
}

// A Role is what a worker may be used for.
type Role uint8

// Roles. RoleAny as a request's role matches every worker.
const (
	RoleAny Role = iota
	RolePrefill
	RoleDecode
)

// A Worker is one slot that requests can be sent to.
type Worker struct {
	Slot kvindex.Slot
	Name string // for people; need not be unique
	Role Role
	// KVBlocks is the number of index blocks (of Options.BlockTokens) that the
	// worker can hold for running requests; 0 = unknown, no memory term.
	KVBlocks int
	// Draining workers take no new requests.
	Draining bool
}

// A Load is what an engine reported about itself; the router keeps it apart
// from its own ledger. Unknown is not zero: a figure counts only when its Has
// field is set. It is the part of engine.Load, of package engine, that a router
// uses, and its fields are called the same; to hand a rank's report over, copy
// them one by one:
//
//	r.Report(slot, router.Load{At: l.At, Running: l.Running, Waiting: l.Waiting,
//		HasQueue: l.HasQueue, KVUsage: l.KVUsage, HasKV: l.HasKV})
type Load struct {
	// At is when the engine said it; zero = when it is handed to the router.
	At time.Time
	// Running and Waiting are the numbers of requests in the batch and in the
	// engine's queue, from all sources.
	Running, Waiting int
	HasQueue         bool
	// KVUsage is the share of KV memory that running requests hold, 0 to 1.
	KVUsage float64
	HasKV   bool
}

// A Request is what a pick needs to know. The router does not keep or change it.
type Request struct {
	// Chain holds the hashes of the complete prompt blocks, in order; more than
	// Tokens has room for are malformed. nil = nothing is known of the prompt but
	// its length.
	Chain []block.Hash
	// Tokens is the length of the prompt; 0 = that of the chain. A request of more
	// than 2^26 tokens, or of a chain of as many, is malformed.
	Tokens int
	// MaxTokens is the limit of the output; 0 = unknown.
	MaxTokens int
	// Session and Priority are for policies of one's own. Larger is earlier, as in
	// package engine.
	Session  string
	Priority int
	// Deadline refuses a pick at or after it; zero = none.
	Deadline time.Time
	// Only names the slots that may be picked, empty = all; Not those that may
	// not. Slots that the router does not have are passed over.
	Only, Not []kvindex.Slot
	Role      Role
	// Quiet says that the caller will not see the first token, because the answer
	// does not stream. The ledger then assumes that it is out when the request has
	// headed its worker's queue for as long as its prefill was expected to take, or
	// when a request booked later has its own. Tell the lease the tokens of the
	// whole answer by Output.
	Quiet bool
}
