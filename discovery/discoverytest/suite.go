package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stator-go/stator/discovery"
)

// A Harness makes stores for the suite.
type Harness struct {
	// New makes a fresh store that holds the given workers. It is called once per
	// case.
	New func(initial []discovery.Worker) (*Store, error)
	// Wait bounds how long the suite waits for an update that must come. 0 means
	// 10 seconds.
	Wait time.Duration
	// Around wraps each case; nil runs it as it is. It may be synctest.Test when
	// neither the source nor the store waits for anything outside the process.
	Around func(t *testing.T, f func(t *testing.T))
	// Fixed says that stores cannot change, Whole that they cannot be cut. Cases
	// that need it are then left out.
	Fixed, Whole bool
}

// A Store is the place a source reads, as the suite drives it.
type Store struct {
	Source discovery.Source
	// Put adds or replaces workers by name. Not used when the harness is Fixed.
	Put func(workers ...discovery.Worker) error
	// Drop takes workers out by name. Not used when the harness is Fixed.
	Drop func(names ...string) error
	// Cut breaks the link to the store, or the store itself, and returns the
	// repair. Put and Drop must work meanwhile; their effect shows at the latest
	// after the repair. Not used when the harness is Whole.
	Cut func() (repair func() error, err error)
	// Close frees what New made. It may be nil.
	Close func() error
}

// A Case is one promise of a source.
type Case struct {
	Name string
	// Initial is what the store must hold at the start.
	Initial []discovery.Worker
	// Check drives the store and reports a broken promise.
	Check func(s *Store, wait time.Duration) error

	changes, cuts bool
}

// errEndless is wrapped by the failure of a case whose source did not end its
// sequence in time.
var errEndless = errors.New("the sequence did not end")

// Run checks every promise that the harness has the abilities for. It stops after
// the first sequence that does not end, which would cost the time of Wait in every
// case and says the same each time.
func Run(t *testing.T, h Harness) {
	t.Helper()
	around := h.Around
	if around == nil {
		around = func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	rest := untilEndless(Cases(h), func(c Case) (fault error) {
		t.Run(c.Name, func(t *testing.T) {
			around(t, func(t *testing.T) {
				s, err := h.New(c.Initial)
				if err != nil {
					t.Fatalf("new store: %v", err)
				}
				if fault = c.Check(s, h.wait()); fault != nil {
					t.Error(fault)
				}
				if s.Close != nil {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
			})
		})
		return fault
	})
	if len(rest) > 0 {
		t.Errorf("%d cases from %s on were not run: their sequences would not end either", len(rest), rest[0].Name)
	}
}

// untilEndless runs cases and returns those that it leaves out, after the first
// whose sequence does not end.
func untilEndless(cases []Case, run func(Case) error) (rest []Case) {
	for i, c := range cases {
		if errors.Is(run(c), errEndless) {
			return cases[i+1:]
		}
	}
	return nil
}

func (h *Harness) wait() time.Duration {
	if h.Wait == 0 {
		return 10 * time.Second
	}
	return h.Wait
}

// Cases lists the promises that apply to the harness.
func Cases(h Harness) []Case {
	var out []Case
	for _, c := range allCases() {
		if c.changes && h.Fixed || c.cuts && h.Whole {
			continue
		}
		out = append(out, c)
	}
	return out
}

// a watch is one sequence being read in the background.
type watch struct {
	updates chan discovery.Update
	ended   chan error // the sequence's error, once, when it has ended
	cancel  context.CancelFunc
	wait    time.Duration
	state   discovery.State
}

func newWatch(src discovery.Source, wait time.Duration) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{updates: make(chan discovery.Update), ended: make(chan error, 1), cancel: cancel, wait: wait}
	go func() {
		var last error
		for u, err := range src.Watch(ctx) {
			if err != nil {
				last = err
				continue // one too many shows in next
			}
			select {
			case w.updates <- u:
			case <-ctx.Done():
			}
		}
		w.ended <- last
	}()
	return w
}

// next waits for one update and folds it in.
func (w *watch) next() (discovery.Update, error) {
	t := time.NewTimer(w.wait)
	defer t.Stop()
	select {
	case u := <-w.updates:
		if err := checkUpdate(&w.state, u); err != nil {
			return u, err
		}
		w.state.Apply(u)
		return u, nil
	case err := <-w.ended:
		w.ended <- err
		return discovery.Update{}, fmt.Errorf("the sequence ended (error %v) while its context lives", err)
	case <-t.C:
		return discovery.Update{}, fmt.Errorf("no update within %v", w.wait)
	}
}

// until reads on until the condition holds.
func (w *watch) until(what string, cond func(discovery.Update) bool) error {
	for range 1000 {
		u, err := w.next()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if cond(u) {
			return nil
		}
	}
	return fmt.Errorf("waiting for %s: not within 1000 updates", what)
}

// stop ends the sequence and reports one that does not end.
func (w *watch) stop() error {
	w.cancel()
	t := time.NewTimer(w.wait)
	defer t.Stop()
	for {
		select {
		case <-w.updates:
		case err := <-w.ended:
			if err != nil {
				return fmt.Errorf("the sequence ended with error %w, want none: the end of ctx is not one", err)
			}
			return nil
		case <-t.C:
			return fmt.Errorf("%w within %v after its context did", errEndless, w.wait)
		}
	}
}

// checkUpdate is what must hold of every update.
func checkUpdate(s *discovery.State, u discovery.Update) error {
	switch {
	case u.Err == nil && u.Age != 0:
		return fmt.Errorf("update has Age %v without Err", u.Age)
	case u.Age < 0:
		return fmt.Errorf("update has negative Age %v", u.Age)
	case u.Snapshot && len(u.Gone) > 0:
		return fmt.Errorf("snapshot has Gone %q", u.Gone)
	case !s.Ready() && !u.Snapshot && u.Err == nil:
		return fmt.Errorf("first update is neither a snapshot nor a fault: %s", show(u))
	case !u.Snapshot && !s.Ready() && len(u.Put)+len(u.Gone) > 0:
		return fmt.Errorf("changes before the first snapshot: %s", show(u))
	}
	seen := map[string]bool{}
	for _, w := range u.Put {
		if seen[w.Name] {
			return fmt.Errorf("worker %q is put twice in one update", w.Name)
		}
		seen[w.Name] = true
	}
	for _, name := range u.Gone {
		if seen[name] {
			return fmt.Errorf("worker %q is named twice in one update", name)
		}
		seen[name] = true
		if _, ok := s.Worker(name); !ok {
			return fmt.Errorf("worker %q is gone without having been there", name)
		}
	}
	if err := discovery.Validate(u.Put); err != nil {
		return fmt.Errorf("update has an invalid worker: %w", err)
	}
	return nil
}
