package vllm

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/stator-go/stator/internal/msgpack"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// fields is what an event says besides what goes into kvindex.Event at once.
type fields struct {
	adapterID int64 // lora_id, 0 if nil
	extra     int   // offset of extra_keys, 0 if there are none
	copies    int   // offset of remaining_copy_counts, 0 if there are none
}

// event reads one event, of either form. It reports false when the event is
// malformed; the position is then anywhere.
func (d *Decoder) event(ev *kvindex.Event) bool {
	var f fields
	switch d.r.Kind() {
	case msgpack.Array:
		return d.arrayEvent(ev, &f) && d.finish(ev, &f)
	case msgpack.Map:
		return d.mapEvent(ev, &f) && d.finish(ev, &f)
	}
	return false
}

func kindOf(tag []byte) kvindex.EventKind {
	switch string(tag) {
	case "BlockStored":
		return kvindex.EventStored
	case "BlockRemoved":
		return kvindex.EventRemoved
	case "AllBlocksCleared":
		return kvindex.EventCleared
	}
	return kvindex.EventUnknown
}

// arrayEvent reads a positional event. Positions beyond those known are
// skipped; where two dialects differ, the type decides.
func (d *Decoder) arrayEvent(ev *kvindex.Event, f *fields) bool {
	r := &d.r
	n, err := r.Array()
	if err != nil || n == 0 {
		return false
	}
	tag, err := r.Str()
	if err != nil {
		return false
	}
	ev.Kind = kindOf(tag)
	pos := 1
	switch ev.Kind {
	case kvindex.EventStored:
		if n < 5 || !d.hashList(ev) || !d.parent(ev) || !d.tokenList(ev) || !d.count(&ev.BlockSize) {
			return false
		}
		for pos = 5; pos < n && pos <= 10; pos++ {
			if !d.storedAt(pos, ev, f) {
				return false
			}
		}
	case kvindex.EventRemoved:
		if n < 2 || !d.hashList(ev) {
			return false
		}
		if pos = 2; n > 2 {
			if !d.medium(ev) {
				return false
			}
			pos = 3
		}
		if n > 3 {
			if !d.count(&ev.Group) {
				return false
			}
			pos = 4
		}
	}
	for ; pos < n; pos++ {
		if r.Skip() != nil {
			return false
		}
	}
	return true
}

// storedAt reads the element of a positional BlockStored at pos.
func (d *Decoder) storedAt(pos int, ev *kvindex.Event, f *fields) bool {
	r := &d.r
	switch pos {
	case 5:
		return d.adapterID(f)
	case 6:
		return d.medium(ev)
	case 7:
		// vLLM: the adapter's name. SGLang: a map, for requests with a salt.
		if r.Kind() == msgpack.Map {
			return d.pairs(ev, f)
		}
		return d.name(&ev.Adapter)
	case 8:
		return d.later(&f.extra)
	case 9:
		return d.count(&ev.Group)
	case 10:
		return d.spec(ev)
	}
	return r.Skip() == nil
}

// mapEvent reads a tagged map. The tag stands first in every known release, but
// need not.
func (d *Decoder) mapEvent(ev *kvindex.Event, f *fields) bool {
	r := &d.r
	start := r.Offset()
	n, err := r.Map()
	if err != nil {
		return false
	}
	found := false
	for range n {
		var key []byte // of another type: the event is broken, and its tag still tells of what kind
		if r.Kind() != msgpack.Str {
			err = r.Skip()
		} else {
			key, err = r.Str()
		}
		if err != nil {
			return false
		}
		if string(key) == "type" {
			tag, err := r.Str()
			if err != nil {
				return false
			}
			ev.Kind, found = kindOf(tag), true
			break
		}
		if r.Skip() != nil {
			return false
		}
	}
	if !found {
		return false
	}
	r.Seek(start)
	if ev.Kind == kvindex.EventUnknown || ev.Kind == kvindex.EventCleared {
		return r.Skip() == nil
	}
	return d.pairs(ev, f)
}

// pairs reads a map of named fields. Unknown names are skipped.
func (d *Decoder) pairs(ev *kvindex.Event, f *fields) bool {
	r := &d.r
	n, err := r.Map()
	if err != nil {
		return false
	}
	for range n {
		key, err := r.Str()
		if err != nil {
			return false
		}
		ok := true
		switch string(key) {
		case "block_hashes":
			ok = d.hashList(ev)
		case "parent_block_hash":
			ok = d.parent(ev)
		case "token_ids":
			ok = d.tokenList(ev)
		case "block_size":
			ok = d.count(&ev.BlockSize)
		case "lora_id":
			ok = d.adapterID(f)
		case "medium":
			ok = d.medium(ev)
		case "lora_name":
			ok = d.name(&ev.Adapter)
		case "cache_salt":
			ok = d.name(&ev.Salt)
		case "extra_keys":
			ok = d.later(&f.extra)
		case "group_idx":
			ok = d.count(&ev.Group)
		case "kv_cache_spec_kind":
			ok = d.spec(ev)
		case "locality":
			ok = d.locality(ev)
		case "remaining_copy_counts":
			ok = d.later(&f.copies)
		default:
			ok = r.Skip() == nil
		}
		if !ok {
			return false
		}
	}
	return true
}

// finish reads what depends on other fields, and checks the whole.
func (d *Decoder) finish(ev *kvindex.Event, f *fields) bool {
	end := d.r.Offset()
	switch ev.Kind {
	case kvindex.EventRemoved:
		if f.copies > 0 {
			d.r.Seek(f.copies)
			ev.Remaining = d.remaining(len(ev.Hashes))
		}
	case kvindex.EventStored:
		if !trim(ev) {
			return false
		}
		if ev.Adapter == "" && f.adapterID > 0 {
			// Releases before lora_name. The name is not known, but such blocks
			// must never be taken for the base model's.
			ev.Adapter = "lora_id:" + strconv.FormatInt(f.adapterID, 10)
		}
		// An event without tokens names blocks that are known; keys place nothing.
		if f.extra > 0 && len(ev.Tokens) > 0 {
			d.r.Seek(f.extra)
			if !d.extraKeys(ev) {
				return false
			}
		}
	}
	d.r.Seek(end)
	return true
}

// trim makes hashes, tokens and block size agree, and reports false when they
// cannot. A chain whose last block is short (SGLang) loses that block.
func trim(ev *kvindex.Event) bool {
	n, tokens := len(ev.Hashes), len(ev.Tokens)
	if tokens == 0 {
		return true
	}
	if n == 0 {
		return false
	}
	if ev.BlockSize == 0 {
		if tokens%n != 0 {
			return false
		}
		ev.BlockSize = tokens / n
	}
	whole := tokens / ev.BlockSize
	switch {
	case whole == n && tokens == n*ev.BlockSize:
		return true
	case whole == n-1 && whole > 0:
		ev.Hashes = ev.Hashes[:whole]
		ev.Tokens = ev.Tokens[:whole*ev.BlockSize]
		return true
	}
	return false
}

// hash reads one block hash: an integer bit by bit, of a digest the last 8
// octets.
func (d *Decoder) hash() (uint64, bool) {
	r := &d.r
	if r.Kind() == msgpack.Bin {
		b, err := r.Bin()
		if err != nil || len(b) < 8 {
			return 0, false
		}
		return binary.BigEndian.Uint64(b[len(b)-8:]), true
	}
	v, _, err := r.Bits()
	return v, err == nil
}

func (d *Decoder) hashList(ev *kvindex.Event) bool {
	n, err := d.r.Array()
	if err != nil {
		return false
	}
	d.hashes = reserve(d.hashes, n)
	base := len(d.hashes)
	for range n {
		h, ok := d.hash()
		if !ok {
			return false
		}
		d.hashes = append(d.hashes, h)
	}
	ev.Hashes = d.hashes[base:len(d.hashes):len(d.hashes)]
	return true
}

func (d *Decoder) parent(ev *kvindex.Event) bool {
	ev.HasParent = false
	if d.r.Nil() {
		return true
	}
	ev.Parent, ev.HasParent = d.hash()
	return ev.HasParent
}

// tokenList reads token ids. An engine that speculates with EAGLE names each
// token together with its successor; the first of each pair is the token.
func (d *Decoder) tokenList(ev *kvindex.Event) bool {
	r := &d.r
	if r.Nil() {
		return true
	}
	n, err := r.Array()
	if err != nil {
		return false
	}
	d.tokens = reserve(d.tokens, n+1)
	base := len(d.tokens)
	if n > 0 && r.Kind() == msgpack.Array {
		for range n {
			if two, err := r.Array(); err != nil || two != 2 {
				return false
			}
			if d.tokens, err = r.Uint32s(d.tokens, 2); err != nil {
				return false
			}
			d.tokens = d.tokens[:len(d.tokens)-1]
		}
	} else if d.tokens, err = r.Uint32s(d.tokens, n); err != nil {
		return false
	}
	ev.Tokens = d.tokens[base:len(d.tokens):len(d.tokens)]
	return true
}

// count reads a number of at least 0; nil leaves dst as it is.
func (d *Decoder) count(dst *int) bool {
	if d.r.Nil() {
		return true
	}
	n, err := d.r.Int()
	if err != nil || n < 0 || n > math.MaxInt32 {
		return false
	}
	*dst = int(n)
	return true
}

func (d *Decoder) adapterID(f *fields) bool {
	if d.r.Kind() != msgpack.Int {
		return d.r.Skip() == nil
	}
	var err error
	f.adapterID, err = d.r.Int()
	return err == nil
}

func (d *Decoder) medium(ev *kvindex.Event) bool {
	if d.r.Nil() {
		return true
	}
	s, err := d.r.Str()
	if err != nil {
		return false
	}
	if string(s) != "GPU" {
		ev.Tier = kvindex.ParseTier(d.names.get(s))
	}
	return true
}

// spec reads the kind of an attention group. Only those in which every earlier
// token matters to the end serve as a prefix.
func (d *Decoder) spec(ev *kvindex.Event) bool {
	if d.r.Nil() {
		return true
	}
	s, err := d.r.Str()
	if err != nil {
		return false
	}
	ev.GroupSaid = true
	switch string(s) {
	case "full_attention", "mla_attention", "sink_full_attention":
		ev.Prefix = true
	}
	return true
}

// locality: a block is this engine's own unless the event says otherwise.
func (d *Decoder) locality(ev *kvindex.Event) bool {
	if d.r.Nil() {
		return true
	}
	s, err := d.r.Str()
	ev.Remote = string(s) != "LOCAL"
	return err == nil
}

func (d *Decoder) name(dst *string) bool {
	if d.r.Nil() {
		return true
	}
	s, err := d.r.Str()
	if err != nil || len(s) > block.MaxField {
		return false
	}
	*dst = d.names.get(s)
	return true
}

// later notes where a value stands and skips it.
func (d *Decoder) later(offset *int) bool {
	if d.r.Nil() {
		return true
	}
	*offset = d.r.Offset()
	return d.r.Skip() == nil
}

// remaining reads the copies left of each of n blocks. Counts that make no sense
// are as good as none: the removal itself must not be lost.
func (d *Decoder) remaining(n int) []int {
	m, err := d.r.Array()
	if err != nil || m != n {
		return nil
	}
	out := make([]int, 0, n)
	for range n {
		v, err := d.r.Int()
		if err != nil || v < 0 || v > math.MaxInt32 {
			return nil
		}
		out = append(out, int(v))
	}
	return out
}
