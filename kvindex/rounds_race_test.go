//go:build race

package kvindex

// writerRounds is smaller under the race detector, which is ten times slower.
const writerRounds = 800

// modelSeeds is the number of random histories of each kind.
const modelSeeds = 2
