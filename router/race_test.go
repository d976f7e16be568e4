//go:build race

package router

// raceEnabled says that the race detector is on: then sync.Pool drops items at
// random, and counts of allocations are not exact.
const raceEnabled = true
