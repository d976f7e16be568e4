package kvindex

// sideMap maps a slot's own names to places where the run has another name for
// the block: the engine's hash seed differs from that of the block's first
// holder, the first holder's map is out of reach, or the slot has several names
// for the block. Open addressing with linear probing; a name may be there twice,
// for two places.
//
// An entry counts while the block with its hash lies at its place and the slot
// holds it there in some tier. A block that leaves by another of its names leaves
// a stale entry behind: the hash tells it from whatever comes to the place later,
// a look-up that meets it drops it, and so do growth and trim.
type sideMap struct {
	slots []sideEntry // a power of two, or none
	used  int         // entries, stale ones included
	loose int         // blocks taken from the slot since the last purge; 0: no entry is stale
}

// sideEntry: at is zero in an empty slot.
type sideEntry struct {
	name uint64
	at   place
	hash uint64 // of the block
}

const sideEntryBytes = 24

func (m *sideMap) home(name uint64) int {
	return int(mixName(name) >> 32 & uint64(len(m.slots)-1))
}

// roomy says whether n more names fit without growth.
func (m *sideMap) roomy(n int) bool { return m.used+n == 0 || (m.used+n)*4 <= len(m.slots)*3 }

// ensure makes room for n more names; false if the budget has none.
func (m *sideMap) ensure(n int, mem *budget) bool {
	if m.roomy(n) {
		return true
	}
	size := max(8, len(m.slots))
	for (m.used+n)*4 > size*3 {
		size *= 2
	}
	if !mem.take(kindNames, int64(size-len(m.slots))*sideEntryBytes, storeReserve) {
		return false
	}
	m.resize(size)
	return true
}

func (m *sideMap) resize(size int) {
	old := m.slots
	m.slots = nil
	if size > 0 {
		m.slots = make([]sideEntry, size)
	}
	for _, e := range old {
		if e.at != 0 {
			m.place(e)
		}
	}
}

func (m *sideMap) place(e sideEntry) {
	i := m.home(e.name)
	for m.slots[i].at != 0 {
		i = (i + 1) & (len(m.slots) - 1)
	}
	m.slots[i] = e
}

// put adds (name, p), or gives the entry that is there the hash of the block that
// lies at p now; room must have been made.
func (m *sideMap) put(name uint64, p place, hash uint64) {
	for i := m.home(name); ; i = (i + 1) & (len(m.slots) - 1) {
		switch e := &m.slots[i]; {
		case e.at == 0:
			*e = sideEntry{name, p, hash}
			m.used++
			return
		case e.name == name && e.at == p:
			e.hash = hash
			return
		}
	}
}

// find returns a place of the name that ok accepts. Entries of the name that stale
// says are stale are dropped on the way, and never accepted.
func (m *sideMap) find(name uint64, ok func(place) bool, stale func(*sideEntry) bool) (place, bool) {
	if m.used == 0 {
		return 0, false
	}
	for i := m.home(name); m.slots[i].at != 0; {
		if e := &m.slots[i]; e.name == name {
			if stale(e) {
				m.drop(i) // the next entry to look at may have come here
				continue
			}
			if ok(e.at) {
				return e.at, true
			}
		}
		i = (i + 1) & (len(m.slots) - 1)
	}
	return 0, false
}

// remove deletes (name, p) if it is there.
func (m *sideMap) remove(name uint64, p place) {
	if m.used == 0 {
		return
	}
	i := m.home(name)
	for m.slots[i].name != name || m.slots[i].at != p {
		if m.slots[i].at == 0 {
			return
		}
		i = (i + 1) & (len(m.slots) - 1)
	}
	m.drop(i)
}

// drop empties a slot and closes the hole.
func (m *sideMap) drop(i int) {
	mask := len(m.slots) - 1
	m.used--
	for j := i; ; {
		j = (j + 1) & mask
		e := m.slots[j]
		if e.at == 0 {
			break
		}
		if (j-m.home(e.name))&mask >= (j-i)&mask { // it may lie at i
			m.slots[i] = e
			i = j
		}
	}
	m.slots[i] = sideEntry{}
}

// filter keeps the entries that keep accepts; keep may change their place.
func (m *sideMap) filter(keep func(e *sideEntry) bool) {
	gone := false
	for i := range m.slots {
		if e := &m.slots[i]; e.at != 0 && !keep(e) {
			*e = sideEntry{}
			m.used--
			gone = true
		}
	}
	if gone {
		m.resize(len(m.slots))
	}
}

// trim shrinks a map that is nearly empty.
func (m *sideMap) trim(mem *budget) {
	size := 0
	if m.used > 0 {
		for size = 8; size*3 < m.used*8; {
			size *= 2
		}
	}
	if size < len(m.slots) {
		mem.add(kindNames, int64(size-len(m.slots))*sideEntryBytes)
		m.resize(size)
	}
}

// stale says whether a side name of the slot has lost its block (locked).
func (x *Index) stale(k *slotState, e *sideEntry) bool {
	h, ok := x.blockAt(e.at)
	return !ok || uint64(h) != e.hash || !x.holdsAny(x.hrun(e.at.run()), k.num, e.at.off())
}

// A slot may have so many side names for each block that it holds, and so many
// besides. One is the rule; more are for blocks with several names, of which an
// engine may make new ones for ever.
const (
	sideNamesPerBlock = 4
	sideNamesSpare    = 4096
)

// sideReady makes way for n more side names among those there are: it drops stale
// ones before the map would grow. It reports false when the slot has too many
// names for what it holds (locked).
func (x *Index) sideReady(k *slotState, n int) bool {
	held := int64(0)
	for _, h := range k.held {
		held += h
	}
	most := sideNamesPerBlock*held + sideNamesSpare + int64(n)
	if over := int64(k.side.used+n) > most; over && k.side.loose > k.side.used/8 || !over && !k.side.roomy(n) {
		x.purge(k)
	}
	return int64(k.side.used+n) <= most
}

// purge drops the stale side names of a slot (locked).
func (x *Index) purge(k *slotState) {
	if k.side.loose > 0 && k.side.used > 0 {
		k.side.filter(func(e *sideEntry) bool { return !x.stale(k, e) })
	}
	k.side.loose = 0
}

func (m *sideMap) bytes() int64 { return int64(len(m.slots)) * sideEntryBytes }
