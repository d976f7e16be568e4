package discovery

import (
	"context"
	"iter"
	"maps"
	"slices"
)

// A StaticSource is a list that never changes.
type StaticSource struct{ workers []Worker }

// Static makes a source of the given workers. It copies them; Extra's values are
// shared. The error is that of [Validate].
func Static(workers ...Worker) (*StaticSource, error) {
	if err := Validate(workers); err != nil {
		return nil, err
	}
	s := &StaticSource{workers: slices.Clone(workers)}
	for i := range s.workers {
		w := &s.workers[i]
		w.Labels, w.Extra = maps.Clone(w.Labels), maps.Clone(w.Extra)
		w.Models, w.Adapters = slices.Clone(w.Models), slices.Clone(w.Adapters)
	}
	return s, nil
}

// Watch yields the snapshot and then waits for the end of ctx. See [Source].
func (s *StaticSource) Watch(ctx context.Context) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		if ctx.Err() != nil || !yield(Update{Snapshot: true, Put: slices.Clone(s.workers)}, nil) {
			return
		}
		<-ctx.Done()
	}
}
