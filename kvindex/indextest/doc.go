// Package indextest is a conformance suite for prefix indexes: anything that can
// stand in for [kvindex.Index] where a router asks for overlaps, an approximate
// index, one with other storage, a client of a remote one.
//
// [Run] checks the promises that a router relies on: exact holes, depths that are
// cumulative over tiers, slots that end at once and stay ended, answers that never
// claim a block that was not stored, also beside writers. [Reference] is the
// naive index that answers are compared with; it is slow, obviously right, and
// may serve as a fake in other tests.
//
// A test of an index is then:
//
//	func TestConformance(t *testing.T) {
//		indextest.Run(t, func(t testing.TB) indextest.Index { return newMyIndex(t) }, nil)
//	}
package indextest
