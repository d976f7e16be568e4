package kvindex

import (
	"fmt"
	"testing"
)

// BenchmarkApply is the whole way of an event behind the decoder: hash of the
// tokens, sequence, store. Half of the events are stores of new blocks and half
// their removes; the figure is time per stored block, its remove included.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 8, 16} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			_, st := newTestStream(b, StreamConfig{})
			events := chainEvents(1, 64, n)
			store, remove := &Batch{Events: events}, &Batch{Events: removeEvents(events)}
			b.ReportAllocs()
			for b.Loop() {
				store.Seq, remove.Seq = st.seq.next, st.seq.next+1
				st.Apply(store)
				if r := st.Apply(remove); r.Counts.Removed != uint64(64*n) {
					b.Fatalf("%+v", r)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64*n), "ns/block")
		})
	}
}

// BenchmarkApplyStore is the same without removes: an index that fills up.
func BenchmarkApplyStore(b *testing.B) {
	const n, rounds = 16, 4096
	b.Run("blocks=16", func(b *testing.B) {
		events := chainEvents(1, rounds, n)
		x, st := newTestStream(b, StreamConfig{})
		batch := &Batch{Events: make([]Event, 1)}
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			if i == rounds {
				b.StopTimer()
				x.Clear(st.Slot())
				i = 0
				b.StartTimer()
			}
			batch.Seq, batch.Events[0] = st.seq.next, events[i]
			st.Apply(batch)
			i++
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/block")
	})
}

// BenchmarkApplyRegroup is BenchmarkApply with engine blocks of a quarter of the
// index's.
func BenchmarkApplyRegroup(b *testing.B) {
	x, err := New(&Options{BlockTokens: 64})
	if err != nil {
		b.Fatal(err)
	}
	st, err := x.NewStream(x.Attach("w", 0), StreamConfig{})
	if err != nil {
		b.Fatal(err)
	}
	events := chainEvents(1, 64, 16)
	store, remove := &Batch{Events: events}, &Batch{Events: removeEvents(events)}
	b.ReportAllocs()
	for b.Loop() {
		store.Seq, remove.Seq = st.seq.next, st.seq.next+1
		st.Apply(store)
		st.Apply(remove)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64*16), "ns/block")
}
