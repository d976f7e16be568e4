package kvindex

import (
	"errors"

	"github.com/stator-go/stator/kvindex/block"
)

// Errors of the index.
var (
	ErrBudget = errors.New("kvindex: over the byte budget")
	ErrSlot   = errors.New("kvindex: slot is not attached")
	ErrTier   = errors.New("kvindex: unknown tier")
	ErrParent = errors.New("kvindex: unknown parent")
	ErrNaming = errors.New("kvindex: slot names its blocks the other way")
)

// Options configure an [Index]. The zero value of each field is a good default.
type Options struct {
	// MaxBytes is the hard budget; 0 means unlimited.
	MaxBytes int64
	// Scheme of the hashes; empty means block.SchemeBLAKE3.
	Scheme block.Scheme
	// BlockTokens is the number of tokens per block; 0 means 16.
	BlockTokens int
}
