package page

// A ring keeps the last values put into it, at most its capacity.
type ring[T any] struct {
	buf  []T
	next int // where the next value goes
	n    int // values held
}

func newRing[T any](capacity int) ring[T] { return ring[T]{buf: make([]T, capacity)} }

// put adds a value and drops the oldest when the ring is full.
func (r *ring[T]) put(v T) {
	r.buf[r.next] = v
	r.next = (r.next + 1) % len(r.buf)
	r.n = min(r.n+1, len(r.buf))
}

// at returns the i-th newest value, 0 the newest.
func (r *ring[T]) at(i int) T {
	return r.buf[(r.next-1-i+2*len(r.buf))%len(r.buf)]
}

// last returns a pointer to the newest value, nil when there is none.
func (r *ring[T]) last() *T {
	if r.n == 0 {
		return nil
	}
	return &r.buf[(r.next-1+len(r.buf))%len(r.buf)]
}

// reset forgets all values and what they point to.
func (r *ring[T]) reset() {
	clear(r.buf)
	r.next, r.n = 0, 0
}
