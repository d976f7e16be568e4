package vllm

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/internal/zmtp"
)

// A warm, idle engine whose replay socket fails the first time is asked again.
func TestFirstReplayIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(t, "w")
		e := newFakeEngine(t)
		failed := false
		e.router = func(c *zmtp.Conn, from uint64) {
			if !failed {
				failed = true
				c.Close()
				return
			}
			_ = c.WriteMessage(nil, number(0), batchOf(asMap(1, 0, 3)))
			_ = c.WriteMessage(nil, number(math.MaxUint64), nil)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		f.subscribe(ctx, &wg, "w", e, nil)
		time.Sleep(5 * time.Minute)
		require.Equal(t, 3, f.gpu("w", 1, 3), "asked %d times", e.requests())
		cancel()
		wg.Wait()
		e.wg.Wait()
	})
}
