// Package lint checks the rules of this tree that compilers and common linters
// do not know: what a package may depend on, that nothing reads the environment
// or keeps global state, that names are documented, that what the README says
// can be typed.
//
// The rules are functions from a parsed [Tree] to findings; the tests run them on
// the whole tree and, to prove that they bite, on small wrong samples.
package lint
