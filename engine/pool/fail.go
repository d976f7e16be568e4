package pool

import (
	"context"
	"fmt"
	"sync"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
)

// errDown ends the attempts that Fail takes back.
var errDown = fmt.Errorf("%w: the worker is down", engine.ErrUnreachable)

// Fail says that the workers of the slots do not answer any more. Requests there
// of which nothing was passed on yet move to other workers at once, by the rules
// for retries, rather than wait for an answer that will not come; those that have
// begun go on. Requests that are still picked for the slots fail there likewise.
// Whoever knows it calls Set without the slots next: a Set that lists one again
// takes it for well. Slots that the pool does not have are passed over.
func (p *Pool) Fail(slots ...kvindex.Slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range slots {
		if m := p.members.Load().bySlot[s]; m != nil {
			m.wait.fail()
		}
	}
}

// waiting holds the attempts at a slot that have not begun to answer.
type waiting struct {
	mu     sync.Mutex
	down   bool
	cancel map[*call]context.CancelCauseFunc
}

// enter notes an attempt; false says that the slot has failed.
func (w *waiting) enter(c *call, cancel context.CancelCauseFunc) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return false
	}
	if w.cancel == nil {
		w.cancel = make(map[*call]context.CancelCauseFunc)
	}
	w.cancel[c] = cancel
	return true
}

// leave forgets an attempt; false says that it was taken back before.
func (w *waiting) leave(c *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, there := w.cancel[c]
	delete(w.cancel, c)
	return there
}

func (w *waiting) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for _, cancel := range w.cancel {
		cancel(errDown)
	}
	w.cancel = nil
}

func (w *waiting) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down
}
