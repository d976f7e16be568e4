package vllm

import (
	"encoding/hex"

	"github.com/stator-go/stator/internal/msgpack"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// extraKeys reads what an engine mixed into the hash of each block besides its
// tokens. The list is untyped; in order a block may have
//
//   - the adapter's name, which the event repeats in lora_name: taken away once;
//   - multimodal items, [identifier, begin relative to the block], or in older
//     releases a bare identifier;
//   - the cache salt, a string, on the first block of a sequence only;
//   - a digest of prompt embeddings, as bytes.
//
// A bare string is therefore the salt if it is the last one of a sequence's
// first block, and an item otherwise. A wrong guess gives a name that no
// request has, which loses a hit and never invents one.
func (d *Decoder) extraKeys(ev *kvindex.Event) bool {
	r := &d.r
	n, err := r.Array()
	if err != nil {
		return false
	}
	base := len(d.media)
	d.named, d.before = d.named[:0], d.before[:0]
	for i := range n {
		d.named, d.before = d.before[:0], d.named
		if r.Nil() {
			continue
		}
		m, err := r.Array()
		if err != nil {
			return false
		}
		if i >= len(ev.Hashes) { // of a block that was trimmed
			for range m {
				if r.Skip() != nil {
					return false
				}
			}
			continue
		}
		if base, err = d.blockKeys(ev, i, m, base); err != nil {
			return false
		}
	}
	if len(d.media) > base {
		ev.Media = d.media[base:len(d.media):len(d.media)]
	}
	return true
}

// blockKeys reads the m keys of block i. base is where the event's items begin
// in the arena; it is returned because the arena may move.
func (d *Decoder) blockKeys(ev *kvindex.Event, i, m, base int) (int, error) {
	r := &d.r
	start := i * ev.BlockSize
	adapter := ev.Adapter != ""
	var last []byte // a bare string that was not placed yet
	for range m {
		switch r.Kind() {
		case msgpack.Str:
			s, err := r.Str()
			if err != nil {
				return base, err
			}
			if adapter && string(s) == ev.Adapter {
				adapter = false
				continue
			}
			if len(s) == 0 || len(s) > block.MaxField {
				return base, msgpack.ErrType
			}
			if last != nil {
				if base, err = d.item(base, ev.BlockSize, block.MediaInBlock(d.names.get(last), start, 0)); err != nil {
					return base, err
				}
			}
			last = s
		case msgpack.Array:
			two, err := r.Array()
			if err != nil || two != 2 {
				return base, msgpack.ErrType
			}
			id, err := r.Str()
			if err != nil || len(id) == 0 || len(id) > block.MaxField {
				return base, msgpack.ErrType
			}
			off, err := r.Int()
			if err != nil || off < -block.MaxOffset || off >= int64(max(ev.BlockSize, 1)) {
				return base, msgpack.ErrType
			}
			if base, err = d.item(base, ev.BlockSize, block.MediaInBlock(d.names.get(id), start, int(off))); err != nil {
				return base, err
			}
		case msgpack.Bin:
			b, err := r.Bin()
			if err != nil || len(b) > block.MaxField/4 {
				return base, msgpack.ErrType
			}
			if base, err = d.item(base, ev.BlockSize, block.MediaInBlock("embeds:"+hex.EncodeToString(b), start, 0)); err != nil {
				return base, err
			}
		default: // a kind of key that no known release has
			return base, msgpack.ErrType
		}
	}
	switch {
	case last == nil:
	case i == 0 && !ev.HasParent:
		ev.Salt = d.names.get(last)
	default:
		return d.item(base, ev.BlockSize, block.MediaInBlock(d.names.get(last), start, 0))
	}
	return base, nil
}

// touchCost bounds what the items of one message may cost to hash, in bytes a
// byte of the message. An engine names an item again for each block that it
// touches, so that the names and numbers that hashing goes over stand in the
// message, in a form that is at most so much shorter.
const touchCost = 16

// mergeWindow is how many items of the block before are looked at to find one
// that goes on. All but the last few of a block end in it.
const mergeWindow = 16

// item adds an item to the event's list, or makes the one longer that the block
// before named already. It fails when items touch more blocks than the message
// can have named: such a message takes hours to hash.
func (d *Decoder) item(base, size int, m block.Media) (int, error) {
	for k := len(d.before) - 1; k >= max(0, len(d.before)-mergeWindow); k-- {
		if old := &d.media[base+int(d.before[k])]; old.Offset == m.Offset && old.ID == m.ID {
			if !d.touch(m.ID, m.Length-old.Length, size) {
				return base, msgpack.ErrType
			}
			old.Length = max(old.Length, m.Length)
			d.named = append(d.named, d.before[k])
			return base, nil
		}
	}
	if !d.touch(m.ID, m.Length+min(m.Offset, 0), size) { // what lies before the event's tokens touches none of its blocks
		return base, msgpack.ErrType
	}
	if len(d.media) == cap(d.media) {
		// Only here does an arena's growth take the event's part along.
		grown := make([]block.Media, 0, max(2*cap(d.media), 16))
		d.media = append(grown, d.media[base:]...)
		base = 0
	}
	d.named = append(d.named, int32(len(d.media)-base))
	d.media = append(d.media, m)
	return base, nil
}

// touch takes the cost of an item of that name over so many tokens, in blocks of
// size tokens, from what is left of the message's.
func (d *Decoder) touch(id string, tokens, size int) bool {
	d.touches -= (int64(max(tokens, 0)/max(size, 1)) + 1) * int64(len(id)+16)
	return d.touches >= 0
}
