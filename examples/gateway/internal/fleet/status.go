package fleet

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/router"
)

// A Status is one worker as the fleet sees it.
type Status struct {
	Name, URL string
	Up        bool
	Draining  bool
	Err       error    // why it is not up, nil if it is or was not asked yet
	Missing   []string // what the engine was not started with
	Load      engine.Load
	// Queries and Hits are prompt tokens looked up and found since it came up.
	Queries, Hits float64
	Slots         []kvindex.Slot
	// Blocks is what the index holds of it, in index blocks by tier: what its events
	// say with HasEvents, a guess without.
	Blocks [kvindex.Tiers]int
	// Events is the state of the stream that lags most, valid with HasEvents.
	Events    kvindex.StreamState
	HasEvents bool
	Messages  uint64 // of KV events
	// Restored says that every rank with events was asked for what it held before
	// and has answered. EventsErr is the last fault of a rank's event channel that
	// does not stand, "" if all stand.
	Restored  bool
	EventsErr string
	// Warning says what is not right with a worker that is up and answers, "" if
	// nothing is seen: its events do not come, or never match a request.
	Warning string
}

// Workers tells how all workers of the fleet are, sorted by name.
func (f *Fleet) Workers() []Status {
	ledgers := map[kvindex.Slot]router.WorkerStats{}
	for _, w := range f.router.Stats().Workers {
		ledgers[w.Slot] = w
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Status, 0, len(f.members))
	for _, m := range f.members {
		s := Status{
			Name: m.info.Name, URL: m.info.Endpoints.HTTP, Up: m.up, Draining: m.info.Draining, Err: m.err,
		}
		if m.up {
			s.Missing, s.Load = m.probe.Missing, m.merged
			s.Queries, s.Hits = m.merged.Queries-m.since.Queries, m.merged.Hits-m.since.Hits
			s.Warning = f.warning(m, ledgers)
			for _, r := range m.ranks {
				s.Slots = append(s.Slots, r.slot)
				for t, n := range f.index.Held(r.slot) {
					s.Blocks[t] += n
				}
				if r.sub == nil {
					continue
				}
				st := kvindex.StreamState(r.state.Load())
				if !s.HasEvents || st == kvindex.StreamGap || st == kvindex.StreamRestoring {
					s.Events = st
				}
				sub := r.sub.Stats()
				if !s.HasEvents {
					s.HasEvents, s.Restored = true, true
				}
				s.Restored = s.Restored && r.asked.Load()
				s.Messages += sub.Messages
				if !sub.Connected && sub.Failures > 0 {
					s.EventsErr = sub.LastError
				}
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// unmatched is the number of picks after which it is odd that none of their blocks
// was known.
const unmatched = 1000

// warning looks for a worker whose events go astray, under f.mu. Neither kind is
// an error anywhere: requests are answered, only without the reuse that could be.
func (f *Fleet) warning(m *member, ledgers map[kvindex.Slot]router.WorkerStats) string {
	var silent []string
	var picks, blocks, matched uint64
	events := false
	for _, r := range m.ranks {
		if r.sub == nil {
			continue
		}
		events = true
		l := ledgers[r.slot]
		picks, blocks, matched = picks+l.Picks, blocks+l.Blocks, matched+l.Matched
		since := r.connected.Load()
		if since == 0 || time.Since(time.Unix(0, since)) < f.opts.WarnAfter || l.Blocks == 0 || l.Done <= l.Failed {
			continue // not long enough, or nothing that an engine would have stored
		}
		st := r.sub.Stats()
		if st.Messages+st.ReplayMessages == 0 && f.index.Held(r.slot) == [kvindex.Tiers]int{} {
			silent = append(silent, strconv.Itoa(r.rank))
		}
	}
	switch {
	case len(silent) > 0:
		return "no KV events from rank " + strings.Join(silent, ", ")
	case events && picks >= unmatched && blocks > 0 && matched == 0 && !(m.seen && m.merged.HasPrefix && m.merged.Hits <= m.since.Hits):
		// An engine that finds nothing in its cache either just has requests without
		// common beginnings.
		return fmt.Sprintf("%d picks and no block ever matched", picks)
	}
	return ""
}

// Synced returns when every worker that is up and has events was asked for what it
// held before, has answered, and is neither restoring nor behind a gap, or when ctx
// ends. A worker whose event channel cannot be had is not waited for.
func (f *Fleet) Synced(ctx context.Context) error {
	for {
		behind := false
		for _, s := range f.Workers() {
			behind = behind || s.Up && s.HasEvents && s.EventsErr == "" &&
				(!s.Restored || s.Events == kvindex.StreamGap || s.Events == kvindex.StreamRestoring)
		}
		if !behind {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
