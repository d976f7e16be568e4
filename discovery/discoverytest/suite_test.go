package discoverytest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/discovery/discoverytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A flaw is one way in which a source can break its promises.
type flaw string

// memory is a source over a map, with a flaw or none.
type memory struct {
	flaw flaw

	mu      sync.Mutex
	workers map[string]discovery.Worker
	cut     bool
	news    chan struct{} // closed when anything changes
	opened  int
}

func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.news)
	m.news = make(chan struct{})
}

func (m *memory) Watch(ctx context.Context) iter.Seq2[discovery.Update, error] {
	return func(yield func(discovery.Update, error) bool) {
		m.mu.Lock()
		m.opened++
		late := m.opened > 1
		m.mu.Unlock()
		if m.flaw == "late sequences do not start" && late {
			<-ctx.Done()
			return
		}
		seen, ready, failed := map[string]discovery.Worker{}, false, false
		began := time.Now()
		for ctx.Err() == nil {
			m.mu.Lock()
			now, cut, news := maps.Clone(m.workers), m.cut, m.news
			m.mu.Unlock()
			var u discovery.Update
			send := true
			switch {
			case cut && m.flaw == "cut is silent":
				send = false
			case cut && m.flaw == "cut empties":
				u = discovery.Update{Snapshot: true, Err: errors.New("cut")}
				seen = map[string]discovery.Worker{}
			case cut && m.flaw == "cut ends":
				return
			case cut:
				u = discovery.Update{Err: errors.New("cut"), Age: time.Since(began)}
				failed = true
			case !ready:
				u = discovery.Update{Snapshot: m.flaw != "no snapshot"}
				fallthrough
			default:
				send = !ready || failed && m.flaw != "never heals"
				for _, name := range slices.Sorted(maps.Keys(now)) {
					if w := now[name]; !reflect.DeepEqual(w, seen[name]) {
						if m.flaw == "drops labels" {
							w.Labels = nil
						}
						u.Put = append(u.Put, w)
						if m.flaw == "puts twice" {
							u.Put = append(u.Put, w)
						}
					}
				}
				for _, name := range slices.Sorted(maps.Keys(seen)) {
					if _, ok := now[name]; !ok && m.flaw != "drop is lost" {
						u.Gone = append(u.Gone, name)
					}
				}
				if m.flaw == "fresh with age" {
					u.Age = time.Second
				}
				send = send || len(u.Put)+len(u.Gone) > 0
				ready, failed, seen = true, false, now
			}
			if send && !yield(u, nil) {
				if m.flaw == "ignores break" {
					<-ctx.Done()
				}
				return
			}
			if m.flaw == "ends early" {
				return
			}
			if m.flaw == "ignores context" {
				time.Sleep(time.Hour)
			}
			select {
			case <-news:
			case <-ctx.Done():
			}
		}
		if m.flaw == "end is an error" {
			yield(discovery.Update{}, ctx.Err())
		}
	}
}

func harness(f flaw) discoverytest.Harness {
	return discoverytest.Harness{
		Around: synctest.Test,
		Wait:   time.Minute,
		New: func(initial []discovery.Worker) (*discoverytest.Store, error) {
			m := &memory{flaw: f, workers: map[string]discovery.Worker{}, news: make(chan struct{})}
			put := func(ws ...discovery.Worker) error {
				m.change(func() {
					for _, w := range ws {
						m.workers[w.Name] = w
					}
				})
				return nil
			}
			return &discoverytest.Store{
				Source: m,
				Put:    put,
				Drop: func(names ...string) error {
					m.change(func() {
						for _, n := range names {
							delete(m.workers, n)
						}
					})
					return nil
				},
				Cut: func() (func() error, error) {
					m.change(func() { m.cut = true })
					return func() error { m.change(func() { m.cut = false }); return nil }, nil
				},
			}, put(initial...)
		},
	}
}

func TestGoodSourcePasses(t *testing.T) { discoverytest.Run(t, harness("")) }

// Each flaw must be found by the cases that are about it.
func TestFlawsAreFound(t *testing.T) {
	for f, want := range map[flaw][]string{
		"no snapshot":                 {"SnapshotFirst", "EmptySnapshot", "TwoSequences"},
		"drops labels":                {"AllFields"},
		"late sequences do not start": {"TwoSequences", "LateSequence"},
		"ignores break":               {"BreakEnds"},
		"ignores context":             {"ContextEnds"},
		"end is an error":             {"ContextEnds"},
		"ends early":                  {"Changes"},
		"drop is lost":                {"Changes"},
		"puts twice":                  {"Changes"},
		"fresh with age":              {"SnapshotFirst"},
		"cut is silent":               {"CutKeepsState", "CutAtStart"},
		"cut empties":                 {"CutKeepsState"},
		"cut ends":                    {"CutKeepsState", "ContextEndsWhileCut"},
		"never heals":                 {"CutKeepsState", "CutTwice"},
	} {
		h := harness(f)
		for _, c := range discoverytest.Cases(h) {
			if !slices.Contains(want, c.Name) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", f, c.Name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, err := h.New(c.Initial)
					if err != nil {
						t.Fatal(err)
					}
					if c.Check(s, h.Wait) == nil {
						t.Errorf("case %s does not see that a source %q", c.Name, f)
					}
					time.Sleep(2 * time.Hour) // of the bubble: a sequence that was left behind ends
				})
			})
			want = slices.DeleteFunc(slices.Clone(want), func(n string) bool { return n == c.Name })
		}
		if len(want) > 0 {
			t.Errorf("flaw %q: no case %s", f, strings.Join(want, ", "))
		}
	}
}

func TestCasesByAbility(t *testing.T) {
	names := func(h discoverytest.Harness) (out []string) {
		for _, c := range discoverytest.Cases(h) {
			out = append(out, c.Name)
		}
		return out
	}
	all := names(discoverytest.Harness{})
	whole := names(discoverytest.Harness{Whole: true})
	least := names(discoverytest.Harness{Whole: true, Fixed: true})
	if !(len(all) > len(whole) && len(whole) > len(least) && len(least) >= 7) {
		t.Errorf("%d, %d, %d cases", len(all), len(whole), len(least))
	}
}
