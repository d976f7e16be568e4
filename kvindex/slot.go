package kvindex

import "fmt"

// A Slot is the index's small dense number for one (worker, rank), with the
// generation of its attachment. The zero Slot is none. A Slot that was detached
// stays invalid for ever: its number may come back, with another generation.
type Slot uint64

// MakeSlot builds a slot from its number (from 1) and generation (from 1). An
// Index makes its own slots; this is for other implementations of a router's
// index and for tests.
func MakeSlot(num, gen uint32) Slot { return Slot(uint64(gen)<<32 | uint64(num)) }

// Num is the dense number, from 1. Tables by slot are indexed with it.
func (s Slot) Num() uint32 { return uint32(s) }

// Gen is the generation, from 1.
func (s Slot) Gen() uint32 { return uint32(s >> 32) }

// String formats the slot as number.generation.
func (s Slot) String() string { return fmt.Sprintf("%d.%d", s.Num(), s.Gen()) }
