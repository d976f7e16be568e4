package router

import (
	"time"

	"github.com/stator-go/stator/kvindex"
)

// A Cost is what a request is expected to cost on one worker, in seconds by
// cause. Queue, Prefill, Load, Transfer and Memory together are the expected
// time to the first token; Decode and Price are what the request costs itself
// later and others. All of it is an estimate from this router's ledger.
type Cost struct {
	Queue    float64 // prefill that waits before it
	Prefill  float64 // computing what is not reused
	Load     float64 // bringing reused blocks up from lower tiers
	Transfer float64 // fetching blocks from another worker
	Decode   float64 // its own decode and the slow-down of those who decode
	Memory   float64 // waiting for KV blocks of others to be freed
	Price    float64 // delay put on requests that arrive while it is computed
	Total    float64 // the sum
}

// TTFT is the expected time to the first token in seconds.
func (c *Cost) TTFT() float64 { return c.Queue + c.Prefill + c.Load + c.Transfer + c.Memory }

// An Alternate is a worker that was not picked.
type Alternate struct {
	Slot  kvindex.Slot
	Score float64 // by the policy; smaller is better
	Reuse int     // leading blocks it holds or will hold, see Decision
	Cost  Cost
}

// maxAlternates is how many next best workers a decision carries.
const maxAlternates = 4

// A Decision says which worker was picked and why. It belongs to its lease, is
// written once, and stays valid until the lease's Done; copy what must live
// longer.
type Decision struct {
	Slot kvindex.Slot
	// Score is the policy's number for the slot. For Expected it is Cost.Total.
	Score float64
	// Reused counts the leading blocks that the index has for the slot, each in
	// the fastest tier in which the prefix up to it is held.
	Reused [kvindex.Tiers]int
	// InFlight counts the leading blocks beyond those that outstanding requests on
	// the slot hold or are computing.
	InFlight int
	// Hit is the number of prompt tokens expected to be reused: the blocks above,
	// but never the last token of the prompt, which is always computed.
	Hit int
	// Tokens is the length of the prompt and Blocks the number of its complete blocks.
	Tokens, Blocks int
	// Cost explains the choice in seconds, whatever policy made it.
	Cost Cost
	// Slowdown is the factor by which decoding neighbours stretch the prefill; it
	// is contained in Cost.
	Slowdown float64
	// Candidates is the number of workers that were compared, see
	// Options.MaxCandidates.
	Candidates int
	// LowerBound says that a race cut the index walk short: true overlaps may be
	// greater.
	LowerBound bool
	// LoadAge is the age of the slot's report; negative = it never reported.
	LoadAge time.Duration
	// Alternates are the next best workers, best first, at most 4.
	Alternates []Alternate

	alternates [maxAlternates]Alternate
}

// Reuse is the number of leading blocks that need no computing on the slot:
// those of Reused and InFlight.
func (d *Decision) Reuse() int {
	n := d.InFlight
	for _, k := range d.Reused {
		n += k
	}
	return n
}
