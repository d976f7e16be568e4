package vllm

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// TokenCacheOptions tune a TokenCache. The zero value, and nil, are ready for
// use.
type TokenCacheOptions struct {
	// MaxBytes bounds the ids kept, four bytes each and some for the entry. 0
	// means 64 MiB.
	MaxBytes int
	// TTL is how long an entry is believed: a chat template may write today's
	// date into a prompt. 0 means 10 min.
	TTL time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A TokenCache remembers the token ids of prompts, the least recently used
// giving way. It is safe for concurrent use, and may be shared by workers whose
// models of one name have one tokenizer and template.
type TokenCache struct {
	opts  TokenCacheOptions
	learn learner

	mu    sync.Mutex
	lru   *simplelru.LRU[promptKey, tokenEntry]
	bytes int
}

// promptKey is the digest of everything that the ids of a prompt depend on.
type promptKey [32]byte

type tokenEntry struct {
	ids []uint32 // never changed
	by  *lesson  // what they were put together by; nil when the engine told them
	at  time.Time
}

// entryOverhead is what an entry costs besides its ids, roughly.
const entryOverhead = 192

func (e *tokenEntry) size() int { return 4*len(e.ids) + entryOverhead }

// NewTokenCache returns an empty cache.
func NewTokenCache(opts *TokenCacheOptions) (*TokenCache, error) {
	var o TokenCacheOptions
	if opts != nil {
		o = *opts
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.TTL == 0 {
		o.TTL = 10 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &TokenCache{opts: o}
	// The number of entries is bounded through their bytes.
	c.lru, _ = simplelru.NewLRU(math.MaxInt32, func(_ promptKey, e tokenEntry) { c.bytes -= e.size() })
	// What was made by a rule of which nothing is known any more is not believed.
	c.learn.lru, _ = simplelru.NewLRU(learnContexts, func(_ promptKey, s *lesson) { s.broken = true })
	return c, nil
}

func (o *TokenCacheOptions) validate() error {
	var errs []error
	if o.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("vllm: TokenCacheOptions.MaxBytes is %d, must not be negative", o.MaxBytes))
	}
	if o.TTL < 0 {
		errs = append(errs, fmt.Errorf("vllm: TokenCacheOptions.TTL is %v, must not be negative", o.TTL))
	}
	return errors.Join(errs...)
}

func (c *TokenCache) get(k promptKey) (tokenEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.lru.Get(k)
	if !ok {
		return tokenEntry{}, false
	}
	// Less than nothing: the clock was set back, and how old it is is not known.
	if age := c.opts.Now().Sub(e.at); age < 0 || age > c.opts.TTL {
		c.lru.Remove(k)
		return tokenEntry{}, false
	}
	return e, true
}

// put takes ids over. An entry that does not fit at all is not kept.
func (c *TokenCache) put(k promptKey, ids []uint32, by *lesson) {
	e := tokenEntry{ids: ids, by: by, at: c.opts.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(k)
	if e.size() > c.opts.MaxBytes {
		return
	}
	for c.bytes+e.size() > c.opts.MaxBytes {
		c.lru.RemoveOldest()
	}
	c.lru.Add(k, e)
	c.bytes += e.size()
}

// Len is the number of prompts kept and their size in bytes.
func (c *TokenCache) Len() (prompts, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Len(), c.bytes
}
