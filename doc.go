// Package stator is the root of an embeddable library of serving-layer building
// blocks for LLM inference. It holds no code; see the packages below it.
package stator
