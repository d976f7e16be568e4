package discovery_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
)

// look drives one sequence by hand: the clock stands still and the timer fires
// only when the test says so.
type look struct {
	t       *testing.T
	path    string
	now     time.Time
	updates chan discovery.Update
	tick    chan time.Time
	waiting chan struct{}
	cancel  context.CancelFunc
	state   discovery.State
}

func watchFile(t *testing.T, opts discovery.FileOptions) *look {
	l := &look{
		t: t, path: filepath.Join(t.TempDir(), "workers.json"), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		updates: make(chan discovery.Update), tick: make(chan time.Time), waiting: make(chan struct{}),
	}
	opts.Now = func() time.Time { return l.now }
	opts.After = func(time.Duration) (<-chan time.Time, func()) {
		select {
		case l.waiting <- struct{}{}:
		case <-t.Context().Done():
		}
		return l.tick, func() {}
	}
	src, err := discovery.File(l.path, &opts)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	go func() {
		defer close(l.updates)
		for u, err := range src.Watch(ctx) {
			if err != nil {
				t.Error(err)
			}
			select {
			case l.updates <- u:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range l.updates {
		}
	})
	return l
}

// see returns what the look under way yields, nil if nothing.
func (l *look) see() *discovery.Update {
	select {
	case u := <-l.updates:
		l.state.Apply(u)
		<-l.waiting
		return &u
	case <-l.waiting:
		return nil
	}
}

// later moves the clock and lets the source look again.
func (l *look) later(d time.Duration) *discovery.Update {
	l.now = l.now.Add(d)
	l.tick <- l.now
	return l.see()
}

func (l *look) write(s string) { require.NoError(l.t, os.WriteFile(l.path, []byte(s), 0o600)) }

func one(name string) string {
	return `{"workers":[{"name":"` + name + `","endpoints":{"http":"http://h:1"}}]}`
}

func TestFileFaults(t *testing.T) {
	l := watchFile(t, discovery.FileOptions{Remind: 10 * time.Second})
	u := l.see()
	require.ErrorIs(t, u.Err, fs.ErrNotExist)
	require.ErrorContains(t, u.Err, "workers.json")
	require.False(t, u.Snapshot)
	require.False(t, l.state.Ready())
	require.Nil(t, l.later(time.Second), "a fault that lasts is not told at every look")
	l.write(one("a"))
	u = l.later(time.Second)
	require.True(t, u.Snapshot)
	require.Zero(t, u.Age)
	require.Nil(t, l.later(time.Second))

	l.write(`{"workers":[{"name":"a","endpoints":{"http":"ftp://h"}}]}`)
	u = l.later(3 * time.Second)
	require.ErrorIs(t, u.Err, discovery.ErrInvalid)
	require.Equal(t, 3*time.Second, u.Age, "since the look that found it good")
	require.Len(t, l.state.Workers(), 1, "the last good state stays")
	require.Nil(t, l.later(time.Second))
	u = l.later(9 * time.Second)
	require.Equal(t, 13*time.Second, u.Age, "told again after Remind")
	l.write(`{`)
	u = l.later(time.Second)
	require.ErrorIs(t, u.Err, discovery.ErrMalformed, "another fault is told at once")
	require.Equal(t, 14*time.Second, u.Age)

	l.write(one("a"))
	u = l.later(time.Second)
	require.Equal(t, discovery.Update{}, *u, "fresh again, nothing changed")
	age, err := l.state.Health()
	require.Zero(t, age)
	require.NoError(t, err)
	l.write(one("b"))
	u = l.later(time.Second)
	require.Equal(t, []string{"a"}, u.Gone)
	require.Equal(t, "b", u.Put[0].Name)
	l.write("\n" + one("b") + "\n")
	require.Nil(t, l.later(time.Second), "another spelling of the same list")
}

// A change that leaves size and time as they were must show all the same: at the
// next look after an atomic replacement, and by the Remind time at the latest
// when it was made in place.
func TestFileHiddenChange(t *testing.T) {
	l := watchFile(t, discovery.FileOptions{Remind: 10 * time.Second})
	require.NotNil(t, l.see().Err)
	stamp := time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC)
	l.write(one("a"))
	require.NoError(t, os.Chtimes(l.path, stamp, stamp))
	require.True(t, l.later(time.Second).Snapshot)

	require.NoError(t, os.WriteFile(l.path+".new", []byte(one("b")), 0o600))
	require.NoError(t, os.Chtimes(l.path+".new", stamp, stamp))
	require.NoError(t, os.Rename(l.path+".new", l.path))
	require.Equal(t, []string{"a"}, l.later(time.Second).Gone)

	l.write(one("c"))
	require.NoError(t, os.Chtimes(l.path, stamp, stamp))
	require.Nil(t, l.later(time.Second), "nothing betrays it yet")
	require.Equal(t, []string{"b"}, l.later(9*time.Second).Gone)

	// A file whose time is of just now is read at every look.
	require.NoError(t, os.Chtimes(l.path, l.now, l.now))
	require.Nil(t, l.later(time.Second))
	l.write(one("d"))
	at := l.now.Add(-time.Second)
	require.NoError(t, os.Chtimes(l.path, at, at))
	require.Equal(t, []string{"c"}, l.later(time.Second/2).Gone)
}

func TestFileKinds(t *testing.T) {
	l := watchFile(t, discovery.FileOptions{MaxBytes: 200})
	require.NotNil(t, l.see().Err)
	l.write(one("a") + strings.Repeat(" ", 200))
	require.ErrorIs(t, l.later(time.Second).Err, discovery.ErrTooLarge)
	text := one("a")
	l.write(text + strings.Repeat(" ", 200-len(text)))
	require.True(t, l.later(time.Second).Snapshot, "MaxBytes itself is allowed")

	require.NoError(t, os.Remove(l.path))
	require.NoError(t, syscall.Mkfifo(l.path, 0o600))
	require.ErrorContains(t, l.later(time.Second).Err, "not a regular file")

	// As with a mounted Kubernetes ConfigMap, whose link moves.
	require.NoError(t, os.Remove(l.path))
	target := filepath.Join(filepath.Dir(l.path), "v2.json")
	require.NoError(t, os.WriteFile(target, []byte(one("b")), 0o600))
	require.NoError(t, os.Symlink(target, l.path))
	require.Equal(t, []string{"a"}, l.later(time.Second).Gone)
}

func TestFileOptions(t *testing.T) {
	_, err := discovery.File("", &discovery.FileOptions{Interval: -1, Remind: -1, MaxBytes: -1})
	require.EqualError(t, err, `discovery: File: path is empty
discovery: FileOptions.Interval is -1ns, want > 0, or 0 for 1 s
discovery: FileOptions.Remind is -1ns, want > 0, or 0 for 30 s
discovery: FileOptions.MaxBytes is -1, want > 0, or 0 for 4 MiB`)
	_, err = discovery.File("x", nil)
	require.NoError(t, err)
}

func TestEndedContext(t *testing.T) {
	file, err := discovery.File(filepath.Join(t.TempDir(), "none"), nil)
	require.NoError(t, err)
	static, err := discovery.Static()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, src := range []discovery.Source{file, static} {
		for u := range src.Watch(ctx) {
			t.Errorf("%T: update %+v after the end", src, u)
		}
	}
}
