package discovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// ErrTooLarge means that a file is greater than [FileOptions].MaxBytes.
var ErrTooLarge = errors.New("discovery: file too large")

// A FileError says why a file is not usable. Err is one of package os, or wraps
// [ErrMalformed], [ErrInvalid] or [ErrTooLarge].
type FileError struct {
	Path string
	Err  error
}

// Error is one line, however many faults the file has.
func (e *FileError) Error() string {
	err := e.Err
	if pe, ok := errors.AsType[*fs.PathError](err); ok { // it names the path again
		err = pe.Err
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	return "discovery: file " + e.Path + ": " + strings.ReplaceAll(text, "discovery: ", "")
}

// Unwrap returns Err.
func (e *FileError) Unwrap() error { return e.Err }

// FileOptions tunes a [FileSource]. The zero value, and nil, are ready for use.
type FileOptions struct {
	// Interval is the time between two looks at the file. 0 means 1 second. It
	// must not be negative.
	Interval time.Duration
	// Remind is the time after which a fault that lasts is told again, with its
	// greater age, and a file that looks unchanged is read all the same. 0 means
	// 30 seconds. It must not be negative.
	Remind time.Duration
	// MaxBytes is the greatest size of the file. 0 means 4 MiB. It must not be
	// negative.
	MaxBytes int64
	// Now is the clock by which ages are told. nil means time.Now.
	Now func() time.Time
	// After is the timer of the interval: a channel that receives once, and its
	// stop. nil means one of package time.
	After func(time.Duration) (c <-chan time.Time, stop func())
}

func (o *FileOptions) withDefaults() (FileOptions, error) {
	var out FileOptions
	if o != nil {
		out = *o
	}
	var errs []error
	if out.Interval < 0 {
		errs = append(errs, fmt.Errorf("discovery: FileOptions.Interval is %v, want > 0, or 0 for 1 s", out.Interval))
	}
	if out.Remind < 0 {
		errs = append(errs, fmt.Errorf("discovery: FileOptions.Remind is %v, want > 0, or 0 for 30 s", out.Remind))
	}
	if out.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("discovery: FileOptions.MaxBytes is %d, want > 0, or 0 for 4 MiB", out.MaxBytes))
	}
	if out.Interval == 0 {
		out.Interval = time.Second
	}
	if out.Remind == 0 {
		out.Remind = 30 * time.Second
	}
	if out.MaxBytes == 0 {
		out.MaxBytes = 4 << 20
	}
	if out.Now == nil {
		out.Now = time.Now
	}
	if out.After == nil {
		out.After = func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTimer(d)
			return t.C, func() { t.Stop() }
		}
	}
	return out, errors.Join(errs...)
}

// A FileSource is a list of workers in a JSON file of the form that [Decode]
// reads, looked at again and again. It is safe for concurrent use.
//
// Replace the file atomically: write another one beside it and rename. A file
// that is written in place works too, but may be seen half written; that is
// reported as a fault and heals at the next look.
type FileSource struct {
	path string
	opts FileOptions
}

// File makes a source of the file at path, which need not exist yet. The error
// names every bad option; the file's own faults come as updates.
func File(path string, opts *FileOptions) (*FileSource, error) {
	o, err := opts.withDefaults()
	if path == "" {
		err = errors.Join(errors.New("discovery: File: path is empty"), err)
	}
	if err != nil {
		return nil, err
	}
	return &FileSource{path: path, opts: o}, nil
}

// Watch looks at the file at once and then every Interval. See [Source].
func (f *FileSource) Watch(ctx context.Context) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		w := fileWatch{src: f, good: f.opts.Now()}
		for ctx.Err() == nil {
			if u, ok := w.look(); ok && !yield(u, nil) {
				return
			}
			c, stop := f.opts.After(f.opts.Interval)
			select {
			case <-ctx.Done():
			case <-c:
			}
			stop()
		}
	}
}

// racy is how long after a change another one may leave no trace in the file's
// time: file systems count in steps of up to 2 seconds.
const racy = 2 * time.Second

// fileWatch is the state of one sequence.
type fileWatch struct {
	src     *FileSource
	workers []Worker
	ready   bool // a snapshot was yielded

	info  fs.FileInfo // of the file when it was read last, nil: read it
	read  time.Time   // when that was
	sum   [sha256.Size]byte
	isSum bool

	good  time.Time // last look that found the file good
	fault string    // text of the fault told last, empty: none
	told  time.Time // when
	err   error     // fault of the content that info stands for
}

// look reads the file if it may have changed and says what there is to yield.
func (w *fileWatch) look() (Update, bool) {
	now := w.src.opts.Now()
	workers, changed, err := w.load(now)
	if err != nil {
		age := max(0, now.Sub(w.good)) // the clock may have been set back
		if err.Error() == w.fault && within(w.told, now, w.src.opts.Remind) {
			return Update{}, false
		}
		w.fault, w.told = err.Error(), now
		return Update{Age: age, Err: &FileError{Path: w.src.path, Err: err}}, true
	}
	healed := w.fault != ""
	w.good, w.fault = now, ""
	if !w.ready {
		w.ready, w.workers = true, workers
		return Update{Snapshot: true, Put: slices.Clone(workers)}, true
	}
	if !changed {
		return Update{}, healed
	}
	u := diff(w.workers, workers)
	w.workers = workers
	return u, healed || len(u.Put)+len(u.Gone) > 0
}

// load returns the file's workers. When the file is known to be as it was,
// changed is false and the answer that of the last time.
func (w *fileWatch) load(now time.Time) (workers []Worker, changed bool, err error) {
	info, err := os.Stat(w.src.path)
	if err != nil {
		w.info = nil
		return nil, false, err
	}
	if w.info != nil && os.SameFile(info, w.info) && info.Size() == w.info.Size() && info.ModTime().Equal(w.info.ModTime()) {
		// Clocks of machines differ, so now and then the file is read all the same.
		if w.read.Sub(info.ModTime()) >= racy && within(w.read, now, w.src.opts.Remind) {
			return w.workers, false, w.err
		}
	}
	data, info, err := readBounded(w.src.path, w.src.opts.MaxBytes)
	if err != nil {
		w.info = nil
		return nil, false, err
	}
	w.info, w.read = info, now
	sum := sha256.Sum256(data)
	if w.isSum && sum == w.sum {
		return w.workers, false, w.err
	}
	w.sum, w.isSum = sum, true
	workers, w.err = Decode(data)
	return workers, w.err == nil, w.err
}

// within says whether now is less than d after t, and not before it: on a clock
// that was set back no time can be told.
func within(t, now time.Time, d time.Duration) bool {
	age := now.Sub(t)
	return age >= 0 && age < d
}

// readBounded reads a file of at most limit bytes. What it says about the file is
// of the one that it read, whatever stands at the path by now.
func readBounded(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	// A device or FIFO has no end, or would keep the look waiting for one.
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("not a regular file")
	}
	limit = min(limit, math.MaxInt64-1)
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(data)) > limit {
		return nil, nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return data, info, nil
}
