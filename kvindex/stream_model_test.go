package kvindex

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stator-go/stator/kvindex/block"
	"pgregory.net/rapid"
)

// TestStreamModel drives a stream with a random engine over a channel that
// loses, repeats and replays messages, and compares every answer with sets of
// what the engine holds. The answer must lie between two bounds: at most what
// the engine held after the last message applied, and, when no message is
// missing since the slot was last empty, at least that without the blocks that
// wait for their parent. Where blocks have several names only the first bound is
// promised; and that nothing is left when all copies are removed.
func TestStreamModel(t *testing.T) {
	for _, kind := range indexKinds {
		t.Run(kind.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newModel(t, kind.make)
				for range rapid.IntRange(5, 40).Draw(t, "steps") {
					m.step()
					m.check()
				}
				m.settle()
			})
		})
	}
}

// model is one run.
type model struct {
	t   *rapid.T
	ix  testIndex
	st  *Stream
	hsh *block.Hasher

	tokens, engine, unit int // tokens per block: of the index, the engine, its CPU tier
	timed                bool
	hidden               int // further names of each block: an engine that hashes what it does not tell

	// The engine and what was true after each of its messages.
	hold  holding
	ring  []*Batch
	truth []bounds
	clock float64
	heard bool // the stream has heard from this engine process

	wanted bool
	from   uint64
	exact  bool // nothing is missing since the slot was empty
}

// tierName is a block of the engine in a tier.
type tierName struct {
	t    Tier
	name uint64
}

// holding is what the engine holds: all copies, those among them whose parent
// was known when they came or came later, and those that wait.
type holding struct {
	all, known map[tierName]int
	waiting    []waiting
}

// waiting is a store event whose parent is not known, without the blocks that
// were removed meanwhile.
type waiting struct {
	t      Tier
	parent uint64
	names  []uint64
}

// bounds are the least and greatest depth for each chain and tier.
type bounds struct{ lo, hi [3][Tiers]int }

const (
	modelChains = 3
	modelLength = 96 // tokens
)

// forkAt tells from where on a chain differs from chain 0.
var forkAt = [modelChains]int{0, 40, 8}

func newModel(t *rapid.T, make func(int) testIndex) *model {
	m := &model{t: t, timed: rapid.Bool().Draw(t, "timed"), clock: 1}
	m.tokens = rapid.SampledFrom([]int{4, 8}).Draw(t, "index")
	m.engine = rapid.SampledFrom([]int{4, 8, 2, 6, 16}).Draw(t, "engine")
	m.unit = rapid.SampledFrom([]int{16, 12, 8}).Draw(t, "unit")
	m.hidden = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "hidden")
	m.ix = make(m.tokens)
	cfg := StreamConfig{
		NoReplay:    rapid.IntRange(0, 4).Draw(t, "noreplay") == 0,
		MaxBuffered: rapid.SampledFrom([]int{0, 3}).Draw(t, "buffered"),
		MaxReplays:  2,
	}
	m.ix.Attach("other", 0)
	var err error
	if m.st, err = newStream(m.ix, m.ix.Attach("w", 0), cfg, nil); err != nil {
		t.Fatal(err)
	}
	if m.hsh, err = block.NewHasher(block.Scope{}, m.tokens, nil); err != nil {
		t.Fatal(err)
	}
	m.restart()
	return m
}

func (m *model) token(chain, pos int) uint32 {
	if pos < forkAt[chain] {
		chain = 0
	}
	return uint32(chain*1000 + pos)
}

func (m *model) prompt(chain, from, to int) (out []uint32) {
	for i := from; i < to; i++ {
		out = append(out, m.token(chain, i))
	}
	return out
}

// name is the engine's name of the tokens up to hi in blocks of a size, under
// something that its events do not tell.
func (m *model) name(chain, size, hi, untold int) uint64 {
	if hi <= forkAt[chain] {
		chain = 0
	}
	return aliasName(uint64(untold<<20+chain*1000+hi), uint64(size))
}

// sizeIn is the size of the blocks that the engine announces in a tier.
func (m *model) sizeIn(t Tier) int {
	if t == TierCPU {
		return m.unit
	}
	return m.engine
}

func (m *model) restart() {
	m.hold = holding{all: map[tierName]int{}, known: map[tierName]int{}}
	m.ring, m.truth, m.heard = nil, nil, false
}

// step lets the engine send a message, or something happen on the way.
func (m *model) step() {
	t := m.t
	switch rapid.IntRange(0, 19).Draw(t, "step") {
	default:
		b := m.message()
		if rapid.IntRange(0, 5).Draw(t, "lost") > 0 || !m.mayLose() {
			m.deliver(b)
		}
	case 0, 1:
		if m.wanted {
			m.replay(rapid.Bool().Draw(t, "cut"))
		}
	case 2:
		if n := len(m.ring); n > 0 && m.heard && m.st.seq.state != StreamInitial {
			b := m.ring[rapid.IntRange(0, n-1).Draw(t, "again")]
			if b.Seq < m.st.seq.next { // it was delivered, or replayed
				m.deliver(b)
			}
		}
	case 3:
		m.restart()
	case 4:
		m.restart()
		m.result(m.st.Reset(ResetEngine), false)
		m.exact, m.wanted = false, false
	}
}

// mayLose says whether the channel may lose a message: not so many after a
// restart that the next one looks like a continuation.
func (m *model) mayLose() bool {
	q, n := &m.st.seq, uint64(len(m.ring))
	if !m.timed { // the last number again, or one that a replay brought, is taken for a duplicate
		return m.heard || q.state == StreamInitial || n+1 < q.seen
	}
	return m.heard || q.state == StreamInitial || n < max(q.next, q.seen)
}

// message makes the engine's next message.
func (m *model) message() *Batch {
	b := &Batch{Seq: uint64(len(m.ring)), Rank: -1}
	if m.clock++; m.timed {
		b.Time = m.clock
	}
	for range rapid.IntRange(1, 3).Draw(m.t, "events") {
		m.event(b)
	}
	m.ring, m.truth = append(m.ring, b), append(m.truth, m.bounds())
	return b
}

func (m *model) event(b *Batch) {
	t, h := m.t, &m.hold
	e := Event{Group: -1}
	tier := rapid.SampledFrom([]Tier{TierGPU, TierGPU, TierCPU, TierDisk}).Draw(t, "tier")
	size := m.sizeIn(tier)
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
	case kind == 9 && rapid.IntRange(0, 4).Draw(t, "lost event") == 0:
		e.Kind = EventLost // it removed one copy of each block
		for k := range maps.Clone(h.all) {
			h.remove(k)
		}
	case kind == 9 && rapid.IntRange(0, 3).Draw(t, "clear") == 0:
		e.Kind = EventCleared
		*h = holding{all: map[tierName]int{}, known: map[tierName]int{}}
	case kind >= 6:
		e.Kind, e.Tier = EventRemoved, tier
		var held []uint64
		for k := range h.all {
			if k.t == tier {
				held = append(held, k.name)
			}
		}
		slices.Sort(held)
		if rapid.IntRange(0, 5).Draw(t, "unknown") == 0 || len(held) == 0 {
			held = append(held, 12345)
		}
		for range rapid.IntRange(1, 3).Draw(t, "removes") {
			i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
			e.Hashes = append(e.Hashes, held[i])
			h.remove(tierName{tier, held[i]})
		}
	case kind == 5:
		e.Kind, e.Tier = EventStored, TierObject
		var held []uint64
		for k := range h.known {
			if k.t == TierGPU {
				held = append(held, k.name)
			}
		}
		slices.Sort(held)
		if len(held) == 0 {
			held = append(held, 54321)
		}
		name := rapid.SampledFrom(held).Draw(t, "offload")
		e.Hashes = append(e.Hashes, name)
		if name != 54321 {
			h.all[tierName{TierObject, name}]++
			h.known[tierName{TierObject, name}]++
		}
	default:
		e.Kind, e.Tier, e.BlockSize = EventStored, tier, size
		chain := rapid.IntRange(0, modelChains-1).Draw(t, "chain")
		untold := 0
		if m.hidden > 0 {
			untold = rapid.IntRange(0, m.hidden).Draw(t, "untold")
		}
		most := modelLength / size
		lo := 0
		if rapid.IntRange(0, 3).Draw(t, "middle") > 0 {
			for lo < most-1 && h.all[tierName{tier, m.name(chain, size, (lo+1)*size, untold)}] > 0 {
				lo++
			}
		} else {
			lo = rapid.IntRange(0, most-1).Draw(t, "from")
		}
		n := rapid.IntRange(1, min(6, most-lo)).Draw(t, "blocks")
		e.Tokens = m.prompt(chain, lo*size, (lo+n)*size)
		if lo > 0 {
			e.HasParent, e.Parent = true, m.name(chain, size, lo*size, untold)
		}
		for i := range n {
			e.Hashes = append(e.Hashes, m.name(chain, size, (lo+i+1)*size, untold))
		}
		h.store(&e)
	}
	b.Events = append(b.Events, e)
}

func (h *holding) knows(name uint64) bool {
	for t := range Tier(Tiers) {
		if h.known[tierName{t, name}] > 0 {
			return true
		}
	}
	return false
}

func (h *holding) store(e *Event) {
	for _, name := range e.Hashes {
		h.all[tierName{e.Tier, name}]++
	}
	if e.HasParent && !h.knows(e.Parent) {
		h.waiting = append(h.waiting, waiting{e.Tier, e.Parent, slices.Clone(e.Hashes)})
		return
	}
	for _, name := range e.Hashes {
		h.known[tierName{e.Tier, name}]++
	}
	for i := 0; i < len(h.waiting); i++ {
		w := h.waiting[i]
		if !h.knows(w.parent) {
			continue
		}
		for _, name := range w.names {
			h.known[tierName{w.t, name}]++
		}
		h.waiting = slices.Delete(h.waiting, i, i+1)
		i = -1
	}
}

func (h *holding) remove(k tierName) {
	dec := func(m map[tierName]int) {
		if m[k]--; m[k] <= 0 {
			delete(m, k)
		}
	}
	dec(h.all)
	if h.known[k] > 0 {
		dec(h.known)
		return
	}
	for i := range h.waiting {
		w := &h.waiting[i]
		if j := slices.Index(w.names, k.name); w.t == k.t && j >= 0 {
			w.names = slices.Delete(w.names, j, j+1)
			return
		}
	}
}

// bounds are the depths that follow from what the engine holds.
func (m *model) bounds() (b bounds) {
	for c := range modelChains {
		b.lo[c], b.hi[c] = m.depths(m.hold.known, c, true), m.depths(m.hold.all, c, false)
	}
	return b
}

// depths counts leading blocks of the index whose tokens are covered by blocks
// of one size in a tier or a faster one. Where only one of the two sizes is the
// index's own, blocks of the other size wait for their parent to be held in that
// other size: the least depth counts them only without a break from the root.
func (m *model) depths(held map[tierName]int, chain int, least bool) (out [Tiers]int) {
	sizes := []int{m.engine, m.unit}
	mixed := least && m.engine != m.unit && slices.Contains(sizes, m.tokens)
	for t := range Tier(Tiers) {
		whole := [2]bool{true, true}
		for k := 0; k < modelLength/m.tokens; k++ {
			found := false
			for i, size := range sizes {
				if here := m.covered(held, t, size, chain, k); here && (whole[i] || !mixed || size == m.tokens) {
					found = true
				} else if !here {
					whole[i] = false
				}
			}
			if !found {
				break
			}
			out[t]++
		}
	}
	return out
}

// covered says whether blocks of a size in one tier, t or a faster one, hold the
// tokens of the index's block k.
func (m *model) covered(held map[tierName]int, t Tier, size, chain, k int) bool {
	prompt := m.prompt(chain, 0, (k+1)*m.tokens)
	for c := range modelChains { // a block of another chain may begin like this one
		if !slices.Equal(m.prompt(c, 0, len(prompt)), prompt) {
			continue
		}
		for u := range t + 1 {
			all := true
			for lo := k * m.tokens / size * size; lo < len(prompt); lo += size {
				some := false
				for v := range m.hidden + 1 {
					some = some || held[tierName{u, m.name(c, size, lo+size, v)}] > 0
				}
				all = all && some
			}
			if all {
				return true
			}
		}
	}
	return false
}

func (m *model) deliver(b *Batch) {
	first := m.st.State() == StreamInitial
	m.heard = true
	r := m.st.Apply(b)
	switch {
	case r.Counts.Restarts > 0, first:
		m.exact = b.Seq == 0
	}
	m.result(r, r.Counts.Cleared > 0)
}

// replay answers the replay that is wanted, perhaps not to its end, from a ring
// that may have lost its oldest messages.
func (m *model) replay(cut bool) {
	if !m.heard { // the stream does not know the new process: its driver has lost the old one
		m.wanted = false
		m.result(m.st.ReplayEnd(false), false)
		return
	}
	lost := rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(m.t, "ring")
	m.wanted = false
	for _, b := range m.ring[min(lost, len(m.ring)):] {
		if b.Seq < m.from {
			continue
		}
		if cut && rapid.IntRange(0, 4).Draw(m.t, "cut here") == 0 {
			m.result(m.st.ReplayEnd(false), false)
			return
		}
		begins := m.st.State() == StreamRestoring && !m.st.seq.got
		r := m.st.Replay(b)
		if begins {
			m.exact = b.Seq == 0
			r.Counts.Holes = 0
		}
		m.result(r, r.Counts.Cleared > 0)
		m.check()
	}
	m.result(m.st.ReplayEnd(true), false)
}

func (m *model) result(r Result, cleared bool) {
	if r.Counts.Holes > 0 || r.Counts.Lost > 0 {
		m.exact = false
	} else if cleared {
		m.exact = true
	}
	if r.Replay.Wanted {
		m.wanted, m.from = true, r.Replay.From
	}
}

// check compares the index with the bounds after the last message applied.
func (m *model) check() {
	next := m.st.seq.next
	if m.st.State() == StreamInitial || next == 0 || !m.heard {
		return // it knows nothing, or only of a process that is gone
	}
	if next > uint64(len(m.truth)) {
		m.t.Fatalf("message %d applied of %d: a restart was missed", next-1, len(m.truth))
	}
	want := m.truth[next-1]
	for c := range modelChains {
		got := m.answer(c)
		for t := range Tiers {
			if got[t] > want.hi[c][t] || m.exact && m.hidden == 0 && got[t] < want.lo[c][t] {
				for _, b := range m.ring {
					for _, e := range b.Events {
						m.t.Logf("%d: kind %d %s %x parent %v %x", b.Seq, e.Kind, e.Tier, e.Hashes, e.HasParent, e.Parent)
					}
				}
				m.t.Fatalf("chain %d, tier %s: depth %d, want %d to %d (exact %v, state %v, message %d)",
					c, Tier(t), got[t], want.lo[c][t], want.hi[c][t], m.exact, m.st.State(), next-1)
			}
		}
	}
}

func (m *model) answer(chain int) (out [Tiers]int) {
	var o Overlap
	m.ix.Lookup(&o, m.hsh.AppendHashes(nil, m.prompt(chain, 0, modelLength), nil))
	for t := range Tier(Tiers) {
		out[t] = o.Depth(m.st.Slot(), t)
	}
	return out
}

// settle brings the stream up to date, removes what the engine holds, and
// expects that nothing is left anywhere.
func (m *model) settle() {
	if !m.heard {
		m.deliver(m.message())
	}
	for range 20 {
		if !m.wanted {
			break
		}
		m.replay(false)
		m.check()
	}
	if s := m.st.State(); s != StreamLive {
		m.t.Fatalf("state %v after replays", s)
	}
	b := &Batch{Seq: uint64(len(m.ring))}
	if m.clock++; m.timed {
		b.Time = m.clock
	}
	keys := slices.SortedFunc(maps.Keys(m.hold.all), func(a, b tierName) int { return int(a.t) - int(b.t) })
	for _, k := range keys {
		for range m.hold.all[k] {
			b.Events = append(b.Events, Event{Kind: EventRemoved, Group: -1, Tier: k.t, Hashes: []uint64{k.name}})
		}
	}
	m.hold = holding{all: map[tierName]int{}, known: map[tierName]int{}}
	m.ring, m.truth = append(m.ring, b), append(m.truth, m.bounds())
	m.deliver(b)
	for range 5 {
		if m.wanted {
			m.replay(false)
		}
	}
	m.check()
	s := m.st.Stats()
	if m.exact && (s.Units != 0 || s.OrphanBlocks != 0 || s.CopyNames != 0 || s.Buffered != 0 || len(m.st.units.blocks) != 0 || len(m.st.units.pending) != 0) {
		m.t.Fatalf("left behind: %+v", s)
	}
	if x, ok := m.ix.(*Index); ok {
		if err := x.check(); err != nil {
			m.t.Fatal(err)
		}
		if n := x.Stats().Holders; m.exact && n != [Tiers]int{} {
			m.t.Fatalf("the index still holds %v", n)
		}
	}
	m.ix.Detach(m.st.Slot())
	m.st.Tick(time.Unix(1, 0))
	if s := m.st.Stats(); s.State != StreamDead || s.Units+s.OrphanBlocks+s.CopyNames+s.Buffered+s.OrphanBytes+s.BufferedBytes != 0 {
		m.t.Fatalf("left behind by a slot that is gone: %+v", s)
	}
}
