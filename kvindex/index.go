package kvindex

import "github.com/stator-go/stator/kvindex/block"

// An Index says which slots hold which blocks.
type Index struct{ opts Options }

// New returns an empty index; nil options are the defaults.
func New(opts *Options) (*Index, error) {
	x := &Index{}
	if opts != nil {
		x.opts = *opts
	}
	return x, nil
}

// Attach gives a worker's rank a slot with a new generation.
func (x *Index) Attach(worker string, rank int) Slot { return 0 }

// Detach ends a slot.
func (x *Index) Detach(s Slot) {}

// Store notes blocks; parent 0 is the root.
func (x *Index) Store(s Slot, t Tier, parent block.Hash, chain []block.Hash) error { return nil }

// Remove drops blocks.
func (x *Index) Remove(s Slot, t Tier, hashes []block.Hash) {}

// Clear drops all blocks of the tiers; none named means all.
func (x *Index) Clear(s Slot, tiers ...Tier) {}

// Lookup fills dst with the overlap of every slot.
func (x *Index) Lookup(dst *Overlap, chain []block.Hash) {}

// Worker says whose a slot is.
func (x *Index) Worker(s Slot) (name string, rank int, ok bool) { return "", 0, false }

// Scheme is the scheme of the hashes.
func (x *Index) Scheme() block.Scheme { return x.opts.Scheme }

// BlockTokens is the number of tokens per block.
func (x *Index) BlockTokens() int { return x.opts.BlockTokens }
