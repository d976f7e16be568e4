package sim

import (
	"errors"
	"fmt"
	"math"
)

// Timing holds the constants of the step formula, in seconds and tokens. See
// the package comment for the formula.
type Timing struct {
	T0    float64 // a step: launch, scheduler, all-reduce latency
	W     float64 // a step: reading the weights once
	B     float64 // a token: linear layers
	C     float64 // a new token times a token before it: prefill attention
	KV    float64 // a resident token of a decoding sequence: decode attention
	D     float64 // a decoding sequence
	Load  float64 // a hit token brought from the host tier; 0 for device memory only
	Chunk int     // prefill tokens a step
}

// Prefill is the time that n new tokens behind hit cached ones take on an
// otherwise idle engine.
func (t *Timing) Prefill(n, hit int) float64 {
	if n <= 0 || t.Chunk <= 0 {
		return 0
	}
	steps := float64((n + t.Chunk - 1) / t.Chunk)
	f, h := float64(n), float64(hit)
	return steps*t.T0 + max(t.B*f, t.W*steps) + t.C*f*(h+f/2) + t.Load*h
}

// step is the time of one step.
func (t *Timing) step(prefill int, ctx float64, decoding, kv int) float64 {
	return t.T0 + max(t.W, t.B*float64(prefill+decoding)) + t.C*ctx + t.KV*float64(kv) + t.D*float64(decoding)
}

// Config describes one engine. Start from a preset.
type Config struct {
	Timing Timing
	// BlockTokens is the number of tokens of a KV block.
	BlockTokens int
	// RunBlocks is the number of blocks that running requests may hold.
	RunBlocks int
	// CacheBlocks is the number of blocks of the whole prefix cache, host tier
	// included. 0 means RunBlocks; less than RunBlocks is an error.
	CacheBlocks int
	// MaxSeqs bounds the sequences that run at once. 0 means 1024.
	MaxSeqs int
	// Preempt chooses how memory is promised. True is vLLM's way: a sequence
	// gets blocks as it grows, and when none is left the latest one is put back
	// and recomputed later. False reserves prompt and output at admission.
	Preempt bool
	// PublishAtPrefillEnd makes the blocks of a prompt visible, and announces
	// them, when its prefill ends, and merges copies: the model that published
	// comparisons of routing policies use. False is vLLM's way: a block can be
	// hit from the moment it is scheduled, copies stay apart, a hit ends at a
	// block border and leaves at least one token to compute, and events come
	// with the results of their step.
	PublishAtPrefillEnd bool
	// PerToken makes outputs tell every token. False tells only first tokens
	// and ends, which is all that a replay needs.
	PerToken bool

	// Model makes the output tokens of requests that carry token ids.
	Model Model
	// Hash names blocks of requests that carry token ids.
	Hash HashAlgo
}

// H100TP4 is a Llama-3-70B class model in BF16 on four H100 with tensor
// parallelism: 400,000 tokens of KV for running requests and, with "dram", three
// million tokens of prefix cache in host memory at 4 us a hit token ("hbm": the
// device's blocks only). Blocks have 512 tokens, memory is reserved at admission
// and blocks are visible when the prefill ends, as in published comparisons of
// routing policies; see [Config.VLLM] for an engine's own habits. Any other name
// gives a Config that NewCore refuses.
func H100TP4(tier string) Config {
	c := Config{
		Timing:              Timing{T0: 0.003, W: 0.014, B: 64e-6, C: 1.6e-9, KV: 3.2e-8, D: 5e-5, Chunk: 512},
		BlockTokens:         512,
		PublishAtPrefillEnd: true,
	}
	switch tier {
	case "hbm":
		c.RunBlocks = h100RunTokens / c.BlockTokens
		c.CacheBlocks = c.RunBlocks
	case "dram":
		c.RunBlocks = h100RunTokens / c.BlockTokens
		c.CacheBlocks = h100HostTokens / c.BlockTokens
		c.Timing.Load = 4e-6
	}
	return c
}

const (
	h100RunTokens  = 400_000
	h100HostTokens = 3_000_000
)

// WithBlockTokens is c with another block size and the same number of tokens,
// down to whole blocks.
func (c Config) WithBlockTokens(n int) Config {
	if n > 0 && c.BlockTokens > 0 {
		c.RunBlocks = c.RunBlocks * c.BlockTokens / n
		c.CacheBlocks = c.CacheBlocks * c.BlockTokens / n
	}
	c.BlockTokens = n
	return c
}

// VLLM is c with the habits of a real vLLM: preemption, blocks visible when
// scheduled, every token told.
func (c Config) VLLM() Config {
	c.Preempt, c.PublishAtPrefillEnd, c.PerToken = true, false, true
	return c
}

const maxBlocks = 1 << 28 // block numbers are int32

func (c Config) withDefaults() Config {
	if c.CacheBlocks == 0 {
		c.CacheBlocks = c.RunBlocks
	}
	if c.MaxSeqs == 0 {
		c.MaxSeqs = 1024
	}
	c.Model = c.Model.withDefaults()
	return c
}

func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("sim: "+format, args...)) }
	for _, f := range []struct {
		name string
		v    float64
	}{
		{"T0", c.Timing.T0}, {"W", c.Timing.W}, {"B", c.Timing.B}, {"C", c.Timing.C},
		{"KV", c.Timing.KV}, {"D", c.Timing.D}, {"Load", c.Timing.Load},
	} {
		if !(f.v >= 0) || math.IsInf(f.v, 0) {
			bad("Timing.%s is %v, want a finite number of at least 0", f.name, f.v)
		}
	}
	if c.Timing.T0+c.Timing.W <= 0 {
		bad("Timing.T0 and Timing.W are both 0, so a step could take no time")
	}
	if c.Timing.Chunk < 1 {
		bad("Timing.Chunk is %d, want at least 1", c.Timing.Chunk)
	}
	if c.BlockTokens < 1 || c.BlockTokens > 1<<20 {
		bad("BlockTokens is %d, want 1 to %d", c.BlockTokens, 1<<20)
	}
	if c.RunBlocks < 1 || c.RunBlocks > maxBlocks {
		bad("RunBlocks is %d, want 1 to %d", c.RunBlocks, maxBlocks)
	}
	if c.CacheBlocks < c.RunBlocks || c.CacheBlocks > maxBlocks {
		bad("CacheBlocks is %d, want RunBlocks (%d) to %d", c.CacheBlocks, c.RunBlocks, maxBlocks)
	}
	if c.MaxSeqs < 1 {
		bad("MaxSeqs is %d, want at least 1", c.MaxSeqs)
	}
	if c.Hash >= hashAlgos {
		bad("Hash is %d, which is no algorithm", c.Hash)
	}
	errs = append(errs, c.Model.validate()...)
	return errors.Join(errs...)
}
