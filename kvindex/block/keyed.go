package block

import (
	"encoding/binary"
	"math/bits"

	"lukechampine.com/blake3/guts"
)

const (
	wordsPerCompression = guts.BlockSize / 4
	wordsPerChunk       = guts.ChunkSize / 4
	lanes               = guts.MaxSIMD * guts.ChunkSize // bytes that are compressed side by side
)

// words is a 32-byte value as BLAKE3 works with it: little-endian words.
type words = [8]uint32

// toWords splits a key into words.
func toWords(k *Key) (w words) {
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(k[4*i:])
	}
	return w
}

// toKey is the inverse of toWords.
func toKey(w *words) (k Key) {
	for i, v := range w {
		binary.LittleEndian.PutUint32(k[4*i:], v)
	}
	return k
}

// toHash is the value of the first 8 bytes.
func toHash(w *words) Hash { return Hash(w[0]) | Hash(w[1])<<32 }

// keyed is BLAKE3's keyed mode over the tokens as little-endian bytes. A token
// is then one word of a compression's input, so nothing is encoded, whatever
// the machine's byte order. One compression for up to 16 tokens.
func keyed(key *words, tokens []uint32, s *scratch) words {
	switch {
	case len(tokens) <= wordsPerChunk:
		n := chunk(key, tokens, 0)
		n.Flags |= guts.FlagRoot
		return guts.ChainingValue(n)
	case len(tokens) <= 2*wordsPerChunk:
		// Compressing side by side pays from three chunks on.
		l, r := chunk(key, tokens[:wordsPerChunk], 0), chunk(key, tokens[wordsPerChunk:], 1)
		n := guts.ParentNode(guts.ChainingValue(l), guts.ChainingValue(r), key, guts.FlagKeyedHash)
		n.Flags |= guts.FlagRoot
		return guts.ChainingValue(n)
	}
	s.msg = appendTokens(s.msg[:0], tokens)
	return keyedBytes(key, s.msg, s)
}

// chunk is the node of one chunk of at most 256 tokens.
func chunk(key *words, tokens []uint32, counter uint64) guts.Node {
	n := guts.Node{
		CV:       *key,
		Counter:  counter,
		BlockLen: guts.BlockSize,
		Flags:    guts.FlagKeyedHash | guts.FlagChunkStart,
	}
	for len(tokens) > wordsPerCompression {
		copy(n.Block[:], tokens[:wordsPerCompression])
		tokens = tokens[wordsPerCompression:]
		n.CV = guts.ChainingValue(n)
		n.Flags &^= guts.FlagChunkStart
	}
	n.Block = [wordsPerCompression]uint32{}
	n.BlockLen = uint32(4 * copy(n.Block[:], tokens))
	n.Flags |= guts.FlagChunkEnd
	return n
}

// keyedBytes is BLAKE3's keyed mode over any message.
func keyedBytes(key *words, msg []byte, s *scratch) words {
	n := subtree(key, msg, 0, s)
	n.Flags |= guts.FlagRoot
	return guts.ChainingValue(n)
}

// subtree is the node over the part of a message that begins at the given chunk.
func subtree(key *words, msg []byte, chunk uint64, s *scratch) guts.Node {
	switch {
	case len(msg) <= guts.ChunkSize:
		return guts.CompressChunk(msg, key, chunk, guts.FlagKeyedHash)
	case len(msg) <= lanes:
		copy(s.lanes[:], msg)
		return guts.CompressBuffer(&s.lanes, len(msg), key, chunk, guts.FlagKeyedHash)
	}
	// The left side takes the greatest power of two of chunks that leaves
	// something for the right.
	left := 1 << (bits.Len(uint(len(msg)-1)) - 1)
	l := guts.ChainingValue(subtree(key, msg[:left], chunk, s))
	r := guts.ChainingValue(subtree(key, msg[left:], chunk+uint64(left/guts.ChunkSize), s))
	return guts.ParentNode(l, r, key, guts.FlagKeyedHash)
}

// appendTokens appends the tokens as little-endian bytes.
func appendTokens(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		dst = binary.LittleEndian.AppendUint32(dst, t)
	}
	return dst
}

// scratch is working memory of one call, pooled by the Hasher.
type scratch struct {
	lanes  [lanes]byte
	msg    []byte   // message of a long block
	rec    []byte   // media record
	tokens []uint32 // one block of a chain of bytes
	order  []int32  // media items by offset
	active []int32  // those that touch the current block
}
