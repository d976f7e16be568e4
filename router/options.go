package router

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// Options set up a Router. The zero value of each field is a good default, and
// New copies what it is given.
type Options struct {
	// Policy scores the workers; nil = Expected{}. A policy with state of its own
	// (RoundRobin, LLMD) must not be shared between routers.
	Policy Policy
	// BlockTokens is the number of tokens of one block of Request.Chain and of the
	// index, at most block.MaxBlockTokens. 0 = what the index says by a method
	// BlockTokens() int, as *kvindex.Index has one, else 16. New refuses another
	// number than the index's.
	BlockTokens int
	// Rand draws ties; nil = math/rand/v2. It is called under the router's mutex.
	Rand func() uint64
	// Now is the clock; nil = time.Now. It may be set back: the ledger's time then
	// goes on from where it was.
	Now func() time.Time
	// Timing is where the constants of the step model start; zero = DefaultTiming.
	// A zero Chunk in an otherwise given Timing = 512.
	Timing Timing
	// FixedTiming keeps Timing as it is given. Otherwise its constants are learned.
	FixedTiming bool
	// TierLoad is the time to bring one reused token up from each tier, in seconds,
	// on top of Timing.Load. Zero = nothing: reuse from a lower tier counts as much
	// as from the GPU.
	TierLoad [kvindex.Tiers]float64
	// TPOTTarget is the time per output token that is aimed at; how much of it is
	// in use weighs the decode terms of Expected. 0 = 50 ms.
	TPOTTarget time.Duration
	// OutputMean is the expected number of output tokens of a request until enough
	// have completed; 0 = 256.
	OutputMean float64
	// FixedOutputMean keeps OutputMean as it is given.
	FixedOutputMean bool
	// Limits turn workers away from new requests; zero = none.
	Limits Limits
	// ReportMaxAge is the age at which an engine's report no longer corrects the
	// ledger or counts for Limits; 0 = 10 s. Requests go on without it.
	ReportMaxAge time.Duration
	// FailureLimit is the number of failed leases in a row that pauses a worker;
	// 0 = 3, negative = never. When all candidates are paused, none is.
	FailureLimit int
	// FailurePause is how long; 0 = 1 s.
	FailurePause time.Duration
	// MaxCandidates bounds the workers that a pick scores. When more may take the
	// request, it scores those that hold some of the prompt, by the index or by
	// outstanding requests, at most MaxCandidates of each and the deepest first, and
	// MaxCandidates others drawn at random. 0 = 512, negative = no bound. A policy
	// that is a WholeLister has none.
	MaxCandidates int
	// Hooks are told of picks and ends.
	Hooks Hooks
}

// Limits are bounds over which a worker takes no new request. When no worker is
// under them, Pick gives ErrOverloaded. A zero bound is none. Bounds on reports
// hold only while the report is younger than Options.ReportMaxAge and has the
// figure: unknown is not overload.
type Limits struct {
	// Outstanding bounds the requests of this router on one worker.
	Outstanding int
	// Waiting bounds the queue length that the engine reports.
	Waiting int
	// KVUsage bounds the share of KV memory in use that the engine reports, 0 to 1.
	KVUsage float64
}

// Hooks are called synchronously, outside the router's mutex, by the goroutine
// whose call caused them. Nil ones are skipped. They must be quick.
type Hooks struct {
	// OnPick follows a booking. The decision belongs to the lease.
	OnPick func(*Decision, *Request)
	// OnReject follows a refusal.
	OnReject func(*RejectError, *Request)
	// OnDone follows the end of a lease.
	OnDone func(Outcome)
}

// An Outcome is how a lease ended.
type Outcome struct {
	// Decision is the lease's; it must not be kept.
	Decision *Decision
	// Err is what Done was given.
	Err error
	// PredictedTTFT is what the decision expected, without the effect of requests
	// that came later. TTFT is the time from pick to first token; 0 = not seen.
	PredictedTTFT, TTFT time.Duration
	// Total is the time from pick to end.
	Total time.Duration
	// Tokens is the number of output tokens reported by Lease.Tokens and
	// Lease.Output.
	Tokens int
	// CachedTokens is what the engine said it reused, -1 = unknown; Decision.Hit is
	// what was expected.
	CachedTokens int
}

// indexTokens is the block size that an index says it has, 0 when it says none.
func indexTokens(index Index) int {
	if x, ok := index.(interface{ BlockTokens() int }); ok {
		return x.BlockTokens()
	}
	return 0
}

func (o *Options) withDefaults(index Index) Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Policy == nil {
		c.Policy = Expected{}
	}
	if c.BlockTokens == 0 {
		c.BlockTokens = indexTokens(index)
	}
	if c.BlockTokens == 0 {
		c.BlockTokens = 16
	}
	if c.Rand == nil {
		c.Rand = rand.Uint64
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	if c.Timing.Chunk == 0 {
		c.Timing.Chunk = DefaultTiming().Chunk
	}
	if c.TPOTTarget == 0 {
		c.TPOTTarget = 50 * time.Millisecond
	}
	if c.OutputMean == 0 {
		c.OutputMean = 256
	}
	if c.ReportMaxAge == 0 {
		c.ReportMaxAge = 10 * time.Second
	}
	if c.FailureLimit == 0 {
		c.FailureLimit = 3
	}
	if c.FailurePause == 0 {
		c.FailurePause = time.Second
	}
	if c.MaxCandidates == 0 {
		c.MaxCandidates = 512
	}
	return c
}

// validate lists everything that is wrong, by itself or beside the index.
func (o *Options) validate(index Index) error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("router: Options."+format, args...))
		}
	}
	bad(o.BlockTokens > 0 && o.BlockTokens <= block.MaxBlockTokens, "BlockTokens is %d, want 1 to %d, or 0 for the index's", o.BlockTokens, block.MaxBlockTokens)
	if n := indexTokens(index); n != 0 && o.BlockTokens > 0 {
		bad(n == o.BlockTokens, "BlockTokens is %d, but the index has blocks of %d", o.BlockTokens, n)
	}
	if err := o.Timing.check(); err != nil {
		errs = append(errs, err)
	}
	for t, v := range o.TierLoad {
		bad(v >= 0 && v <= maxSeconds, "TierLoad[%v] is %v, want 0 to %v seconds", kvindex.Tier(t), v, maxSeconds)
	}
	bad(o.TPOTTarget > 0, "TPOTTarget is %v, want > 0, or 0 for 50 ms", o.TPOTTarget)
	bad(o.OutputMean >= 0 && o.OutputMean <= maxTokens, "OutputMean is %v, want > 0 and at most %d, or 0 for 256", o.OutputMean, maxTokens)
	bad(o.ReportMaxAge > 0, "ReportMaxAge is %v, want > 0, or 0 for 10 s", o.ReportMaxAge)
	bad(o.FailurePause > 0, "FailurePause is %v, want > 0, or 0 for 1 s", o.FailurePause)
	bad(o.MaxCandidates <= slotLimit, "MaxCandidates is %d, want at most %d, or 0 for 512, or negative for no bound", o.MaxCandidates, slotLimit)
	bad(o.Limits.Outstanding >= 0, "Limits.Outstanding is %d, want > 0, or 0 for no limit", o.Limits.Outstanding)
	bad(o.Limits.Waiting >= 0, "Limits.Waiting is %d, want > 0, or 0 for no limit", o.Limits.Waiting)
	bad(o.Limits.KVUsage >= 0 && o.Limits.KVUsage <= 1, "Limits.KVUsage is %v, want > 0 and at most 1, or 0 for no limit", o.Limits.KVUsage)
	return errors.Join(errs...)
}
