// Package engine is the vocabulary between a gateway and inference engines.
package engine
