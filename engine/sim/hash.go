package sim

import (
	"crypto/sha256"
	"encoding/binary"
)

// A HashAlgo says how the engine names its blocks.
type HashAlgo uint8

// The algorithms.
const (
	// HashMix64 chains a 64-bit mixing function. It is this package's own, cheap,
	// and not made to withstand an adversary.
	HashMix64 HashAlgo = iota
	// HashSHA256CBOR is vLLM 0.32's sha256_cbor with its default seed string: a
	// digest of the canonical CBOR of (parent digest, token ids, extra keys); the
	// name is the last 8 bytes, big-endian.
	HashSHA256CBOR

	hashAlgos
)

// noneSeed is the string whose digest stands for the parent of first blocks.
const noneSeed = "vllm-none-hash"

// A chainer names the blocks of one sequence one after the other. It is a plain
// value, so a copy goes on by itself.
type chainer struct {
	algo  HashAlgo
	first bool
	mix   uint64
	sum   [32]byte
}

func newChainer(algo HashAlgo) chainer {
	c := chainer{algo: algo, first: true, mix: 0x243f6a8885a308d3}
	if algo == HashSHA256CBOR {
		c.sum = sha256.Sum256(appendText(nil, noneSeed))
	}
	return c
}

// next names the block that holds toks. buf is scratch memory and comes back.
func (c *chainer) next(buf []byte, toks []uint32, r *Req) (uint64, []byte) {
	if c.algo == HashSHA256CBOR {
		buf = c.appendPreimage(buf[:0], toks, r)
		c.sum = sha256.Sum256(buf)
		c.first = false
		return binary.BigEndian.Uint64(c.sum[24:]), buf
	}
	h := c.mix
	if c.first {
		h ^= hashString(1, r.Salt)
	}
	h ^= hashString(2, r.Adapter)
	for len(toks) >= 2 {
		h = (h ^ (uint64(toks[0]) | uint64(toks[1])<<32)) * 0x9fb21c651e98df25
		h ^= h >> 32
		toks = toks[2:]
	}
	if len(toks) == 1 {
		h = (h ^ uint64(toks[0]) ^ 1<<63) * 0x9fb21c651e98df25
		h ^= h >> 32
	}
	c.mix, c.first = mix64(h), false
	return c.mix, buf
}

// appendPreimage appends the canonical CBOR of (parent, tokens, extra).
func (c *chainer) appendPreimage(b []byte, toks []uint32, r *Req) []byte {
	b = append(b, 0x83)
	b = appendHead(b, 2, 32)
	b = append(b, c.sum[:]...)
	b = appendHead(b, 4, uint64(len(toks)))
	for _, t := range toks {
		b = appendHead(b, 0, uint64(t))
	}
	n := uint64(0)
	if r.Adapter != "" {
		n++
	}
	if c.first && r.Salt != "" {
		n++
	}
	if n == 0 {
		return append(b, 0xf6)
	}
	b = appendHead(b, 4, n)
	if r.Adapter != "" {
		b = appendHead(b, 4, 3)
		b = appendText(b, "lora")
		b = appendText(b, r.Adapter)
		b = appendText(b, r.AdapterPath)
	}
	if c.first && r.Salt != "" {
		b = appendHead(b, 4, 2)
		b = appendText(b, "cache_salt")
		b = appendText(b, r.Salt)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(appendHead(b, 3, uint64(len(s))), s...)
}

// appendHead appends a CBOR head with the shortest argument.
func appendHead(b []byte, major byte, v uint64) []byte {
	major <<= 5
	switch {
	case v < 24:
		return append(b, major|byte(v))
	case v < 1<<8:
		return append(b, major|24, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), v)
}
