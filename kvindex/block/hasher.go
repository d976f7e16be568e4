package block

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"lukechampine.com/blake3/guts"
)

// Options tunes a [Hasher]. The zero value, and nil, are ready for use.
type Options struct {
	// Scheme of the hashes. Empty means SchemeBLAKE3.
	Scheme Scheme
}

// A Hasher names the blocks of one scope. It is safe for concurrent use and
// keeps none of the slices it is given.
type Hasher struct {
	scheme   Scheme
	scope    Scope
	tokens   int
	root     Key
	rootTok  words // root of chains of tokens
	rootByte words // root of chains of bytes
	pool     sync.Pool
}

// NewHasher makes a Hasher for blocks of tokensPerBlock tokens, from 1 to
// [MaxBlockTokens]. The error names every fault: it wraps [ErrBlockTokens],
// [ErrScheme], [ErrScope].
func NewHasher(scope Scope, tokensPerBlock int, opts *Options) (*Hasher, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Scheme == "" {
		o.Scheme = SchemeBLAKE3
	}
	var errs []error
	if tokensPerBlock < 1 || tokensPerBlock > MaxBlockTokens {
		errs = append(errs, fmt.Errorf("%w: %d, from 1 to %d", ErrBlockTokens, tokensPerBlock, MaxBlockTokens))
	}
	if !o.Scheme.Known() {
		errs = append(errs, fmt.Errorf("%w: unknown scheme %q", ErrScheme, string(o.Scheme)))
	}
	errs = append(errs, scope.validate(o.Scheme))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	h := &Hasher{scheme: o.Scheme, scope: scope, tokens: tokensPerBlock, root: scope.root("")}
	h.rootTok = toWords(&h.root)
	byteRoot := scope.root(unitBytes)
	h.rootByte = toWords(&byteRoot)
	h.pool.New = func() any { return new(scratch) }
	return h, nil
}

// Scheme names the hashes' function.
func (h *Hasher) Scheme() Scheme { return h.scheme }

// Scope returns what the names cover besides tokens.
func (h *Hasher) Scope() Scope { return h.scope }

// BlockTokens is the number of tokens in a block.
func (h *Hasher) BlockTokens() int { return h.tokens }

// Root is the digest of the scope record, the parent of first blocks in a chain
// of keys. It is the same whatever the scheme of the hashes.
func (h *Hasher) Root() Key { return h.root }

// AppendHashes appends the hashes of the prompt's whole blocks, first block
// first. It allocates only when dst lacks room.
func (h *Hasher) AppendHashes(dst []Hash, tokens []uint32, media []Media) []Hash {
	return h.Extend(dst, 0, false, tokens, media)
}

// Extend is AppendHashes for a continuation: tokens follow the block whose hash
// is parent. Without a parent they begin the sequence. Offsets of media count
// from the first of these tokens.
func (h *Hasher) Extend(dst []Hash, parent Hash, hasParent bool, tokens []uint32, media []Media) []Hash {
	n := len(tokens) / h.tokens
	if n == 0 {
		return dst
	}
	dst = slices.Grow(dst, n)
	if !hasParent {
		parent = 0
	}
	if h.scheme == SchemeBLAKE3 && len(media) == 0 && h.tokens <= wordsPerCompression {
		return h.extendShort(dst, parent, tokens)
	}
	s := h.scratch()
	defer h.release(s)
	var walk mediaWalk
	walk.start(media, s)
	for at := 0; at+h.tokens <= len(tokens); at += h.tokens {
		part, rec := tokens[at:at+h.tokens], walk.record(at, at+h.tokens, s)
		if h.scheme == SchemeDynamo {
			s.msg = append(appendTokens(s.msg[:0], part), rec...)
			parent, hasParent = dynamo(parent, hasParent, s.msg), true
		} else {
			parent = h.next(&h.rootTok, parent, part, rec, s)
		}
		dst = append(dst, parent)
	}
	return dst
}

// extendShort is Extend for what nearly every call is: blocks that take one
// compression and no media. The node is filled anew only where blocks differ.
func (h *Hasher) extendShort(dst []Hash, parent Hash, tokens []uint32) []Hash {
	n := h.shortNode()
	n.CV = h.rootTok
	for len(tokens) >= h.tokens {
		n.CV[0], n.CV[1] = h.rootTok[0]^uint32(parent), h.rootTok[1]^uint32(parent>>32)
		copy(n.Block[:], tokens[:h.tokens])
		out := guts.CompressNode(n)
		parent = Hash(out[0]) | Hash(out[1])<<32
		dst = append(dst, parent)
		tokens = tokens[h.tokens:]
	}
	return dst
}

// shortNode is the compression of a block of at most 16 tokens, without key and
// tokens.
func (h *Hasher) shortNode() guts.Node {
	return guts.Node{
		BlockLen: uint32(4 * h.tokens),
		Flags:    guts.FlagKeyedHash | guts.FlagChunkStart | guts.FlagChunkEnd | guts.FlagRoot,
	}
}

// next is the hash of one block in scheme BLAKE3.
func (h *Hasher) next(root *words, parent Hash, tokens []uint32, rec []byte, s *scratch) Hash {
	key := *root
	key[0] ^= uint32(parent)
	key[1] ^= uint32(parent >> 32)
	if rec != nil {
		key = keyedBytes(&key, rec, s)
	}
	out := keyed(&key, tokens, s)
	return toHash(&out)
}

// AppendKeys appends the keys of the prompt's whole blocks, first block first.
// It allocates only when dst lacks room. Keys do not depend on the scheme.
func (h *Hasher) AppendKeys(dst []Key, tokens []uint32, media []Media) []Key {
	return h.ExtendKeys(dst, h.root, tokens, media)
}

// ExtendKeys is AppendKeys for a continuation: tokens follow the block whose key
// is parent. [Hasher.Root] is the parent of a first block. Offsets of media count
// from the first of these tokens.
func (h *Hasher) ExtendKeys(dst []Key, parent Key, tokens []uint32, media []Media) []Key {
	n := len(tokens) / h.tokens
	if n == 0 {
		return dst
	}
	dst = slices.Grow(dst, n)
	key := toWords(&parent)
	if len(media) == 0 && h.tokens <= wordsPerCompression {
		node := h.shortNode()
		for len(tokens) >= h.tokens {
			node.CV = key
			copy(node.Block[:], tokens[:h.tokens])
			key = guts.ChainingValue(node)
			dst = append(dst, toKey(&key))
			tokens = tokens[h.tokens:]
		}
		return dst
	}
	s := h.scratch()
	defer h.release(s)
	var walk mediaWalk
	walk.start(media, s)
	for at := 0; at+h.tokens <= len(tokens); at += h.tokens {
		if rec := walk.record(at, at+h.tokens, s); rec != nil {
			key = keyedBytes(&key, rec, s)
		}
		key = keyed(&key, tokens[at:at+h.tokens], s)
		dst = append(dst, toKey(&key))
	}
	return dst
}

// AppendBytes appends the hashes of a prompt whose tokens are not known, taken
// as bytes: a block has 4 x BlockTokens of them, as many as a block of tokens
// has. Equal bytes of the two kinds never give equal hashes. Media count bytes.
// It allocates only when dst lacks room.
func (h *Hasher) AppendBytes(dst []Hash, prompt []byte, media []Media) []Hash {
	size := 4 * h.tokens
	if len(prompt) < size {
		return dst
	}
	dst = slices.Grow(dst, len(prompt)/size)
	s := h.scratch()
	defer h.release(s)
	var walk mediaWalk
	walk.start(media, s)
	var parent Hash
	for at := 0; at+size <= len(prompt); at += size {
		part, rec := prompt[at:at+size], walk.record(at, at+size, s)
		if h.scheme == SchemeDynamo {
			s.msg = append(append(append(s.msg[:0], part...), dynamoBytes), rec...)
			parent = dynamo(parent, at > 0, s.msg)
		} else {
			s.tokens = s.tokens[:0]
			for i := 0; i < size; i += 4 {
				s.tokens = append(s.tokens, binary.LittleEndian.Uint32(part[i:]))
			}
			parent = h.next(&h.rootByte, parent, s.tokens, rec, s)
		}
		dst = append(dst, parent)
	}
	return dst
}

func (h *Hasher) scratch() *scratch { return h.pool.Get().(*scratch) }

// release keeps the working memory unless a giant media list made it too big to
// hold on to.
func (h *Hasher) release(s *scratch) {
	if cap(s.msg)+cap(s.rec)+4*(cap(s.order)+cap(s.active)) <= 4*MaxBlockTokens+1<<20 {
		h.pool.Put(s)
	}
}
