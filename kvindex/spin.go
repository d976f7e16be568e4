package kvindex

import (
	"runtime"
	"sync/atomic"
)

// A spinLock guards work of a few microseconds, less than it takes to park and
// wake a goroutine: with a sync.Mutex two writers spend most of their time
// parking. It spins for a bounded time and then yields, so a holder that lost
// its processor does not cost the others theirs.
type spinLock struct{ v atomic.Uint32 }

// spinBound is the number of looks at a taken lock between two yields.
const spinBound = 1 << 10

func (l *spinLock) Lock() {
	for i := 0; !l.v.CompareAndSwap(0, 1); {
		for l.v.Load() != 0 {
			if i++; i%spinBound == 0 {
				runtime.Gosched()
			}
		}
	}
}

func (l *spinLock) Unlock() { l.v.Store(0) }
