package router

import (
	"errors"
	"fmt"
)

// Timing holds the constants of the step model, in seconds. One engine step
// that computes p prefill tokens beside a batch of decoding sequences takes
//
//	T0 + max(W, B*(p+batch)) + C*(new x context) + KV*(resident context) + D*batch
//
// and, on engines that run prefill and decode of a mixed step one after the
// other, A more when something decodes. The zero value of the whole struct
// means [DefaultTiming].
type Timing struct {
	T0   float64 // per step: launch, scheduler, all-reduce
	W    float64 // per step: reading the weights
	B    float64 // per token of linear compute
	C    float64 // per new token and context token of attention
	A    float64 // per step in which anything decodes
	KV   float64 // per resident context token of a decoding sequence
	D    float64 // per decoding sequence
	Load float64 // per reused token, wherever it lies
	// Chunk is the number of prefill tokens an engine computes in one step.
	Chunk int

	// split marks learned constants: there D is the whole cost of one more
	// decoding sequence, while in the form with W it adds to B.
	split bool
}

// DefaultTiming is a 70B model in BF16 on four H100 with tensor parallelism.
// Learning starts from it when nothing else is given.
func DefaultTiming() Timing {
	return Timing{T0: 3e-3, W: 14e-3, B: 64e-6, C: 1.6e-9, KV: 32e-9, D: 50e-6, Chunk: 512}
}

// Prefill is the time to compute n new tokens behind hit reused ones on an
// engine that does nothing else.
func (t *Timing) Prefill(n, hit int) float64 {
	steps := float64((n + t.Chunk - 1) / t.Chunk)
	f := float64(n)
	return steps*t.T0 + max(t.B*f, t.W*steps) + t.C*f*(float64(hit)+f/2) + t.Load*float64(hit)
}

// step is the time of one full mixed step, context of the new tokens left out.
func (t *Timing) step(batch int, kv float64) float64 {
	v := t.T0 + max(t.W, t.B*float64(t.Chunk+batch)) + t.KV*kv + t.D*float64(batch)
	if batch > 0 {
		v += t.A
	}
	return v
}

// perSequence is the cost of one more decoding sequence.
func (t *Timing) perSequence() float64 {
	if t.split || t.A > 0 {
		return t.D
	}
	return t.D + t.B
}

// slowdown is the factor by which d decoding sequences with kv resident tokens
// stretch a prefill that shares their steps.
func (t *Timing) slowdown(d int, kv float64) float64 {
	if d == 0 {
		return 1
	}
	base := t.T0 + max(t.W, t.B*float64(t.Chunk))
	if base <= 0 {
		return 1
	}
	return 1 + (t.A+t.perSequence()*float64(d)+t.KV*kv)/base
}

// maxSeconds is the greatest constant of the step model: products of it with
// token counts stay finite.
const maxSeconds = 3600.0

// check lists what is wrong with the constants.
func (t *Timing) check() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    float64
	}{{"T0", t.T0}, {"W", t.W}, {"B", t.B}, {"C", t.C}, {"A", t.A}, {"KV", t.KV}, {"D", t.D}, {"Load", t.Load}} {
		if !(f.v >= 0 && f.v <= maxSeconds) {
			errs = append(errs, fmt.Errorf("router: Options.Timing.%s is %v, want 0 to %v seconds", f.name, f.v, maxSeconds))
		}
	}
	if t.Chunk < 0 || t.Chunk > maxTokens {
		errs = append(errs, fmt.Errorf("router: Options.Timing.Chunk is %d, want 1 to %d, or 0 for %d", t.Chunk, maxTokens, DefaultTiming().Chunk))
	}
	return errors.Join(errs...)
}
