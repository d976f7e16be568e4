package discovery_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/discovery"
)

func TestState(t *testing.T) {
	w := func(name, inc string) discovery.Worker { return discovery.Worker{Name: name, Incarnation: inc} }
	var s discovery.State
	require.False(t, s.Ready())
	require.Empty(t, s.Workers())
	require.False(t, s.Apply(discovery.Update{Err: errors.New("down"), Age: time.Second}))
	require.False(t, s.Ready(), "a fault is no snapshot")
	age, err := s.Health()
	require.Equal(t, time.Second, age)
	require.ErrorContains(t, err, "down")
	require.True(t, s.Apply(discovery.Update{Snapshot: true, Put: []discovery.Worker{w("b", "1"), w("a", "1")}}))
	require.True(t, s.Ready())
	require.Equal(t, []discovery.Worker{w("a", "1"), w("b", "1")}, s.Workers())
	require.False(t, s.Apply(discovery.Update{Put: []discovery.Worker{w("a", "1")}, Gone: []string{"x"}}))
	require.True(t, s.Apply(discovery.Update{Put: []discovery.Worker{w("a", "2")}}))
	require.True(t, s.Apply(discovery.Update{Snapshot: true, Put: []discovery.Worker{w("a", "2")}}))
	_, ok := s.Worker("b")
	require.False(t, ok)
	require.True(t, s.Apply(discovery.Update{Snapshot: true}))
	require.Empty(t, s.Workers())
}

// Whatever lists a file goes through, with faults in between, the folded state
// is that of the last good list, and each update is as small as it can be.
func TestFileModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		lists := rapid.SliceOfN(rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) discovery.Worker {
			return discovery.Worker{
				Name:        rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
				Incarnation: rapid.SampledFrom([]string{"", "1"}).Draw(t, "incarnation"),
				Draining:    rapid.Bool().Draw(t, "draining"),
				Endpoints:   discovery.Endpoints{HTTP: "http://h:1"},
			}
		}), 0, 4, func(w discovery.Worker) string { return w.Name }), 1, 8).Draw(rt, "lists")
		broken := rapid.SliceOfN(rapid.Bool(), len(lists), len(lists)).Draw(rt, "broken")
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(dir, "model.json")
			src, err := discovery.File(path, nil)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var updates []discovery.Update
			step := func(data []byte) {
				require.NoError(t, replaceFile(path, data))
				time.Sleep(time.Second) // of the bubble: one look
				synctest.Wait()
			}
			started := false
			var state, naive discovery.State
			for i, list := range lists {
				data, err := discovery.Encode(list)
				require.NoError(t, err)
				if broken[i] {
					data = data[:len(data)-2]
				}
				updates = nil
				step(data)
				if !started {
					started = true
					go func() {
						for u := range src.Watch(ctx) {
							updates = append(updates, u)
						}
					}()
					synctest.Wait()
				}
				was := naive.Workers()
				if !broken[i] {
					naive.Apply(discovery.Update{Snapshot: true, Put: list})
				}
				for _, u := range updates {
					require.Equal(t, broken[i], u.Err != nil)
					if state.Ready() {
						require.False(t, u.Snapshot)
					}
					for _, w := range u.Put {
						for _, old := range was {
							require.False(t, state.Ready() && reflect.DeepEqual(old, w), "put again unchanged")
						}
					}
					state.Apply(u)
				}
				require.Equal(t, naive.Workers(), state.Workers())
				require.Equal(t, naive.Ready(), state.Ready())
				_, fault := state.Health()
				require.Equal(t, broken[i], fault != nil)
			}
		})
	})
}
