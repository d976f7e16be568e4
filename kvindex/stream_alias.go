package kvindex

import (
	"slices"

	"github.com/stator-go/stator/kvindex/block"
)

// aliases are the other names of blocks whose engine hash was taken when they
// came: some engines give one hash to equal tokens under two adapters or salts.
// The second block is kept under a name made of the engine's hash and its own.
type aliases struct {
	of map[uint64][]uint64 // engine hash -> names made for it
	n  int
	// scopes is set once the slot holds blocks of another scope than the plain
	// one: only then can two blocks have one engine hash, and only then is it
	// worth a look-up for each block.
	scopes bool
}

const (
	maxAliases = 1 << 16 // names in all; more conflicts are refused
	maxAliasOf = 8       // names of one engine hash
)

// find returns the name that was made for a block, if one was.
func (a *aliases) find(name, hash uint64) (uint64, bool) {
	if a.n == 0 {
		return 0, false
	}
	made := aliasName(name, hash)
	return made, slices.Contains(a.of[name], made)
}

// add makes the name of a block that has none. It reports false when there is no
// room.
func (a *aliases) add(name, hash uint64) (uint64, bool) {
	made, list := aliasName(name, hash), a.of[name]
	if a.n >= maxAliases || len(list) >= maxAliasOf {
		return 0, false
	}
	if a.of == nil {
		a.of = map[uint64][]uint64{}
	}
	a.of[name] = append(list, made)
	a.n++
	return made, true
}

// drop forgets one made name.
func (a *aliases) drop(name, made uint64) {
	list := a.of[name]
	i := slices.Index(list, made)
	if i < 0 {
		return
	}
	if a.n--; len(list) == 1 {
		delete(a.of, name)
	} else {
		a.of[name] = slices.Delete(list, i, i+1)
	}
}

func (a *aliases) clear() { *a = aliases{} }

// aliasName mixes the two by the finisher of MurmurHash3.
func aliasName(name, hash uint64) uint64 {
	v := name ^ (hash<<31 | hash>>33)
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}

// distinct gives each block a name of its own where its engine hash already
// names another block of the slot. It returns nil when that is not possible; the
// event is then counted as refused.
func (st *Stream) distinct(t Tier, names []uint64, chain []block.Hash) []uint64 {
	st.names = append(st.names[:0], names...)
	for i, name := range names {
		if made, ok := st.alias.find(name, uint64(chain[i])); ok {
			st.names[i] = made
			continue
		}
		h, _, _, ok := st.ix.resolve(st.slot, name)
		if !ok || h == chain[i] || !st.holdsAny(name) {
			continue
		}
		st.res.Counts.Conflicts++
		if st.names[i], ok = st.alias.add(name, uint64(chain[i])); !ok {
			st.refuse(len(names), nil)
			return nil
		}
	}
	return st.names
}

func (st *Stream) holdsAny(name uint64) bool {
	for t := range Tier(Tiers) {
		if st.ix.holdsNamed(st.slot, t, name) {
			return true
		}
	}
	return false
}

// dropAliases takes the blocks of other scopes that share an engine hash out of
// a tier, and says whether there were any.
func (st *Stream) dropAliases(t Tier, name uint64) (found bool) {
	for _, made := range slices.Clone(st.alias.of[name]) {
		st.copies.drop(t, made)
		if st.ix.removeNamed(st.slot, t, []uint64{made}) == 0 {
			st.res.Counts.Removed++
			found = true
		}
		if !st.holdsAny(made) {
			st.alias.drop(name, made)
		}
	}
	return found
}
