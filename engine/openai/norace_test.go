//go:build !race

package openai_test

// raceEnabled: see race_test.go.
const raceEnabled = false
