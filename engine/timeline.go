package engine

import (
	"sync"
	"time"
)

// A Class says what a span of a request's time was spent on.
type Class uint8

// The classes.
const (
	Control Class = iota // decisions and metadata: accept, tokenise, queue, pick
	Data                 // heavy bytes: KV transfer, onboarding, relay
	Compute              // what the engine does between the two
)

// String is the class's name.
func (c Class) String() string {
	switch c {
	case Control:
		return "control"
	case Data:
		return "data"
	case Compute:
		return "compute"
	}
	return "unknown"
}

// A Span is a named piece of a request's time.
type Span struct {
	Name       string
	Class      Class
	Start, End time.Time
}

// A Timeline collects the spans of one request. The zero value is ready, a nil
// one drops everything. It is safe for concurrent use.
type Timeline struct {
	mu    sync.Mutex
	spans []Span
}

// Add records a span.
func (t *Timeline) Add(name string, c Class, start, end time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.spans = append(t.spans, Span{name, c, start, end})
	t.mu.Unlock()
}

// Spans returns a copy of the spans in the order they were added.
func (t *Timeline) Spans() []Span {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Span(nil), t.spans...)
}

// Reset empties the timeline and keeps its memory.
func (t *Timeline) Reset() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.spans = t.spans[:0]
	t.mu.Unlock()
}

// Has reports whether a span of the class was added.
func (t *Timeline) Has(c Class) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spans {
		if s.Class == c {
			return true
		}
	}
	return false
}
