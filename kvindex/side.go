package kvindex

// sideMap maps a slot's own names to places where the run has another name for
// the block: the engine's hash seed differs from that of the block's first
// holder, or the first holder's map is out of reach. It holds only blocks that
// the slot holds. Open addressing with linear probing; a name may be there twice,
// for two places.
type sideMap struct {
	slots []sideEntry // a power of two, or none
	used  int
}

// sideEntry: at is zero in an empty slot.
type sideEntry struct {
	name uint64
	at   place
}

const sideEntryBytes = 16

func (m *sideMap) home(name uint64) int {
	return int(mixName(name) >> 32 & uint64(len(m.slots)-1))
}

// ensure makes room for n more names; false if the budget has none.
func (m *sideMap) ensure(n int, mem *budget) bool {
	size := max(8, len(m.slots))
	for (m.used+n)*4 > size*3 {
		size *= 2
	}
	if m.used+n == 0 || size == len(m.slots) {
		return true
	}
	if !mem.take(kindNames, int64(size-len(m.slots))*sideEntryBytes, removalReserve) {
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

// put adds (name, p) unless it is there; room must have been made.
func (m *sideMap) put(name uint64, p place) {
	for i := m.home(name); ; i = (i + 1) & (len(m.slots) - 1) {
		switch e := &m.slots[i]; {
		case e.at == 0:
			*e = sideEntry{name, p}
			m.used++
			return
		case *e == sideEntry{name, p}:
			return
		}
	}
}

// find returns a place of the name that ok accepts.
func (m *sideMap) find(name uint64, ok func(place) bool) (place, bool) {
	if m.used == 0 {
		return 0, false
	}
	for i := m.home(name); m.slots[i].at != 0; i = (i + 1) & (len(m.slots) - 1) {
		if e := m.slots[i]; e.name == name && ok(e.at) {
			return e.at, true
		}
	}
	return 0, false
}

// remove deletes (name, p) if it is there, and closes the hole.
func (m *sideMap) remove(name uint64, p place) {
	if m.used == 0 {
		return
	}
	mask := len(m.slots) - 1
	i := m.home(name)
	for m.slots[i] != (sideEntry{name, p}) {
		if m.slots[i].at == 0 {
			return
		}
		i = (i + 1) & mask
	}
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

func (m *sideMap) bytes() int64 { return int64(len(m.slots)) * sideEntryBytes }
