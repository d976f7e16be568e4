package vllm

import (
	"context"
	"encoding/hex"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
)

var _ Sink = (*kvindex.Stream)(nil)

// TestStreamCatchesUp: an engine that was warm before the gateway came, with
// what a real vLLM repeats on its replay socket. The whole tail is there before
// the first live message, and a gap is filled.
func TestStreamCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// messages 0 to 7 of one engine, in order
		var all []recording
		for _, f := range []string{"01-fresh-and-shared", "02-salt-session-report"} {
			all = append(all, readRecordings(t, "testdata/vllm-0.32.0/events/"+f+".jsonl")...)
		}
		for i, r := range all {
			require.EqualValues(t, i, r.Seq)
		}
		payload := func(i int) []byte {
			b, err := hex.DecodeString(all[i].Payload)
			require.NoError(t, err)
			return b
		}
		e := newFakeEngine(t)
		newest := 3
		e.router = func(c *zmtp.Conn, from uint64) {
			for i := int(from); i <= newest; i++ {
				_ = c.WriteMessage(nil, []byte(all[i].Topic), number(uint64(i)), payload(i))
			}
			_ = c.WriteMessage(nil, nil, number(math.MaxUint64), nil)
		}
		x, err := kvindex.New(&kvindex.Options{BlockTokens: 32})
		require.NoError(t, err)
		slot := x.Attach("w", 0)
		st, err := x.NewStream(slot, kvindex.StreamConfig{})
		require.NoError(t, err)
		s, err := NewSubscriber("tcp://engine:5557", &SubscriberOptions{Dial: e.dial, Replay: "tcp://engine:5558"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx, st) }()
		time.Sleep(time.Second)

		stats := func() (out kvindex.StreamStats) {
			require.NoError(t, s.Do(ctx, func(k Sink) kvindex.Result {
				out = k.(*kvindex.Stream).Stats()
				return kvindex.Result{}
			}))
			return out
		}
		require.EqualValues(t, 3, stats().Last)
		stored := stats().Stored
		require.NotZero(t, stored)

		e.publish([]byte(all[4].Topic), number(4), payload(4))
		synctest.Wait()
		newest = 7
		e.publish([]byte(all[7].Topic), number(7), payload(7)) // 5 and 6 are missing
		time.Sleep(2 * time.Second)
		got := stats()
		require.EqualValues(t, 7, got.Last)
		require.EqualValues(t, 1, got.Gaps)
		require.Zero(t, got.Holes)
		require.Equal(t, kvindex.StreamLive, got.State)
		require.Greater(t, got.Stored, stored)
		require.Equal(t, []uint64{0, 5}, e.asked)

		cancel()
		<-done
		e.wg.Wait()
	})
}
