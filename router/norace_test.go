//go:build !race

package router

// raceEnabled says that the race detector is on.
const raceEnabled = false
