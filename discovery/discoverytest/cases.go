package discoverytest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/stator-go/stator/discovery"
)

// worker makes one that is told from others by number and version.
func worker(n, version int) discovery.Worker {
	return discovery.Worker{
		Name:        fmt.Sprintf("w%d", n),
		Incarnation: fmt.Sprint(version),
		Endpoints:   discovery.Endpoints{HTTP: fmt.Sprintf("http://127.0.0.1:%d", 9000+n)},
	}
}

// rich has every field set.
func rich() discovery.Worker {
	return discovery.Worker{
		Name: "rich", Incarnation: "i-1", Engine: "vllm", Role: discovery.RolePrefill, Ranks: 2,
		Endpoints: discovery.Endpoints{
			HTTP: "https://host.example:8443/base", Events: "tcp://10.0.0.1:5557",
			Replay: "tcp://[::1]:5600", Transfer: "10.0.0.1:7000",
		},
		Labels: map[string]string{"zone": "a", "empty": ""}, Models: []string{"m1", "m2"}, Adapters: []string{"lora"},
		Capacity: discovery.Capacity{KVBlocks: 31_250, BlockSize: 16}, Draining: true,
	}
}

func workers(n int) []discovery.Worker {
	out := make([]discovery.Worker, n)
	for i := range out {
		out[i] = worker(i, 1)
	}
	return out
}

func allCases() []Case {
	return []Case{
		{Name: "SnapshotFirst", Initial: workers(3), Check: snapshotFirst},
		{Name: "EmptySnapshot", Check: emptySnapshot},
		{Name: "AllFields", Initial: []discovery.Worker{rich()}, Check: allFields},
		{Name: "TwoSequences", Initial: workers(2), Check: twoSequences},
		{Name: "BreakEnds", Initial: workers(1), Check: breakEnds},
		{Name: "ContextEnds", Initial: workers(1), Check: contextEnds},
		{Name: "ContextEnded", Initial: workers(1), Check: contextEnded},
		{Name: "Changes", Initial: workers(2), Check: changes, changes: true},
		{Name: "FieldChange", Initial: []discovery.Worker{rich()}, Check: fieldChange, changes: true},
		{Name: "LateSequence", Initial: workers(1), Check: lateSequence, changes: true},
		{Name: "Convergence", Check: convergence, changes: true},
		{Name: "CutKeepsState", Initial: workers(2), Check: cutKeepsState, cuts: true},
		{Name: "CutAtStart", Initial: workers(2), Check: cutAtStart, cuts: true},
		{Name: "CutTwice", Initial: workers(1), Check: cutTwice, cuts: true},
		{Name: "ContextEndsWhileCut", Initial: workers(1), Check: contextEndsWhileCut, cuts: true},
		{Name: "ChangesWhileCut", Initial: workers(3), Check: changesWhileCut, changes: true, cuts: true},
	}
}

// run starts a sequence, hands it to f and stops it.
func run(s *Store, wait time.Duration, f func(w *watch) error) error {
	w := newWatch(s.Source, wait)
	return errors.Join(f(w), w.stop())
}

func snapshotFirst(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error { return first(w, workers(3)) })
}

// first reads the first update and wants it to be the given snapshot.
func first(w *watch, want []discovery.Worker) error {
	u, err := w.next()
	if err != nil {
		return fmt.Errorf("first update: %w", err)
	}
	if !u.Snapshot || u.Err != nil {
		return fmt.Errorf("first update is no fresh snapshot: %s", show(u))
	}
	return same(w, want)
}

// same compares the folded list.
func same(w *watch, want []discovery.Worker) error {
	got := w.state.Workers()
	if len(got) == 0 && len(want) == 0 || reflect.DeepEqual(got, want) {
		return nil
	}
	return errors.New(difference(got, want))
}

func emptySnapshot(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error { return first(w, nil) })
}

func allFields(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error { return first(w, []discovery.Worker{rich()}) })
}

func twoSequences(s *Store, wait time.Duration) error {
	return run(s, wait, func(a *watch) error {
		return run(s, wait, func(b *watch) error {
			return errors.Join(first(a, workers(2)), first(b, workers(2)))
		})
	})
}

func breakEnds(s *Store, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for range s.Source.Watch(ctx) {
		break
	}
	if ctx.Err() != nil {
		return errors.New("no update, or no return after the loop broke off, within the time that was given")
	}
	return nil
}

func contextEnds(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error { return first(w, workers(1)) })
}

func contextEnded(s *Store, wait time.Duration) error {
	w := newWatch(s.Source, wait)
	w.cancel()
	return w.stop()
}

// changes puts and drops, and waits for the list each time.
func changes(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		if err := first(w, workers(2)); err != nil {
			return err
		}
		for _, step := range []struct {
			name string
			do   func() error
			want []discovery.Worker
		}{
			{"a new worker", func() error { return s.Put(worker(2, 1)) }, workers(3)},
			{"a worker gone", func() error { return s.Drop("w0") }, workers(3)[1:]},
			{"another incarnation", func() error { return s.Put(worker(1, 2)) }, []discovery.Worker{worker(1, 2), worker(2, 1)}},
			{"a worker back", func() error { return s.Put(worker(0, 3)) }, []discovery.Worker{worker(0, 3), worker(1, 2), worker(2, 1)}},
			{"all gone", func() error { return s.Drop("w0", "w1", "w2") }, nil},
			{"one again", func() error { return s.Put(worker(0, 4)) }, []discovery.Worker{worker(0, 4)}},
		} {
			if err := step.do(); err != nil {
				return fmt.Errorf("store: %w", err)
			}
			if err := w.until(step.name, func(discovery.Update) bool { return same(w, step.want) == nil }); err != nil {
				return errors.Join(err, same(w, step.want))
			}
		}
		return nil
	})
}

// fieldChange changes one field at a time: each must show.
func fieldChange(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		now := rich()
		if err := first(w, []discovery.Worker{now}); err != nil {
			return err
		}
		for _, step := range []struct {
			name   string
			change func(*discovery.Worker)
		}{
			{"draining", func(x *discovery.Worker) { x.Draining = false }},
			{"labels", func(x *discovery.Worker) { x.Labels = map[string]string{"zone": "b"} }},
			{"capacity", func(x *discovery.Worker) { x.Capacity.KVBlocks++ }},
			{"models", func(x *discovery.Worker) { x.Models = []string{"m1"} }},
			{"adapters", func(x *discovery.Worker) { x.Adapters = nil }},
			{"role", func(x *discovery.Worker) { x.Role = discovery.RoleBoth }},
			{"endpoints", func(x *discovery.Worker) { x.Endpoints.Replay = "" }},
			{"incarnation", func(x *discovery.Worker) { x.Incarnation = "i-2" }},
		} {
			step.change(&now)
			if err := s.Put(now); err != nil {
				return fmt.Errorf("store: %w", err)
			}
			err := w.until("a change of "+step.name, func(discovery.Update) bool { return same(w, []discovery.Worker{now}) == nil })
			if err != nil {
				return errors.Join(err, same(w, []discovery.Worker{now}))
			}
		}
		return nil
	})
}

// lateSequence begins after changes: its snapshot is the list of now.
func lateSequence(s *Store, wait time.Duration) error {
	return run(s, wait, func(a *watch) error {
		if err := first(a, workers(1)); err != nil {
			return err
		}
		if err := s.Put(worker(1, 1)); err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if err := a.until("a new worker", func(discovery.Update) bool { return same(a, workers(2)) == nil }); err != nil {
			return errors.Join(err, same(a, workers(2)))
		}
		return run(s, wait, func(b *watch) error { return first(b, workers(2)) })
	})
}

// convergence makes many changes without waiting: the end must be right,
// whatever was merged on the way.
func convergence(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		if err := first(w, nil); err != nil {
			return err
		}
		want := map[string]discovery.Worker{}
		for i := range 60 {
			n := i * 7 % 10
			name := worker(n, 0).Name
			var err error
			if _, ok := want[name]; ok && i%3 == 0 {
				delete(want, name)
				err = s.Drop(name)
			} else {
				want[name] = worker(n, i)
				err = s.Put(want[name])
			}
			if err != nil {
				return fmt.Errorf("store: %w", err)
			}
		}
		var list []discovery.Worker
		for n := range 10 {
			if x, ok := want[worker(n, 0).Name]; ok {
				list = append(list, x)
			}
		}
		if err := w.until("the last state", func(discovery.Update) bool { return same(w, list) == nil }); err != nil {
			return errors.Join(err, same(w, list))
		}
		return nil
	})
}

// cut breaks the link and waits until the sequence says so.
func cut(s *Store, w *watch) (repair func() error, err error) {
	repair, err = s.Cut()
	if err != nil {
		return nil, fmt.Errorf("cut: %w", err)
	}
	return repair, w.until("a fault", func(u discovery.Update) bool { return u.Err != nil })
}

// mend repairs the link and waits until the sequence says so.
func mend(w *watch, repair func() error) error {
	if err := repair(); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	return w.until("fresh news", func(u discovery.Update) bool { return u.Err == nil })
}

func cutKeepsState(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		if err := first(w, workers(2)); err != nil {
			return err
		}
		repair, err := cut(s, w)
		if err != nil {
			return err
		}
		if err := same(w, workers(2)); err != nil {
			return fmt.Errorf("while the link is cut: %w", err)
		}
		if err := mend(w, repair); err != nil {
			return err
		}
		return same(w, workers(2))
	})
}

func cutAtStart(s *Store, wait time.Duration) error {
	repair, err := s.Cut()
	if err != nil {
		return fmt.Errorf("cut: %w", err)
	}
	return run(s, wait, func(w *watch) error {
		u, err := w.next()
		if err != nil {
			return err
		}
		if u.Err == nil {
			return fmt.Errorf("first update while the link is cut has no Err: %s", show(u))
		}
		if err := repair(); err != nil {
			return fmt.Errorf("repair: %w", err)
		}
		if err := w.until("the snapshot", func(u discovery.Update) bool { return u.Snapshot && u.Err == nil }); err != nil {
			return err
		}
		return same(w, workers(2))
	})
}

func cutTwice(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		if err := first(w, workers(1)); err != nil {
			return err
		}
		for range 2 {
			repair, err := cut(s, w)
			if err != nil {
				return err
			}
			if err := mend(w, repair); err != nil {
				return err
			}
		}
		return same(w, workers(1))
	})
}

func contextEndsWhileCut(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		if err := first(w, workers(1)); err != nil {
			return err
		}
		_, err := cut(s, w)
		return err
	})
}

func changesWhileCut(s *Store, wait time.Duration) error {
	return run(s, wait, func(w *watch) error {
		if err := first(w, workers(3)); err != nil {
			return err
		}
		repair, err := cut(s, w)
		if err != nil {
			return err
		}
		if err := errors.Join(s.Drop("w0"), s.Put(worker(1, 2), worker(7, 1))); err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if err := repair(); err != nil {
			return fmt.Errorf("repair: %w", err)
		}
		want := []discovery.Worker{worker(1, 2), worker(2, 1), worker(7, 1)}
		err = w.until("changes made while the link was cut", func(u discovery.Update) bool {
			return u.Err == nil && same(w, want) == nil
		})
		return errors.Join(err, same(w, want))
	})
}
