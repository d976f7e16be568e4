// Package tools is the module of the programs that check this tree. It keeps
// their requirements out of every other module.
//
// Run one with go tool, or build it as the Makefile does.
package tools
