// Package enginetest checks that an engine.Engine keeps the promises of its
// interface: endings, cancellation, ownership of memory, counting, concurrency.
//
// # Use
//
// An adapter's test calls [Run] with a [Harness] that starts the engine and
// makes requests for it:
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, enginetest.Harness{New: …, Request: …})
//	}
//
// Run it with -race: some promises, such as not touching a request after its
// iteration, show only there.
//
// An engine may bring its answer's JSON in Chunk.Raw or none at all; the suite
// sees which and checks what holds for that one.
//
// # Limits
//
// The suite knows nothing of an answer's text. It waits for an engine to notice
// a cancellation, at most Harness.Patience; nothing else depends on time.
package enginetest
