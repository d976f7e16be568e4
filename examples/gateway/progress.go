package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A progress shows how far a run has come: a bar that is drawn over on a
// terminal, a line at each tenth elsewhere. It is safe for concurrent use.
type progress struct {
	w     io.Writer
	tty   bool
	title string
	total int
	start time.Time

	mu    sync.Mutex
	drawn time.Time
	tenth int
	done  int
}

func newProgress(w io.Writer, title string, total int) *progress {
	p := &progress{w: w, tty: isTerminal(w), title: title, total: total, start: time.Now()}
	p.step(0)
	return p
}

// isTerminal says whether w is a character device.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// step says that n requests are done. It may be called out of order.
func (p *progress) step(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n < p.done {
		return
	}
	p.done = n
	now := time.Now()
	switch {
	case p.tty:
		if n == p.total || now.Sub(p.drawn) >= 100*time.Millisecond {
			p.drawn = now
			p.draw(now, "\r")
		}
	case p.total > 0 && n*10/p.total > p.tenth:
		p.tenth = n * 10 / p.total
		p.draw(now, "")
	}
}

// finish ends the line of a bar.
func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty {
		p.draw(time.Now(), "\r")
		fmt.Fprintln(p.w)
	}
}

func (p *progress) draw(now time.Time, lead string) {
	const width = 30
	full := 0
	if p.total > 0 {
		full = width * p.done / p.total
	}
	fmt.Fprintf(p.w, "%s%-14s [%s%s] %d/%d, %.0f s", lead, p.title,
		strings.Repeat("=", full), strings.Repeat(" ", width-full), p.done, p.total, now.Sub(p.start).Seconds())
	if lead == "" {
		fmt.Fprintln(p.w)
	}
}
