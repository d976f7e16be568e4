package kvindex

import (
	"github.com/stator-go/stator/kvindex/block"
)

// hasherMaker prepares the hasher of a scope.
type hasherMaker func(block.Scope) (*block.Hasher, error)

func defaultHashers(tokens int, scheme block.Scheme) hasherMaker {
	return func(s block.Scope) (*block.Hasher, error) {
		return block.NewHasher(s, tokens, &block.Options{Scheme: scheme})
	}
}

// hashers keeps one prepared hasher for each scope in use, the least recently
// used giving way. The numbers of kept scopes are pinned in the index, so that a
// number means one scope as long as it is found here.
type hashers struct {
	ix    ledger
	base  block.Scope
	make  hasherMaker
	max   int
	plain *block.Hasher // of the scope without adapter and salt, number 0

	byName map[scopeName]*scopeHasher
	byID   map[uint32]*scopeHasher
	tick   uint64
}

type scopeName struct{ adapter, tenant string }

type scopeHasher struct {
	scopeName
	id     uint32
	hasher *block.Hasher
	used   uint64
}

func (h *hashers) open(ix ledger, base block.Scope, max int, make hasherMaker) (err error) {
	h.ix, h.base, h.max, h.make = ix, base, max, make
	h.plain, err = make(base)
	return err
}

// named gives the hasher of an adapter and salt, and the scope's number.
func (h *hashers) named(adapter, tenant string) (*block.Hasher, uint32, error) {
	if adapter == "" && tenant == "" {
		return h.plain, 0, nil
	}
	if s := h.byName[scopeName{adapter, tenant}]; s != nil {
		return h.use(s), s.id, nil
	}
	scope := h.base
	scope.Adapter, scope.Tenant = adapter, tenant
	hasher, err := h.make(scope)
	if err != nil {
		return nil, 0, err
	}
	s := &scopeHasher{scopeName{adapter, tenant}, h.ix.internScope(adapter, tenant), hasher, 0}
	if len(h.byName) >= h.max {
		h.evict()
	}
	if h.byName == nil {
		h.byName, h.byID = map[scopeName]*scopeHasher{}, map[uint32]*scopeHasher{}
	}
	h.byName[s.scopeName], h.byID[s.id] = s, s
	return h.use(s), s.id, nil
}

// numbered gives the hasher of a scope's number, which the index has told.
func (h *hashers) numbered(id uint32) (*block.Hasher, error) {
	if id == 0 {
		return h.plain, nil
	}
	if s := h.byID[id]; s != nil {
		return h.use(s), nil
	}
	hasher, _, err := h.named(h.ix.scopeOf(id))
	return hasher, err
}

// names gives the adapter and salt of a scope's number.
func (h *hashers) names(id uint32) scopeName {
	if id == 0 {
		return scopeName{}
	}
	if s := h.byID[id]; s != nil {
		return s.scopeName
	}
	adapter, tenant := h.ix.scopeOf(id)
	return scopeName{adapter, tenant}
}

func (h *hashers) use(s *scopeHasher) *block.Hasher {
	h.tick++
	s.used = h.tick
	return s.hasher
}

// evict drops the least recently used hasher. The table is small and misses are
// rare, so a pass over it is cheap enough.
func (h *hashers) evict() {
	var old *scopeHasher
	for _, s := range h.byName {
		if old == nil || s.used < old.used {
			old = s
		}
	}
	if old != nil {
		delete(h.byName, old.scopeName)
		delete(h.byID, old.id)
		h.ix.unpinScope(old.id)
	}
}

// len is the number of hashers, the plain one included.
func (h *hashers) len() int {
	if h.plain == nil {
		return 0
	}
	return 1 + len(h.byName)
}

// close gives back what is pinned.
func (h *hashers) close() {
	for _, s := range h.byName {
		h.ix.unpinScope(s.id)
	}
	h.byName, h.byID = nil, nil
}
