package discovery_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
)

// A clock that is set back makes no age negative, and neither hides a fault nor a
// change for as long as it was set back.
func TestFileClockSetBack(t *testing.T) {
	l := watchFile(t, discovery.FileOptions{Remind: 10 * time.Second})
	require.Error(t, l.see().Err)
	u := l.later(-time.Hour)
	require.Error(t, u.Err, "told again: nobody knows how long ago it was")
	require.Zero(t, u.Age)
	require.Nil(t, l.later(time.Second))

	at := l.now.Add(-time.Minute)
	l.write(one("a"))
	require.NoError(t, os.Chtimes(l.path, at, at))
	require.True(t, l.later(time.Second).Snapshot)
	l.write(one("b"))
	require.NoError(t, os.Chtimes(l.path, at, at))
	require.Nil(t, l.later(time.Second), "size and time are the same")
	require.Equal(t, []string{"a"}, l.later(-time.Minute/2).Gone)
}

// A FIFO that takes the file's place between two steps of a look keeps nobody
// waiting, and a limit of all there is is a limit.
func TestFileNeverBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.json")
	require.NoError(t, os.WriteFile(path, []byte(one("a")), 0o600))
	fifo := path + ".fifo"
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	var swap sync.Once
	looks := 0
	src, err := discovery.File(path, &discovery.FileOptions{
		MaxBytes: math.MaxInt64,
		// Now is asked at the beginning of each look.
		Now: func() time.Time { looks++; return time.Unix(int64(looks), 0) },
		After: func(time.Duration) (<-chan time.Time, func()) {
			swap.Do(func() {
				require.NoError(t, os.Remove(path))
				require.NoError(t, os.Symlink(fifo, path))
			})
			c := make(chan time.Time, 1)
			c <- time.Time{}
			return c, func() {}
		},
	})
	require.NoError(t, err)
	n := 0
	for u, err := range src.Watch(t.Context()) {
		require.NoError(t, err)
		if n++; n == 1 {
			require.True(t, u.Snapshot)
			continue
		}
		require.ErrorContains(t, u.Err, "not a regular file")
		break
	}
}

// The list that is yielded belongs to the consumer: what it does to it does not
// come back as a change, nor hide one.
func TestFileListIsTheConsumers(t *testing.T) {
	l := watchFile(t, discovery.FileOptions{})
	require.Error(t, l.see().Err)
	l.write(one("a"))
	u := l.later(time.Second)
	u.Put[0].Draining = true
	u.Put[0].Name = "mine"
	l.write(strings.Replace(one("a"), `"name"`, `"engine":"vllm","name"`, 1))
	u = l.later(time.Second)
	require.Empty(t, u.Gone)
	require.Equal(t, "vllm", u.Put[0].Engine)
}

// Replacements, truncations, half writes, loss of the folder and of permission in
// quick succession: a worker that stands in every good version never goes, and in
// the end the list is the last one.
func TestFileStorm(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path := filepath.Join(dir, "workers.json")
	require.NoError(t, os.Mkdir(dir, 0o700))
	text := func(i int) string {
		return fmt.Sprintf(`{"workers":[{"name":"keep","endpoints":{"http":"http://h:1"}},{"name":"w%d","endpoints":{"http":"http://h:2"},"labels":{"i":"%d"}}]}`, i%3, i)
	}
	replace := func(i int) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text(i)), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	replace(0)
	src, err := discovery.File(path, &discovery.FileOptions{Interval: 50 * time.Microsecond})
	require.NoError(t, err)
	const rounds = 300
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range rounds {
			switch i % 6 {
			case 0:
				_ = os.Truncate(path, int64(i%40))
			case 1:
				_ = os.WriteFile(path, []byte(text(i)), 0o600)
			case 2:
				_ = os.Chmod(path, 0)
			case 3:
				_ = os.Rename(dir, dir+".away")
				time.Sleep(100 * time.Microsecond)
				_ = os.Rename(dir+".away", dir)
			case 4:
				_ = os.WriteFile(path+".new", []byte(text(i)[:i%90]), 0o600)
				_ = os.Rename(path+".new", path)
			default:
				replace(i)
			}
			time.Sleep(100 * time.Microsecond)
		}
		replace(rounds)
	})
	defer writer.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var state discovery.State
	snapshots := 0
	for u, err := range src.Watch(ctx) {
		require.NoError(t, err)
		require.NotContains(t, u.Gone, "keep")
		require.NoError(t, discovery.Validate(u.Put))
		require.GreaterOrEqual(t, u.Age, time.Duration(0))
		if u.Snapshot {
			snapshots++
		}
		state.Apply(u)
		if w, ok := state.Worker(fmt.Sprintf("w%d", rounds%3)); ok && w.Labels["i"] == fmt.Sprint(rounds) {
			break
		}
	}
	require.Equal(t, 1, snapshots)
	require.Len(t, state.Workers(), 2)
	_, err = state.Health()
	require.NoError(t, err)
}
