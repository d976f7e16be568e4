package sim

import (
	"errors"

	"github.com/stator-go/stator/kvindex"
)

// Errors of Core.Add.
var (
	// ErrTooLong: prompt and output would not fit into the memory for running
	// requests even if nothing else ran.
	ErrTooLong = errors.New("sim: request does not fit into the KV memory")
	// ErrBadRequest: no prompt, no output asked for, or an id that is in use.
	ErrBadRequest = errors.New("sim: bad request")
)

// A Req is one sequence to be computed. The core reads it until the sequence has
// ended and never changes it, so clones of a core share it.
type Req struct {
	// ID names the request. It must not be in use.
	ID uint64
	// Out is the number of output tokens at most, at least 1. Without EOS (see
	// Model.StopEvery) it is the number.
	Out int

	// Tokens are the prompt's ids. With them the core makes output ids, names
	// blocks by content and caches output as well.
	Tokens []uint32

	// Without Tokens, Prompt is the number of prompt tokens and Chain the names
	// of its complete blocks, each standing for its block and all before it.
	// Names beyond the last complete block are ignored; blocks without a name are
	// never cached, nor is output.
	Prompt int
	Chain  []uint64

	// Salt, Adapter and AdapterPath set the names of blocks apart, Session is
	// told with them (with Tokens only).
	Salt, Adapter, AdapterPath, Session string
	// Seed, if not 0, draws another answer to the same prompt: the further
	// choices of a request that asked for several.
	Seed uint64
	// IgnoreEOS makes the output Out tokens long.
	IgnoreEOS bool
	// FullReport announces the cached prefix again as if it were new, vLLM's
	// kv_cache_report_mode "full".
	FullReport bool
	// NoCacheRead computes the whole prompt, as prompt log-probabilities need.
	NoCacheRead bool

	// Data is the caller's and is carried along.
	Data any
}

func (r *Req) prompt() int {
	if r.Tokens != nil {
		return len(r.Tokens)
	}
	return r.Prompt
}

// A Token is news about one sequence at the end of a step.
type Token struct {
	Req *Req
	// ID is the token, if the request has token ids.
	ID uint32
	// Count is the number of output tokens so far, this one included.
	Count int
	// Cached is the number of prompt tokens that were found in cache at first
	// admission.
	Cached int
	// Stored is the number of tokens in blocks that this sequence brought into
	// the cache so far.
	Stored int
	// Done ends the sequence; Stopped tells that EOS ended it.
	Done, Stopped bool
}

// First tells whether this is the sequence's first token.
func (t *Token) First() bool { return t.Count == 1 }

// A CacheEvent is one announcement about the prefix cache.
type CacheEvent struct {
	kvindex.Event
	// Session is the request's session, on stored blocks.
	Session string
}

// An Output is what Step has to tell. It and everything it refers to, requests
// aside, is valid until the next call of Step, Reset or Cancel.
type Output struct {
	// Stepped tells that a step ended, at time At.
	Stepped bool
	At      float64
	// Tokens has one entry for a sequence that got a token in the step, in the
	// order of scheduling; without Config.PerToken first and last ones only.
	Tokens []Token
	// Cache has the cache events in the order in which they happened: what was
	// removed to make room stands before what was stored there.
	Cache []CacheEvent
	// Preempted lists sequences that were put back.
	Preempted []*Req
}

// Stats are figures about a core. Counters only grow.
type Stats struct {
	Running, Waiting int // sequences
	UsedBlocks       int // held or reserved by running sequences
	RunBlocks        int // that running sequences may hold
	CachedBlocks     int // that bear a name, in use or not

	Steps, Preemptions, Evictions uint64
	Finished, Cancelled           uint64
	// Queries and Hits are the prompt tokens that were looked up and found at
	// first admissions.
	Queries, Hits uint64
	// PromptTokens were admitted, OutputTokens produced.
	PromptTokens, OutputTokens uint64
	// BusySeconds is the sum of step times.
	BusySeconds float64
}

// KVUsage is the share of blocks that running sequences hold.
func (s *Stats) KVUsage() float64 { return float64(s.UsedBlocks) / float64(s.RunBlocks) }
