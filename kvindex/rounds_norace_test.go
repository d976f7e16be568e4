//go:build !race

package kvindex

const writerRounds = 4000

const raceEnabled = false
