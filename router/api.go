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
// from its own ledger. Unknown is not zero.
type Load struct {
	At               time.Time
	Running, Waiting int
	HasQueue         bool
	KVUsage          float64 // 0 to 1
	HasKV            bool
}

// A Request is what a pick needs to know.
type Request struct {
	Chain     []block.Hash // of the complete prompt blocks
	Tokens    int          // prompt tokens
	MaxTokens int          // output limit, 0 = unknown
	Session   string
	Priority  int
	Deadline  time.Time
	Only, Not []kvindex.Slot // empty = all, none
	Role      Role
}
