package kvindex

// groupKinds knows which attention groups of a hybrid model can serve as a
// prefix. Engines tell it with stores and not with removes. One group is
// indexed, the first usable one that stores: a hybrid engine calls the blocks of
// its groups by the same hashes, so two groups in one slot could not be told
// apart, and a block of the wrong one must not count as a hit.
type groupKinds struct {
	kind    [maxGroups]groupKind
	indexed int // -1 before a store has named one
}

type groupKind uint8

const (
	groupUnknown groupKind = iota
	groupPrefix
	groupOther
)

// maxGroups is the number of groups that are told apart; of those beyond nothing
// is indexed.
const maxGroups = 64

func (g *groupKinds) reset() { *g = groupKinds{indexed: -1} }

// usable says whether the blocks of an event are to be indexed; it counts those
// that are not.
func (st *Stream) usable(e *Event) bool {
	g, n := &st.groups, uint64(len(e.Hashes))
	if e.Group < 0 {
		if e.GroupSaid && !e.Prefix {
			st.res.Counts.NonPrefix += n
			return false
		}
		return true
	}
	if e.Group >= maxGroups {
		st.res.Counts.NonPrefix += n
		return false
	}
	if e.Kind == EventStored && e.GroupSaid {
		kind := groupOther
		if e.Prefix {
			kind = groupPrefix
		}
		if kind == groupOther && g.indexed == e.Group {
			// What was taken for a prefix before its kind was told is none.
			st.forget()
			g.indexed = -1
		}
		g.kind[e.Group] = kind
	}
	switch g.kind[e.Group] {
	case groupOther:
		st.res.Counts.NonPrefix += n
		return false
	case groupUnknown:
		if e.Group != 0 {
			st.res.Counts.NonPrefix += n
			return false
		}
	}
	if g.indexed < 0 && e.Kind == EventStored {
		g.indexed = e.Group
	}
	if g.indexed >= 0 && g.indexed != e.Group {
		st.res.Counts.OtherGroup += n
		return false
	}
	return true
}
