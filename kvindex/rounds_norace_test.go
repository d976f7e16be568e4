//go:build !race

package kvindex

const writerRounds = 4000

// modelSeeds is the number of random histories of each kind.
const modelSeeds = 6
