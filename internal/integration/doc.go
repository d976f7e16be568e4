// Package integration tests Stator against parts that are not Go: it is a module
// of its own, so that what it needs (cgo and libzmq here) reaches nobody else.
// scripts/real/20-libzmq.sh installs the library and runs it.
package integration
