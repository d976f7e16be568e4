package discovery

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A State is what the updates of one sequence add up to. The zero State is
// empty and ready. It is not safe for concurrent use.
type State struct {
	workers map[string]Worker
	ready   bool
	age     time.Duration
	err     error
}

// Apply folds one update in and says whether the list of workers changed.
func (s *State) Apply(u Update) bool {
	s.age, s.err = u.Age, u.Err
	changed := false
	if s.workers == nil {
		s.workers = make(map[string]Worker)
	}
	if u.Snapshot {
		s.ready = true
		names := make(map[string]bool, len(u.Put))
		for i := range u.Put {
			names[u.Put[i].Name] = true
		}
		for name := range s.workers {
			if !names[name] {
				delete(s.workers, name)
				changed = true
			}
		}
	}
	for _, name := range u.Gone {
		if _, ok := s.workers[name]; ok {
			delete(s.workers, name)
			changed = true
		}
	}
	for _, w := range u.Put {
		if old, ok := s.workers[w.Name]; !ok || !reflect.DeepEqual(old, w) {
			s.workers[w.Name] = w
			changed = true
		}
	}
	return changed
}

// Ready says whether a snapshot has come. Before that an empty list means
// nothing.
func (s *State) Ready() bool { return s.ready }

// Workers returns the list by name. The slice is the caller's.
func (s *State) Workers() []Worker {
	return slices.SortedFunc(maps.Values(s.workers), func(a, b Worker) int { return strings.Compare(a.Name, b.Name) })
}

// Worker returns one worker by name.
func (s *State) Worker(name string) (Worker, bool) {
	w, ok := s.workers[name]
	return w, ok
}

// Health returns Age and Err of the last update: how old the list is, and why.
func (s *State) Health() (time.Duration, error) { return s.age, s.err }

// diff is the update that leads from one list to another, both by unique name.
func diff(from, to []Worker) Update {
	old := make(map[string]*Worker, len(from))
	for i := range from {
		old[from[i].Name] = &from[i]
	}
	var u Update
	for i := range to {
		w := &to[i]
		if p, ok := old[w.Name]; !ok || !reflect.DeepEqual(p, w) {
			u.Put = append(u.Put, *w)
		}
		delete(old, w.Name)
	}
	u.Gone = slices.Sorted(maps.Keys(old))
	return u
}
