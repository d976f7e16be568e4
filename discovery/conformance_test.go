package discovery_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/discovery/discoverytest"
)

func TestStaticConformance(t *testing.T) {
	discoverytest.Run(t, discoverytest.Harness{
		Fixed: true, Whole: true,
		Around: synctest.Test,
		New: func(initial []discovery.Worker) (*discoverytest.Store, error) {
			src, err := discovery.Static(initial...)
			return &discoverytest.Store{Source: src}, err
		},
	})
}

// fileStore is a file and somebody who writes it.
type fileStore struct {
	path    string
	write   func(path string, data []byte) error
	workers map[string]discovery.Worker
	cut     bool
}

func (s *fileStore) save() error {
	if s.cut {
		return nil
	}
	list := slices.SortedFunc(maps.Values(s.workers), func(a, b discovery.Worker) int { return strings.Compare(a.Name, b.Name) })
	data, err := discovery.Encode(list)
	if err != nil {
		return err
	}
	return s.write(s.path, data)
}

func replaceFile(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func writeInPlace(path string, data []byte) error { return os.WriteFile(path, data, 0o600) }

// Each way of writing the file, and each way of losing it, keeps every promise.
// Time is a bubble's, so that the poll's intervals take none.
func TestFileConformance(t *testing.T) {
	broken := map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(path string) error { return replaceFile(path, nil) },
		"half":    func(path string) error { return replaceFile(path, []byte(`{"workers":[{"name":"w`)) },
		"invalid": func(path string) error { return replaceFile(path, []byte(`{"workers":[{"name":"w0"}]}`)) },
		"folder": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		},
	}
	for how, write := range map[string]func(string, []byte) error{"replaced": replaceFile, "in place": writeInPlace} {
		for lost, lose := range broken {
			t.Run(how+"/"+lost, func(t *testing.T) {
				dir := t.TempDir()
				discoverytest.Run(t, discoverytest.Harness{
					Around: synctest.Test,
					Wait:   time.Hour,
					New: func(initial []discovery.Worker) (*discoverytest.Store, error) {
						s := &fileStore{path: filepath.Join(dir, "workers.json"), write: write, workers: map[string]discovery.Worker{}}
						put := func(ws ...discovery.Worker) error {
							for _, w := range ws {
								s.workers[w.Name] = w
							}
							return s.save()
						}
						if err := put(initial...); err != nil {
							return nil, err
						}
						src, err := discovery.File(s.path, nil)
						return &discoverytest.Store{
							Source: src,
							Put:    put,
							Drop: func(names ...string) error {
								for _, n := range names {
									delete(s.workers, n)
								}
								return s.save()
							},
							Cut: func() (func() error, error) {
								s.cut = true
								return func() error {
									s.cut = false
									if err := os.RemoveAll(s.path); err != nil {
										return err
									}
									return s.save()
								}, lose(s.path)
							},
							Close: func() error { return os.RemoveAll(s.path) },
						}, err
					},
				})
			})
		}
	}
}

func TestStaticCopies(t *testing.T) {
	w := discovery.Worker{
		Name: "a", Endpoints: discovery.Endpoints{HTTP: "http://h:1"},
		Labels: map[string]string{"k": "v"}, Models: []string{"m"},
	}
	src, err := discovery.Static(w)
	require.NoError(t, err)
	w.Labels["k"], w.Models[0] = "changed", "changed"
	for u, err := range src.Watch(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "v", u.Put[0].Labels["k"])
		require.Equal(t, "m", u.Put[0].Models[0])
		break
	}
	_, err = discovery.Static(w, w)
	require.ErrorIs(t, err, discovery.ErrInvalid)
}
