package fleet

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine/pool"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/router"
)

// Options tune a Fleet. The zero value of each field is a good default, and nil
// options work.
type Options struct {
	// Router and Pool set up the router and the pool. Their BlockTokens are
	// BlockTokens, and without another Guess the pool's is the index.
	Router router.Options
	Pool   pool.Options
	// BlockTokens is the number of tokens of an index block; 0 means 16. Engine
	// blocks of another size are regrouped.
	BlockTokens int
	// MaxIndexBytes is the budget of the index; 0 means 1 GiB.
	MaxIndexBytes int64

	// LoadEvery is the time between two looks at a worker's load; 0 means 250 ms.
	LoadEvery time.Duration
	// CheckTimeout bounds one look; 0 means 2 s. FailAfter is the number of looks
	// in a row that must fail before a worker is taken out; 0 means 3.
	CheckTimeout time.Duration
	FailAfter    int
	// ProbeTimeout bounds a probe, ProbeEvery is the time between two of a worker
	// that does not answer. 0 means 10 s and 1 s.
	ProbeTimeout, ProbeEvery time.Duration

	// WarnAfter is how long an event channel may stand without a word, while
	// requests are answered, before Status.Warning names it; 0 means 10 s.
	WarnAfter time.Duration

	// SweepEvery is the time between two sweeps of the index, which give back the
	// memory of workers that left; 0 means 5 s.
	SweepEvery time.Duration

	// Hooks are told what happens.
	Hooks Hooks
}

// Hooks observe a Fleet. Each may be nil and must not block.
type Hooks struct {
	// Up is called when a worker may be picked, with what it said about itself.
	Up func(w discovery.Worker, p *vllm.Probe)
	// Down is called when a worker was taken out or its first probe failed; err
	// says why, nil when discovery dropped it.
	Down func(w discovery.Worker, err error)
	// Source is called when discovery cannot tell the present state.
	Source func(age time.Duration, err error)
}

func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.LoadEvery, 250*time.Millisecond)
	def(&c.CheckTimeout, 2*time.Second)
	def(&c.ProbeTimeout, 10*time.Second)
	def(&c.ProbeEvery, time.Second)
	def(&c.WarnAfter, 10*time.Second)
	def(&c.SweepEvery, 5*time.Second)
	if c.BlockTokens == 0 {
		c.BlockTokens = 16
	}
	if c.MaxIndexBytes == 0 {
		c.MaxIndexBytes = 1 << 30
	}
	if c.FailAfter == 0 {
		c.FailAfter = 3
	}
	c.Router.BlockTokens, c.Pool.BlockTokens = c.BlockTokens, c.BlockTokens
	return c
}

func (o *Options) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"BlockTokens", int64(o.BlockTokens)}, {"MaxIndexBytes", o.MaxIndexBytes}, {"LoadEvery", int64(o.LoadEvery)},
		{"CheckTimeout", int64(o.CheckTimeout)}, {"FailAfter", int64(o.FailAfter)},
		{"ProbeTimeout", int64(o.ProbeTimeout)}, {"ProbeEvery", int64(o.ProbeEvery)},
		{"WarnAfter", int64(o.WarnAfter)}, {"SweepEvery", int64(o.SweepEvery)},
	} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("fleet: Options.%s is %d, must not be negative", f.name, f.v))
		}
	}
	return errors.Join(errs...)
}
