package kvindex

import "unsafe"

// A scope is an adapter and a tenant. A run belongs to one scope: hashes are
// chained from a root that includes it, so its blocks meet no others. Scopes live
// as long as a run or a pin refers to them.
type scope struct {
	scopeKey
	refs uint32 // runs and pins; 0 = the number is free
}

type scopeKey struct{ adapter, tenant string }

// scopeBytes is the cost of a scope beside its strings, the map's entry estimated.
const scopeBytes = int64(2*unsafe.Sizeof(scopeKey{}) + 64)

func (k scopeKey) bytes() int64 { return scopeBytes + int64(len(k.adapter)+len(k.tenant)) }

// internScope gives the number of an adapter and tenant, pinned once more:
// unpinScope gives the pin back. 0 stands for both empty and needs no pin.
func (x *Index) internScope(adapter, tenant string) uint32 {
	k := scopeKey{adapter, tenant}
	if k == (scopeKey{}) {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.scopeIDs[k]; ok {
		x.scopes[id].refs++
		return id
	}
	id := 1
	for id < len(x.scopes) && x.scopes[id].refs > 0 {
		id++
	}
	if id == len(x.scopes) {
		x.scopes = append(x.scopes, scope{})
	}
	x.scopes[id] = scope{k, 1}
	x.scopeIDs[k] = uint32(id)
	x.mem.add(kindSlots, k.bytes())
	return uint32(id)
}

// pinScope keeps a scope's number from being given to another; the caller must
// hold a pin or know a run of the scope.
func (x *Index) pinScope(id uint32) {
	x.mu.Lock()
	x.holdScope(id)
	x.mu.Unlock()
}

// unpinScope gives a pin back.
func (x *Index) unpinScope(id uint32) {
	x.mu.Lock()
	x.releaseScope(id)
	x.mu.Unlock()
}

// holdScope and releaseScope count runs and pins (locked).
func (x *Index) holdScope(id uint32) {
	if id != 0 {
		x.scopes[id].refs++
	}
}

func (x *Index) releaseScope(id uint32) {
	if id == 0 || x.scopes[id].refs == 0 {
		return
	}
	sc := &x.scopes[id]
	if sc.refs--; sc.refs == 0 {
		x.mem.add(kindSlots, -sc.bytes())
		delete(x.scopeIDs, sc.scopeKey)
		*sc = scope{}
		n := len(x.scopes)
		for n > 1 && x.scopes[n-1].refs == 0 {
			n--
		}
		x.scopes = x.scopes[:n]
	}
}

// scopeOf is the inverse of internScope.
func (x *Index) scopeOf(id uint32) (adapter, tenant string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if int(id) >= len(x.scopes) {
		return "", ""
	}
	return x.scopes[id].adapter, x.scopes[id].tenant
}
