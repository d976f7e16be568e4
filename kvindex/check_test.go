package kvindex

import (
	"fmt"
	"math/bits"
	"slices"
)

// check proves that the index is consistent with itself: counters against what
// they count, maps against runs, and the rules of coverage. Nothing may run
// beside it.
func (x *Index) check() error {
	held := map[uint32]*[Tiers]int64{}
	names := make([]int, len(x.maps))
	runs, blocks := 0, int64(0)
	window, cover := int64(0), int64(0)
	table := *x.table.Load()
	for c, mb := range x.metas {
		if mb == nil {
			continue
		}
		used, lows := 0, 0
		for i := range uint32(runChunk) {
			r := x.hrun(uint32(c)<<runBits | i)
			if r.ver&1 != 0 {
				return fmt.Errorf("run %d is open", r.id)
			}
			if r.win == 0 {
				continue
			}
			used++
			runs++
			n := r.length()
			blocks += int64(n)
			window += int64(r.m.size)
			if n == 0 || n > r.m.size {
				return fmt.Errorf("run %d: %d blocks in %d words", r.id, n, r.m.size)
			}
			hs := x.d.hashesAt(winBase(r.win), n)
			if x.findHead(hs[0]) != r.id || !x.mayHead(hs[0]) {
				return fmt.Errorf("run %d: head finds run %d", r.id, x.findHead(hs[0]))
			}
			for j, h := range hs[1:] {
				if x.findHead(h) != 0 {
					return fmt.Errorf("run %d: block %d heads run %d as well", r.id, j+1, x.findHead(h))
				}
			}
			for j, name := range x.namesAt(winBase(r.win), n) {
				p := at(r.id, uint32(j))
				if q, ok := x.maps[r.m.names].find(name, func(q place) bool { return q == p }); !ok || q != p {
					return fmt.Errorf("run %d: block %d is not in map %d", r.id, j, r.m.names)
				}
			}
			names[r.m.names] += int(n)
			if r.low() {
				lows++
			}
			top, w, err := x.checkCover(r, held)
			cover += w
			if err != nil {
				return fmt.Errorf("run %d: %w", r.id, err)
			}
			if top != n {
				return fmt.Errorf("run %d: nobody holds its end, %d of %d", r.id, top, n)
			}
		}
		if used != int(mb.used) {
			return fmt.Errorf("chunk %d: %d runs, counted %d", c, used, mb.used)
		}
		if lm := x.lowMetas[c]; lm != nil && int(lm.used) != lows {
			return fmt.Errorf("chunk %d: %d lower lines, counted %d", c, lows, lm.used)
		}
	}
	if runs != x.nruns || blocks != x.nblocks || runs != x.head.live {
		return fmt.Errorf("%d runs, %d blocks; counted %d, %d and %d heads", runs, blocks, x.nruns, x.nblocks, x.head.live)
	}
	if window != x.hashes.inUse || cover != x.words.inUse {
		return fmt.Errorf("%d words of hashes, %d of coverage in use; counted %d, %d", window, cover, x.hashes.inUse, x.words.inUse)
	}
	if err := x.hashes.check(); err != nil {
		return fmt.Errorf("hashes: %w", err)
	}
	if err := x.words.check(); err != nil {
		return fmt.Errorf("words: %w", err)
	}
	for i, m := range x.maps {
		if m == nil {
			continue
		}
		if m.len() != names[i] || m.orphan && names[i] == 0 {
			return fmt.Errorf("map %d: %d names of %d blocks, orphan %v", i, m.len(), names[i], m.orphan)
		}
	}
	sided := 0
	total := [Tiers]int64{}
	for i := range table {
		k := table[i].Load()
		if k == nil {
			if held[uint32(i)] != nil {
				return fmt.Errorf("slot %d holds blocks and is free", i)
			}
			continue
		}
		h := held[k.num]
		if h == nil {
			h = &[Tiers]int64{}
		}
		if *h != k.held {
			return fmt.Errorf("slot %d holds %v, counted %v", k.num, *h, k.held)
		}
		for t := range total {
			total[t] += h[t]
		}
		if len(k.side.slots) > 0 {
			sided++
		}
		used := 0
		for _, e := range k.side.slots {
			if e.at == 0 {
				continue
			}
			used++
			if k.side.loose == 0 && x.stale(k, &e) {
				return fmt.Errorf("slot %d: side name of a block that it does not hold", k.num)
			}
		}
		if used != k.side.used {
			return fmt.Errorf("slot %d: %d side names, counted %d", k.num, used, k.side.used)
		}
	}
	if sided != x.sided || total != x.holders {
		return fmt.Errorf("%d side maps, holders %v; counted %d, %v", sided, total, x.sided, x.holders)
	}
	return x.checkBytes()
}

func (x *Index) checkCover(r hrun, held map[uint32]*[Tiers]int64) (top uint32, words int64, err error) {
	n := r.length()
	add := func(slot uint32, t Tier, k uint32) {
		if held[slot] == nil {
			held[slot] = &[Tiers]int64{}
		}
		held[slot][t] += int64(k)
	}
	some := false
	for t := TierGPU; t < Tiers; t++ {
		whole, nwhole, l, capacity := x.plane(r, t)
		if whole == nil {
			return top, words, nil
		}
		ws := x.bits(*whole)
		words += int64(len(ws))
		if popcount(ws) != int(*nwhole) || (*whole != 0) != (*nwhole != 0) {
			return 0, 0, fmt.Errorf("%v: %d whole holders, counted %d", t, popcount(ws), *nwhole)
		}
		for i, v := range ws {
			for ; v != 0; v &= v - 1 {
				add(uint32(i*64+bits.TrailingZeros64(v)), t, n)
				top = n
				some = some || t > 0
			}
		}
		if t <= TierCPU && l.ents>>32 != 0 {
			words += int64(*capacity)
		}
		var es []uint64
		for _, e := range x.entries(l) {
			if entryTier(e) == t {
				es = append(es, e)
				some = some || t > 0
			}
		}
		slices.Sort(es)
		for i, e := range es {
			f, u := entryFrom(e), entryTo(e)
			if u == openEnd && f != 0 || u != openEnd && (u > n || f >= u || f == 0 && u == n) {
				return 0, 0, fmt.Errorf("%v: entry [%d, %d) of %d", t, f, u, n)
			}
			if x.hasWhole(r, t, entrySlot(e)) {
				return 0, 0, fmt.Errorf("%v: slot %d is whole and has an entry", t, entrySlot(e))
			}
			if i > 0 && entrySlot(es[i-1]) == entrySlot(e) && entryTo(es[i-1]) >= f {
				return 0, 0, fmt.Errorf("%v: entries of slot %d meet", t, entrySlot(e))
			}
			top = max(top, min(u, n))
			add(entrySlot(e), t, min(u, n)-f)
		}
	}
	if !some {
		return 0, 0, fmt.Errorf("an empty second line")
	}
	return top, words, nil
}

// check walks the free windows: with those in use they fill the chunks.
func (s *spans) check() error {
	free, n := int64(0), int64(0)
	for c := range uint32(classes) {
		if (s.first[c] != 0) != (s.some[c/64]>>(c%64)&1 != 0) {
			return fmt.Errorf("class %d: list and bit differ", c)
		}
		prev := uint32(0)
		for w := s.first[c]; w != 0; {
			base := w - 1
			size := s.freeAt(base)
			l := *s.link(base)
			if size < classSize(c) || uint32(l>>32) != prev || *s.markAt(base + size - unit) != *s.markAt(base) {
				return fmt.Errorf("class %d: window at %d of %d words, links %x", c, base, size, l)
			}
			free += int64(size)
			prev, w = w, uint32(l)
		}
	}
	for _, m := range s.mark {
		if m != nil {
			n += chunkLen
		}
	}
	if free+s.inUse != n {
		return fmt.Errorf("%d words free and %d in use of %d", free, s.inUse, n)
	}
	return nil
}

// checkBytes compares the byte counts with the memory that is there.
func (x *Index) checkBytes() error {
	var want [kinds]int64
	for i := range x.metas {
		if x.metas[i] != nil {
			want[kindRuns] += runBlockBytes
		}
		if x.lowMetas[i] != nil {
			want[kindRuns] += lowerBlockBytes
		}
		if (x.metas[i] == nil) != (x.d.runs[i] == nil) || (x.lowMetas[i] == nil) != (x.d.lowers[i] == nil) {
			return fmt.Errorf("chunk %d of runs: directories differ", i)
		}
	}
	for i := range x.hashes.mark {
		if x.hashes.mark[i] != nil {
			want[kindHashes] += hashChunkBytes
		}
	}
	for i := range x.words.mark {
		if x.words.mark[i] != nil {
			want[kindCover] += wordChunkBytes
		}
	}
	for _, m := range x.maps {
		if m != nil {
			want[kindNames] += nameMapBytes + m.bytes()
		}
	}
	want[kindHeads] = int64(len(x.head.slots)+len(x.filter)) * 8
	table := *x.table.Load()
	want[kindSlots] = int64(len(x.taken))*24 + int64(len(table))*8
	for i := range table {
		if k := table[i].Load(); k != nil {
			want[kindSlots] += slotBytes + int64(len(k.worker))
			want[kindNames] += k.side.bytes()
		}
	}
	for _, sc := range x.scopes {
		if sc.refs > 0 {
			want[kindSlots] += sc.bytes()
		}
	}
	total := int64(0)
	for k := range want {
		if got := x.mem.by[k].Load(); got != want[k] {
			return fmt.Errorf("bytes of kind %d: %d, counted %d", k, want[k], got)
		}
		total += want[k]
	}
	if got := x.mem.total.Load(); got != total {
		return fmt.Errorf("%d bytes, counted %d", total, got)
	}
	return nil
}

func popcount(ws []uint64) (n int) {
	for _, v := range ws {
		n += bits.OnesCount64(v)
	}
	return n
}
