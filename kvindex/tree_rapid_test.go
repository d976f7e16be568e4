package kvindex

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/stator-go/stator/kvindex/block"
)

// TestTreeRapid is the model test with inputs that shrink: few slots and short
// chains, so that a failure is small.
func TestTreeRapid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, _ := New(nil)
		idle := x.Bytes()
		m := &treeModel{x: x}
		m.attach(rapid.IntRange(1, 4).Draw(t, "slots"), rapid.SampledFrom([]string{"h", "n", "nd", "hnd"}).Draw(t, "names"))
		cs := makeChains(rand.New(rand.NewPCG(1, 1)), 5, 8)
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		slot := rapid.IntRange(0, len(m.slots)-1)
		tier := rapid.Custom(func(t *rapid.T) Tier { return Tier(rapid.IntRange(0, Tiers-1).Draw(t, "tier")) })
		part := func(t *rapid.T) ([]block.Hash, int, int) {
			c := rapid.SampledFrom(cs).Draw(t, "chain")
			from := rapid.IntRange(0, len(c)-1).Draw(t, "from")
			return c, from, rapid.IntRange(from+1, len(c)).Draw(t, "to")
		}
		var o Overlap
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				c, from, to := part(t)
				must(m.store(slot.Draw(t, "slot"), tier.Draw(t, "tier"), c, from, to))
			},
			"prefix": func(t *rapid.T) {
				c, _, to := part(t)
				must(m.store(slot.Draw(t, "slot"), tier.Draw(t, "tier"), c, 0, to))
			},
			"known": func(t *rapid.T) {
				c, from, to := part(t)
				must(m.known(slot.Draw(t, "slot"), tier.Draw(t, "tier"), c[from:to]))
			},
			"remove": func(t *rapid.T) {
				c, from, to := part(t)
				hs := slices.Clone(c[from:to])
				if rapid.Bool().Draw(t, "deepest first") {
					slices.Reverse(hs)
				}
				must(m.remove(slot.Draw(t, "slot"), tier.Draw(t, "tier"), hs))
			},
			"clear": func(t *rapid.T) {
				k := m.slots[slot.Draw(t, "slot")]
				u := tier.Draw(t, "tier")
				x.Clear(k.s, u)
				clear(k.held[u])
			},
			"clear all": func(t *rapid.T) {
				k := m.slots[slot.Draw(t, "slot")]
				x.Clear(k.s)
				k.reset()
			},
			"attach again": func(t *rapid.T) { m.again(slot.Draw(t, "slot")) },
			"sweep":        func(*rapid.T) { x.Sweep() },
			"": func(t *rapid.T) {
				must(m.compare(&o, rapid.SampledFrom(cs).Draw(t, "query")))
				must(x.check())
			},
		})
		must(m.finish(idle))
	})
}

// FuzzIndex feeds the index hashes that no hasher makes: few values, repeated
// within a chain, with parents that do not fit. Answers mean nothing then, but
// nothing may panic or hang, bytes stay counted, and all is gone in the end.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 2, 3, 1, 1, 2, 3, 4, 2, 0, 1, 1, 1})
	f.Add([]byte{0, 9, 9, 9, 9, 0, 9, 9, 0, 9, 4, 9, 9, 9, 9, 0, 1, 9, 1, 9, 5, 0, 0, 0, 0, 3, 1, 2, 1, 2, 6, 6, 6, 6, 6})
	f.Fuzz(func(t *testing.T, in []byte) {
		x, _ := New(&Options{MaxBytes: 8 << 20})
		idle := x.Bytes()
		var slots []Slot
		for _, w := range []string{"a", "b", "c"} {
			slots = append(slots, x.Attach(w, 0))
		}
		var o Overlap
		for len(in) >= 5 {
			op, a, b, c, d := in[0], in[1], in[2], in[3], in[4]
			in = in[5:]
			s, tier := slots[int(op/8)%len(slots)], Tier(a%5)
			chain := []block.Hash{block.Hash(b % 8), block.Hash(c % 8), block.Hash(d % 8), block.Hash(b % 16), block.Hash(a)}[:1+int(a/8)%5]
			switch op % 8 {
			case 0, 1:
				x.Store(s, tier, block.Hash(d%8), chain)
			case 2:
				x.Store(s, tier, 0, chain)
			case 3:
				x.Remove(s, tier, chain)
			case 4:
				x.Lookup(&o, chain)
			case 5:
				x.Clear(s, tier)
			case 6:
				x.Clear(s)
			case 7:
				slots[int(op/8)%len(slots)] = x.Attach(string('a'+rune(op/8)%3), 0)
			}
			if x.Bytes() > 8<<20 {
				t.Fatalf("%d bytes", x.Bytes())
			}
		}
		if err := x.checkBytes(); err != nil {
			t.Fatal(err)
		}
		for _, s := range slots {
			x.Detach(s)
		}
		x.Sweep()
		if got := x.Bytes(); got != idle {
			t.Fatalf("%d bytes left, %d when idle: %+v", got, idle, x.Stats())
		}
	})
}

// FuzzNames compares the name map and the side map with a Go map.
func FuzzNames(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"))
	f.Add([]byte{1, 0, 0, 1, 0, 1, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2})
	f.Fuzz(func(t *testing.T, in []byte) {
		type key struct {
			name uint64
			at   place
		}
		var mem budget
		var m nameMap
		var side sideMap
		want := map[key]bool{}
		for len(in) >= 3 {
			op, n := in[0], binary.LittleEndian.Uint16(in[1:])
			in = in[3:]
			k := key{uint64(n%64) << (n % 3 * 20), at(1+uint32(n>>6), uint32(op>>2))}
			switch op % 4 {
			case 0, 1:
				if want[k] {
					break
				}
				want[k] = true
				if !m.ensure([]uint64{k.name}, &mem) || !side.ensure(1, &mem) {
					t.Fatal("no room without a limit")
				}
				m.insert(k.name, k.at)
				side.put(k.name, k.at, k.name)
			case 2:
				m.remove(k.name, k.at)
				side.remove(k.name, k.at)
				delete(want, k)
			case 3:
				if op&0x80 != 0 {
					m.trim(&mem)
					side.trim(&mem)
				}
			}
			if m.len() != len(want) || side.used != len(want) {
				t.Fatalf("%d and %d names, want %d", m.len(), side.used, len(want))
			}
			if got := m.bytes() + side.bytes(); got != mem.total.Load() {
				t.Fatalf("%d bytes, counted %d", got, mem.total.Load())
			}
		}
		for k := range want {
			is := func(p place) bool { return p == k.at }
			if _, ok := m.find(k.name, is); !ok {
				t.Fatalf("%v is not in the map", k)
			}
			if _, ok := side.find(k.name, is, func(*sideEntry) bool { return false }); !ok {
				t.Fatalf("%v is not in the side map", k)
			}
		}
	})
}
