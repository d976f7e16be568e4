// Package discovery tells which workers exist.
//
// A [Source] is where the list of workers lives: [Static] for a fixed list,
// [File] for a JSON file that somebody else writes; other modules read etcd,
// Kubernetes or a gossip ring. Whatever the store, the news has one form: a full
// snapshot first, then changes, as [Update] values. A consumer that wants the
// whole list folds them with a [State].
//
// # Use
//
//	src, err := discovery.File("workers.json", nil)
//	...
//	var state discovery.State
//	for u, err := range src.Watch(ctx) {
//		if err != nil {
//			return err // the source has given up
//		}
//		state.Apply(u)
//		setWorkers(state.Workers())
//	}
//
// # Promises
//
// A store that fails does not make workers vanish: the last good state stays in
// force, and an Update with Err says how old it is. Every Update that carries
// workers carries only valid ones; a list with one bad entry is refused as a
// whole, since half a list looks like workers that have gone. All faults of a
// list come in one error, each a [*FieldError] that names worker, field and
// limit.
//
// Sources here start no goroutine: Watch runs in its consumer's. A consumer that
// is slow sees fewer, larger changes and never an old one. Labels, models and
// other maps and slices of a yielded Worker are shared: read them, do not write.
//
// Whoever writes a Source runs the suite of package discoverytest on it.
//
// # Limits
//
// Whether a worker answers is not discovery's business: a listed worker may be
// dead. [File] polls, so news is up to one interval late.
package discovery
