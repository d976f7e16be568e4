package kvindex

import "github.com/stator-go/stator/kvindex/block"

// This file is the surface that a Stream builds on. A slot that is fed by a
// stream calls blocks by the engine's own names; the index keeps one map from
// name to place, so a removal needs no second table.

// place is where a block lies: the number of its run and its offset there.
type place uint64

// parentRef says below which block a chain hangs. Without has it hangs from the
// root. name is the engine's name of the parent. at is a hint, from resolve; it
// is checked before use and may be zero or stale.
type parentRef struct {
	has  bool
	name uint64
	at   place
}

// resolve finds the block that the slot calls name: its hash, its scope and its
// place. It knows blocks that the slot stored itself and those that another slot
// stored first under the same name.
func (x *Index) resolve(s Slot, name uint64) (h block.Hash, scope uint32, at place, ok bool) {
	return 0, 0, 0, false
}

// storeNamed notes that the slot holds, in tier t, the blocks chain[i] under
// the names names[i], each the child of its predecessor and the first the child
// of parent. Names of blocks that the slot held in t already are appended to
// dup. A parent that cannot be resolved is ErrParent and changes nothing.
func (x *Index) storeNamed(s Slot, t Tier, parent parentRef, scope uint32, names []uint64, chain []block.Hash, dup []uint64) ([]uint64, error) {
	return dup, nil
}

// storeKnown notes that blocks named before are in tier t too. Names of blocks
// that the slot held in t already are appended to dup; unknown counts names that
// cannot be resolved.
func (x *Index) storeKnown(s Slot, t Tier, names []uint64, dup []uint64) (_ []uint64, unknown int, err error) {
	return dup, 0, nil
}

// removeNamed notes that the slot no longer holds these blocks in tier t;
// unknown counts names that it did not hold there.
func (x *Index) removeNamed(s Slot, t Tier, names []uint64) (unknown int) { return 0 }

// holdsNamed says whether the slot holds the named block in tier t.
func (x *Index) holdsNamed(s Slot, t Tier, name uint64) bool { return false }

// internScope gives the number of an adapter and tenant; 0 stands for both
// empty. The number is pinned once more: unpinScope gives the pin back.
func (x *Index) internScope(adapter, tenant string) uint32 { return 0 }

// pinScope and unpinScope keep a scope's number from being reused; 0 needs none.
func (x *Index) pinScope(id uint32)   {}
func (x *Index) unpinScope(id uint32) {}

// scopeOf is the inverse of internScope.
func (x *Index) scopeOf(id uint32) (adapter, tenant string) { return "", "" }

// alive says whether the slot is attached.
func (x *Index) alive(s Slot) bool { return false }
