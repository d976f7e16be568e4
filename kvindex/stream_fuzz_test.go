package kvindex

import (
	"testing"
	"time"

	"github.com/stator-go/stator/kvindex/block"
)

// FuzzStreamApply feeds a stream whatever a byte string says, well formed or
// not, with few names so that they collide. It must not panic, its bounds must
// hold at every step, and nothing may be left once the slot is gone.
func FuzzStreamApply(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{0, 1, 0, 1, 2, 3, 4}, uint8(1))
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"), uint8(2))
	f.Add([]byte{0, 0, 1, 0, 2, 5, 6, 16, 0, 2, 1, 0, 2, 5, 6, 16, 1, 1, 1, 0, 9, 9, 9, 2, 1}, uint8(3))
	f.Fuzz(fuzzOne)
}

func fuzzOne(t *testing.T, data []byte, shape uint8) {
	if len(data) > 4096 {
		return
	}
	x, err := New(&Options{BlockTokens: []int{4, 8, 3, 1}[shape%4]})
	if err != nil {
		t.Fatal(err)
	}
	cfg := StreamConfig{
		NoReplay: shape&4 != 0, MaxBuffered: 3, MaxBufferedBytes: 20_000, MaxReplays: 2,
		MaxOrphanBlocks: 10, MaxOrphanBytes: 10_000, OrphanTTL: time.Second, MaxHashers: 2, MaxUnits: 12, MaxCopies: 4,
	}
	st, err := x.NewStream(x.Attach("w", 0), cfg)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x.NewStream(x.Attach("other", 0), cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := fuzzInput{data: data}
	for len(d.data) > 0 {
		to := st
		if d.next()%4 == 0 {
			to = other
		}
		d.step(to)
		checkBounds(t, st, &cfg)
		checkBounds(t, other, &cfg)
	}
	for _, st := range []*Stream{st, other} {
		x.Detach(st.Slot())
		st.Tick(time.Unix(2000, 0))
		s := st.Stats()
		if n := s.OrphanBlocks + s.OrphanBytes + s.Buffered + s.BufferedBytes + s.Units + s.CopyNames + s.AliasNames; n != 0 || s.State != StreamDead {
			t.Fatalf("left behind: %+v", s)
		}
	}
	x.Sweep()
	if s := x.Stats(); s.Blocks != 0 || s.Runs != 0 || s.Scopes != 0 || s.Holders != [Tiers]int{} {
		t.Fatalf("left behind in the index: %+v", s)
	}
}

func checkBounds(t *testing.T, st *Stream, cfg *StreamConfig) {
	t.Helper()
	s := st.Stats()
	switch {
	case s.OrphanBlocks > cfg.MaxOrphanBlocks, s.OrphanBytes > cfg.MaxOrphanBytes,
		s.Buffered > cfg.MaxBuffered, s.BufferedBytes > cfg.MaxBufferedBytes,
		s.Units > cfg.MaxUnits, s.Hashers > cfg.MaxHashers+1, s.CopyNames > Tiers*cfg.MaxCopies:
		t.Fatalf("over a bound: %+v", s)
	case s.State == StreamLive && (s.Lag != 0 || s.Buffered != 0):
		t.Fatalf("live and behind: %+v", s)
	case len(st.units.run.chain) != 0 || len(st.units.ready) != 0 || len(st.arrived) != 0:
		t.Fatal("work left undone")
	}
}

// fuzzInput reads decisions off a byte string; behind its end all are 0.
type fuzzInput struct{ data []byte }

func (d *fuzzInput) next() int {
	if len(d.data) == 0 {
		return 0
	}
	v := d.data[0]
	d.data = d.data[1:]
	return int(v)
}

func (d *fuzzInput) step(st *Stream) {
	switch op := d.next() % 16; op {
	default:
		b := &Batch{Seq: st.seq.next, Malformed: d.next() % 2}
		switch d.next() % 8 {
		case 0:
			b.Seq = uint64(d.next() % 8)
		case 1:
			b.Seq += uint64(d.next() % 4)
		}
		b.Time = float64(d.next())
		for range d.next() % 4 {
			b.Events = append(b.Events, d.event())
		}
		if op < 4 {
			st.Replay(b)
		} else {
			st.Apply(b)
		}
	case 12:
		st.ReplayEnd(d.next()%2 == 0)
	case 13:
		st.Reset(ResetReason(d.next() % 3))
	case 14:
		st.Tick(time.Unix(1000+int64(d.next()), 0))
	case 15:
		st.IgnoreRepeats(d.next()%2 == 0)
	}
}

func (d *fuzzInput) event() Event {
	e := Event{
		Kind: EventKind(d.next() % 5), Tier: []Tier{TierGPU, TierGPU, TierCPU, TierDisk, TierObject, TierUnknown}[d.next()%6],
		Group: -1,
	}
	if e.Kind == EventUnknown && d.next()%4 != 0 {
		e.Kind = EventStored
	}
	for range d.next() % 6 {
		e.Hashes = append(e.Hashes, uint64(d.next()%24))
	}
	flags := d.next()
	if e.HasParent = flags&1 != 0; e.HasParent {
		e.Parent = uint64(d.next() % 24)
	}
	size := []int{4, 8, 3, 1, 2, 16}[d.next()%6]
	if flags&2 == 0 {
		e.BlockSize = size
	}
	if flags&2 != 0 && d.next()%8 == 0 {
		e.BlockSize = (d.next() - 50) << (d.next() % 60)
	}
	if flags&4 == 0 {
		v := uint32(d.next() % 3)
		for i := range len(e.Hashes) * size {
			e.Tokens = append(e.Tokens, v+uint32(i/8))
		}
		if flags&8 != 0 && d.next()%4 == 0 {
			e.Tokens = append(e.Tokens, 1)
		}
	}
	if flags&16 != 0 {
		e.Adapter, e.Salt = []string{"", "a", "b"}[d.next()%3], []string{"", "s", "t", "u"}[d.next()%4]
	}
	if flags&32 != 0 {
		e.Group, e.Prefix, e.GroupSaid = d.next()%4-1, d.next()%3 != 0, d.next()%2 == 0
		e.Remote = d.next()%8 == 0
	}
	if flags&64 != 0 {
		for range d.next() % 4 {
			e.Remaining = append(e.Remaining, d.next()%4-1)
		}
	}
	if flags&128 != 0 {
		e.Media = append(e.Media, block.Media{ID: "cat", Offset: d.next() - 100, Length: d.next() - 10})
	}
	return e
}
