//go:build race

package kvindex

// writerRounds is smaller under the race detector, which is ten times slower.
const writerRounds = 400

const raceEnabled = true
