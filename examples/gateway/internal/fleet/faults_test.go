package fleet

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/kvindex"
)

// Cases that peers get wrong where workers come up, seen from the whole fleet.

// engineOf starts an engine of these tests that the test closes.
func engineOf(t *testing.T, opts sim.Options) *sim.Server {
	opts.Config, opts.Speed = sim.H100TP4("dram").WithBlockTokens(16).VLLM(), fast
	s, err := sim.NewServer(&opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// over runs a fleet over the workers until the test ends.
func over(t *testing.T, opts *Options, workers ...discovery.Worker) *Fleet {
	f, err := New(opts)
	require.NoError(t, err)
	src, err := discovery.Static(workers...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx, src) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	wctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	require.NoError(t, f.Wait(wctx, len(workers)))
	return f
}

// A fleet that starts beside engines at work is synced once it knows what they
// hold, and not before.
func TestSyncedMeansRestored(t *testing.T) {
	r := newRig(t, 3, nil)
	for i := range uint32(12) {
		_, _, err := r.ask(request(prompt(i, i, 3200), 2))
		require.NoError(t, err)
	}
	r.eventually("events", func() bool { return r.blocks() == r.engineBlocks() })
	for range 8 {
		f := over(t, &Options{LoadEvery: 10 * time.Millisecond}, r.workers...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		require.NoError(t, f.Synced(ctx))
		require.Equal(t, r.engineBlocks(), f.Index().Stats().Holders[kvindex.TierGPU])
	}
}

// An engine without events, and one whose events reach nobody, serve; and that
// they say nothing can be told from the status, beside the engine's own count of
// lookups.
func TestSilentRanksCanBeTold(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() // takes connections and never speaks
	off, mute := engineOf(t, sim.Options{NoEvents: true}), engineOf(t, sim.Options{})
	f := over(t, &Options{LoadEvery: 5 * time.Millisecond},
		discovery.Worker{Name: "mute", Endpoints: discovery.Endpoints{HTTP: mute.URL(), Events: "tcp://" + l.Addr().String()}},
		discovery.Worker{Name: "off", Endpoints: discovery.Endpoints{HTTP: off.URL()}})
	r := &rig{t: t, fleet: f}
	for i := range uint32(40) {
		_, _, err := r.ask(request(prompt(i, i, 320), 2))
		require.NoError(t, err)
	}
	r.eventually("both at work", func() bool {
		ws := f.Workers()
		return ws[0].Queries > 0 && ws[1].Queries > 0
	})
	ws := f.Workers()
	require.True(t, ws[0].HasEvents)
	require.Zero(t, ws[0].Messages)
	require.Equal(t, kvindex.StreamInitial, ws[0].Events)
	require.False(t, ws[1].HasEvents)
	require.Contains(t, errors.Join(missing(ws[1])...).Error(), "kv-events-config")
	require.Zero(t, f.Index().Stats().Blocks)
}

func missing(s Status) (out []error) {
	for _, m := range s.Missing {
		out = append(out, errors.New(m))
	}
	return out
}
