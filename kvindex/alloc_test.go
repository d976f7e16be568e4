package kvindex

import (
	"math/rand/v2"
	"testing"
)

// TestSpans hands out and takes back windows at random and compares with a map of
// what is in use: no two windows meet, and what is free is one piece in the end.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var s spans
	s.grow = func(uint32, int64) *wordChunk { return new(wordChunk) }
	type win struct{ base, size uint32 }
	var out []win
	for step := range 20000 {
		switch n := r.IntN(10); {
		case n < 5:
			want := 1 + r.Uint32N(300)
			if r.IntN(100) == 0 {
				want = 1 + r.Uint32N(chunkLen)
			}
			if !s.ready(want, 0) {
				t.Fatalf("step %d: no room", step)
			}
			base, size := s.alloc(want)
			if size < want || size > roundUnit(want)+max(unit, want/8) {
				t.Fatalf("step %d: %d words for %d", step, size, want)
			}
			out = append(out, win{base, size})
		case n < 7 && len(out) > 0:
			w := &out[r.IntN(len(out))]
			if w.size < chunkLen/2 {
				w.size, _ = s.extend(w.base, w.size, w.size+1+r.Uint32N(64))
			}
		case n < 8 && len(out) > 0:
			w := &out[r.IntN(len(out))]
			w.size = s.shrink(w.base, w.size, 1+r.Uint32N(w.size))
		case len(out) > 0:
			i := r.IntN(len(out))
			s.release(out[i].base, out[i].size)
			out[i] = out[len(out)-1]
			out = out[:len(out)-1]
		}
		if step%500 != 0 {
			continue
		}
		if err := s.check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		used := map[uint32]bool{}
		for _, w := range out {
			if w.base>>chunkBits != (w.base+w.size-1)>>chunkBits {
				t.Fatalf("step %d: window %v crosses a chunk", step, w)
			}
			for u := w.base / unit; u < (w.base+w.size)/unit; u++ {
				if used[u] {
					t.Fatalf("step %d: window %v meets another", step, w)
				}
				used[u] = true
			}
		}
	}
	for _, w := range out {
		s.release(w.base, w.size)
	}
	if s.inUse != 0 {
		t.Fatalf("%d words in use", s.inUse)
	}
	s.drop(func(uint32) {})
	if len(s.mark) != 0 || s.some != [2]uint64{} {
		t.Fatalf("%d chunks left, classes %x", len(s.mark), s.some)
	}
}

func TestSizeClasses(t *testing.T) {
	for n := uint32(1); n <= chunkLen; n++ {
		c := classOf(n)
		if c >= classes || classSize(c) < n || c > 1 && classSize(c-1) >= n {
			t.Fatalf("%d words: class %d of %d words", n, c, classSize(c))
		}
		if f := listOf(n); n >= unit && (classSize(f) > n || f+1 < classes && classSize(f+1) <= n) {
			t.Fatalf("%d words: list %d of %d words", n, f, classSize(f))
		}
	}
}
