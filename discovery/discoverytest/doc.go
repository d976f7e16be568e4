// Package discoverytest is the conformance suite of discovery sources.
//
// Whoever writes a [discovery.Source] runs it from a test of their own:
//
//	func TestConformance(t *testing.T) {
//		discoverytest.Run(t, discoverytest.Harness{New: func(initial []discovery.Worker) (*discoverytest.Store, error) {
//			...
//		}})
//	}
//
// Each case gets a store of its own. Cases that need an ability which the store
// does not have (a list that never changes, a link that cannot break) are left
// out of the list; nothing is skipped silently at run time. [Cases] gives them
// one by one to those who want another runner.
//
// This package imports testing, so only tests should import it.
package discoverytest
