package router

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Cases that routers' own models of workers' caches get wrong.

// A model of 100 blocks, 50 prompts of 150: never more than 100, and nothing once
// the worker has left.
func TestPrivateModelIsBounded(t *testing.T) {
	policy := &LLMD{Blocks: 100}
	r, _ := newTestRouter(t, 1, nil, Options{Policy: policy})
	for i := range 50 {
		mustPick(t, r, &Request{Chain: chainOf(i, 150), Tokens: 2400}).Done(nil)
		require.LessOrEqual(t, policy.seen[slotOf(1)].Len(), 100)
	}
	require.Equal(t, 100, policy.seen[slotOf(1)].Len())
	require.NoError(t, r.SetWorkers(nil))
	require.Empty(t, policy.seen)
}

// What was sent to one rank of a worker is credited to that rank only.
func TestPrivateModelIsKeptByRank(t *testing.T) {
	r, _ := newTestRouter(t, 0, nil, Options{Policy: &LLMD{}})
	require.NoError(t, r.SetWorkers([]Worker{{Slot: slotOf(1), Name: "w"}, {Slot: slotOf(2), Name: "w"}}))
	req := &Request{Chain: chainOf(1, 8), Tokens: 129}
	r.Report(slotOf(1), Load{Waiting: 1, HasQueue: true})
	r.Report(slotOf(2), Load{HasQueue: true})
	before := scoresOf(t, r, r.opts.Policy, req)
	l := mustPick(t, r, req)
	require.Equal(t, slotOf(2), l.Slot())
	l.Done(nil)
	after := scoresOf(t, r, r.opts.Policy, req)
	require.Equal(t, before[0], after[0])
	require.Less(t, after[1], before[1])
}
