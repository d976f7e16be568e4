package kvindex

import (
	"errors"
	"fmt"

	"github.com/stator-go/stator/kvindex/block"
)

// Errors of the index. They are returned as they are, or wrapped.
var (
	// ErrBudget: the store would have passed Options.MaxBytes (or a limit of
	// the structure). A leading part of the chain may have been stored.
	ErrBudget = errors.New("kvindex: over the byte budget")
	// ErrSlot: the slot is not attached, or not any more.
	ErrSlot = errors.New("kvindex: slot is not attached")
	// ErrTier: not one of the tiers.
	ErrTier = errors.New("kvindex: unknown tier")
	// ErrParent: the parent is none of the slot's blocks. Nothing was stored.
	ErrParent = errors.New("kvindex: unknown parent block")
	// ErrNaming: the slot was fed by a stream before and is now fed directly, or
	// the other way round.
	ErrNaming = errors.New("kvindex: slot names its blocks in another way")
	// ErrShape: names and hashes are not as many.
	ErrShape = errors.New("kvindex: names and hashes differ in number")
)

// MinBytes is the smallest budget that Options.MaxBytes may set.
const MinBytes = 4 << 20

// Options configure an [Index]. The zero value of each field is a good default.
type Options struct {
	// MaxBytes is a hard budget for the memory that the index keeps, in bytes. A
	// store that would pass it is refused with ErrBudget and counted; removals
	// always work. 0 means unlimited, otherwise at least MinBytes. Plan 36 bytes
	// for each block that one worker holds, less where many workers hold the
	// same blocks.
	MaxBytes int64

	// Scheme names the hash function of the blocks, one that package block knows.
	// The index only carries it, so that a mismatch between the parts of a program
	// is seen: engine/pool refuses a router whose index has another one. Empty
	// means block.SchemeBLAKE3.
	Scheme block.Scheme

	// BlockTokens is the number of tokens of a block, at most
	// block.MaxBlockTokens, carried like Scheme: router and engine/pool refuse an
	// index of another size than theirs. 0 means 16.
	BlockTokens int
}

// complete fills in defaults and reports all faults.
func (o *Options) complete() error {
	var errs []error
	if o.MaxBytes != 0 && o.MaxBytes < MinBytes {
		errs = append(errs, fmt.Errorf("kvindex: Options.MaxBytes is %d, want at least %d, or 0 for no limit", o.MaxBytes, MinBytes))
	}
	if o.BlockTokens < 0 || o.BlockTokens > block.MaxBlockTokens {
		errs = append(errs, fmt.Errorf("kvindex: Options.BlockTokens is %d, want 1 to %d, or 0 for 16", o.BlockTokens, block.MaxBlockTokens))
	}
	if o.Scheme == "" {
		o.Scheme = block.SchemeBLAKE3
	}
	if !o.Scheme.Known() {
		errs = append(errs, fmt.Errorf("kvindex: Options.Scheme is %q, want %q or %q, or nothing for the first: %w",
			o.Scheme, block.SchemeBLAKE3, block.SchemeDynamo, block.ErrScheme))
	}
	if o.BlockTokens == 0 {
		o.BlockTokens = 16
	}
	return errors.Join(errs...)
}
