package pool

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// Options tunes a [Pool]. The zero value, and nil, are ready for use.
type Options struct {
	// BlockTokens is the number of tokens of a block, which must be that of the
	// router and the index. 0 means theirs.
	BlockTokens int
	// Scheme of the hashes, which must be that of the router's index. Empty means
	// the index's, or block.SchemeBLAKE3 when the router has no index or one that
	// does not say.
	Scheme block.Scheme
	// Scope is what all requests have in common (Revision, Group). An empty Model
	// is filled with the base model of each request; Adapter and Tenant always
	// are.
	Scope block.Scope
	// MaxScopes bounds the hashers kept, one for each model, adapter and salt in
	// use. 0 means 1024.
	MaxScopes int
	// Bytes hashes prompts by their bytes even where an engine has a tokeniser.
	Bytes bool
	// TokenizeTimeout bounds the question to a tokeniser. 0 means 5 s.
	TokenizeTimeout time.Duration

	// Guess is where the pool writes what it takes the workers to hold whose
	// engines do not say (Worker.Events is false): the prompts of the requests
	// that passed here, the latest ones, as many blocks as Worker.KVBlocks or else
	// GuessBlocks. Usually it is the router's index. It is a guess: an engine may
	// have evicted such blocks, and holds others. nil means no guessing; then only
	// requests at work are known to share a prefix.
	Guess Storer
	// GuessBlocks is the number of blocks of a worker whose KVBlocks is 0. 0 means
	// 32,768, half a million tokens.
	GuessBlocks int

	// MaxAttempts bounds how often one request is sent, the first time included.
	// 0 means 3.
	MaxAttempts int
	// RetryRatio is how many retries each request earns for the pool's budget;
	// 0 means 0.2. RetryBurst is what the budget can hold, and starts with; 0
	// means 256.
	RetryRatio float64
	RetryBurst int
	// Backoff is the mean pause before the second retry, doubled for each further
	// one and at most 1 s. The first retry goes to another worker at once. 0
	// means 20 ms.
	Backoff time.Duration
	// Rand is the source of jitter, uniform in [0, 1). It must be safe for
	// concurrent use. nil means math/rand/v2's Float64.
	Rand func() float64

	// Hooks observes requests. Each func may be nil and must not block.
	Hooks Hooks
}

// Hooks observes a pool's requests. The pointers are valid during the call only.
type Hooks struct {
	// Picked follows each pick, of retries too.
	Picked func(req *engine.Request, worker string, d *router.Decision)
	// Ended is called once for each request that was picked a worker for.
	Ended func(req *engine.Request, o *Outcome)
}

// An Outcome is how a request went, predicted beside actual.
type Outcome struct {
	// Worker and Slot are where it was sent last, Decision why.
	Worker   string
	Slot     kvindex.Slot
	Decision *router.Decision
	// Attempts is how often it was sent.
	Attempts int
	// Prompt is the number of prompt tokens, by their count or, when Bytes is
	// set, estimated from the prompt's size.
	Prompt int
	Bytes  bool
	// Cached is how many of them the engine says it had cached, -1 if unknown;
	// Decision.Hit is what was expected.
	Cached int
	// Tokens is the number of output tokens.
	Tokens int
	// FirstToken is the time from the request's arrival in the pool to the first
	// token passed on, 0 if there was none or the request does not stream; Total
	// that to the end.
	FirstToken, Total time.Duration
	// Err is why it failed, nil if it did not.
	Err error
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.MaxScopes = cmp.Or(c.MaxScopes, 1024)
	c.TokenizeTimeout = cmp.Or(c.TokenizeTimeout, 5*time.Second)
	c.GuessBlocks = cmp.Or(c.GuessBlocks, 32<<10)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.RetryRatio = cmp.Or(c.RetryRatio, 0.2)
	c.RetryBurst = cmp.Or(c.RetryBurst, 256)
	c.Backoff = cmp.Or(c.Backoff, 20*time.Millisecond)
	return c
}

// agree compares the block size and the scheme with the router's.
func (o *Options) agree(r *router.Router) error {
	var errs []error
	if n := r.BlockTokens(); o.BlockTokens > 0 && o.BlockTokens != n {
		errs = append(errs, fmt.Errorf("pool: Options.BlockTokens is %d, but the router has blocks of %d", o.BlockTokens, n))
	}
	if s := r.Scheme(); s != "" && o.Scheme.Known() && o.Scheme != s {
		errs = append(errs, fmt.Errorf("pool: Options.Scheme is %q, but the router's index has %q: %w", o.Scheme, s, block.ErrScheme))
	}
	return errors.Join(errs...)
}

func (o *Options) validate() error {
	var errs []error
	for _, f := range []struct {
		name   string
		v      int64
		preset string
	}{
		{"BlockTokens", int64(o.BlockTokens), "the router's"},
		{"MaxScopes", int64(o.MaxScopes), "1024"},
		{"GuessBlocks", int64(o.GuessBlocks), "32768"},
		{"MaxAttempts", int64(o.MaxAttempts), "3"},
		{"RetryBurst", int64(o.RetryBurst), "256"},
	} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("pool: Options.%s is %d, want > 0, or 0 for %s", f.name, f.v, f.preset))
		}
	}
	if o.TokenizeTimeout < 0 {
		errs = append(errs, fmt.Errorf("pool: Options.TokenizeTimeout is %v, want > 0, or 0 for 5 s", o.TokenizeTimeout))
	}
	if o.Backoff < 0 {
		errs = append(errs, fmt.Errorf("pool: Options.Backoff is %v, want > 0, or 0 for 20 ms", o.Backoff))
	}
	if !(o.RetryRatio > 0 && o.RetryRatio <= 1) {
		errs = append(errs, fmt.Errorf("pool: Options.RetryRatio is %v, want > 0 and at most 1, or 0 for 0.2", o.RetryRatio))
	}
	if o.Scope.Adapter != "" || o.Scope.Tenant != "" {
		errs = append(errs, errors.New("pool: Options.Scope must leave Adapter and Tenant empty, requests bring them"))
	}
	if len(errs) == 0 {
		if _, err := block.NewHasher(o.Scope, o.BlockTokens, &block.Options{Scheme: o.Scheme}); err != nil {
			errs = append(errs, fmt.Errorf("pool: Options: %w", err))
		}
	}
	return errors.Join(errs...)
}
