package kvindex

import "github.com/stator-go/stator/kvindex/block"

// A storeBase is what a store event hangs on.
type storeBase struct {
	ref   parentRef
	hash  block.Hash
	has   bool
	scope scopeName
	id    uint32      // number of the scope if it is the parent's
	known bool        // id is valid
	unit  *engineUnit // the parent when it is kept for regrouping
}

// findBase finds what an event hangs on: nothing, or its parent. The adapter
// comes with every event of an engine that tells it, the salt with the first
// block of a sequence only: a child inherits what its event leaves out. An event
// that contradicts its parent hangs on another block of the same name, if there
// is one.
func (st *Stream) findBase(e *Event, on *storeBase) bool {
	on.scope = scopeName{e.Adapter, e.Salt}
	if !e.HasParent {
		return true
	}
	if len(st.units.byName) > 0 {
		if u := st.units.byName[e.Parent]; u != nil && u.held != 0 {
			if s := st.hash.names(u.scope); !fits(s, on.scope) {
				return false
			}
			on.ref, on.hash, on.has = u.ref(), u.hash, u.has
			on.unit, on.id, on.known = u, u.scope, true
			return true
		}
	}
	if st.alias.n > 0 && len(st.alias.of[e.Parent]) > 0 {
		return st.findAlias(e, on)
	}
	return st.tryBase(e.Parent, on, false)
}

// tryBase takes the named block as the parent if its scope agrees: with all that
// the event says, or exactly with adapter and salt or their absence.
func (st *Stream) tryBase(name uint64, on *storeBase, exactly bool) bool {
	h, id, at, ok := st.ix.resolve(st.slot, name)
	if !ok {
		return false
	}
	if id != 0 || on.scope != (scopeName{}) {
		s := st.hash.names(id)
		if !fits(s, on.scope) || exactly && s.adapter != on.scope.adapter {
			return false
		}
	}
	on.ref = parentRef{has: true, name: name, at: at, hash: h}
	on.hash, on.has, on.id, on.known = h, true, id, true
	return true
}

// findAlias finds the parent among blocks of one name in several scopes: the one
// with exactly the event's adapter.
func (st *Stream) findAlias(e *Event, on *storeBase) bool {
	if st.tryBase(e.Parent, on, true) {
		return true
	}
	list := st.alias.of[e.Parent]
	for _, name := range list {
		if st.tryBase(name, on, true) {
			return true
		}
	}
	return false
}

// fits says whether a block of scope s can be the parent of an event that tells
// said: what the event leaves out it inherits.
func fits(s, said scopeName) bool {
	return (said.adapter == "" || said.adapter == s.adapter) && (said.tenant == "" || said.tenant == s.tenant)
}
