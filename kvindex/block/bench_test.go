package block_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"lukechampine.com/blake3/guts"

	"github.com/stator-go/stator/kvindex/block"
)

const benchBlocks = 512

func benchTokens(perBlock int) []uint32 {
	tokens := make([]uint32, benchBlocks*perBlock)
	for i := range tokens {
		tokens[i] = uint32(i) * 2654435761 % 128_000
	}
	return tokens
}

func benchHasher(b *testing.B, perBlock int, scheme block.Scheme) *block.Hasher {
	h, err := block.NewHasher(block.Scope{Model: "llama-8b"}, perBlock, &block.Options{Scheme: scheme})
	if err != nil {
		b.Fatal(err)
	}
	return h
}

func perBlock(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchBlocks, "ns/block")
}

func BenchmarkHash(b *testing.B) {
	b.Run("blocks=512", func(b *testing.B) { benchHash(b, 16, block.SchemeBLAKE3) })
}

// BenchmarkLongBlocks is BenchmarkHash for blocks of more than one compression.
func BenchmarkLongBlocks(b *testing.B) {
	for _, n := range []int{32, 64, 512} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) { benchHash(b, n, block.SchemeBLAKE3) })
	}
}

func BenchmarkDynamo(b *testing.B) {
	b.Run("blocks=512", func(b *testing.B) { benchHash(b, 16, block.SchemeDynamo) })
}

func benchHash(b *testing.B, tokensPerBlock int, scheme block.Scheme) {
	h, tokens := benchHasher(b, tokensPerBlock, scheme), benchTokens(tokensPerBlock)
	dst := make([]block.Hash, 0, benchBlocks)
	b.ReportAllocs()
	for b.Loop() {
		dst = h.AppendHashes(dst[:0], tokens, nil)
	}
	perBlock(b)
}

func BenchmarkKey(b *testing.B) {
	b.Run("blocks=512", func(b *testing.B) {
		h, tokens := benchHasher(b, 16, ""), benchTokens(16)
		dst := make([]block.Key, 0, benchBlocks)
		b.ReportAllocs()
		for b.Loop() {
			dst = h.AppendKeys(dst[:0], tokens, nil)
		}
		perBlock(b)
	})
}

func BenchmarkBytes(b *testing.B) {
	b.Run("blocks=512", func(b *testing.B) {
		h, prompt := benchHasher(b, 16, ""), make([]byte, benchBlocks*64)
		dst := make([]block.Hash, 0, benchBlocks)
		b.ReportAllocs()
		for b.Loop() {
			dst = h.AppendBytes(dst[:0], prompt, nil)
		}
		perBlock(b)
	})
}

// BenchmarkBareChain is what the floor of BenchmarkHash is measured by: the same
// compressions with nothing around them.
func BenchmarkBareChain(b *testing.B) {
	b.Run("blocks=512", func(b *testing.B) {
		tokens := benchTokens(16)
		dst := make([]uint64, benchBlocks)
		b.ReportAllocs()
		for b.Loop() {
			key := guts.IV
			for i := range dst {
				n := guts.Node{
					CV:       key,
					BlockLen: guts.BlockSize,
					Flags:    guts.FlagKeyedHash | guts.FlagChunkStart | guts.FlagChunkEnd | guts.FlagRoot,
				}
				copy(n.Block[:], tokens[16*i:16*i+16])
				key = guts.ChainingValue(n)
				dst[i] = uint64(key[0]) | uint64(key[1])<<32
			}
		}
		perBlock(b)
	})
}

// The bare chain must be the key chain, or the ratio says nothing.
func TestBareChainIsKeyed(t *testing.T) {
	h, err := block.NewHasher(block.Scope{}, 16, nil)
	if err != nil {
		t.Fatal(err)
	}
	root := h.Root()
	n := guts.Node{BlockLen: 64, Flags: guts.FlagKeyedHash | guts.FlagChunkStart | guts.FlagChunkEnd | guts.FlagRoot}
	for i := range n.CV {
		n.CV[i] = binary.LittleEndian.Uint32(root[4*i:])
	}
	tokens := benchTokens(16)[:16]
	copy(n.Block[:], tokens)
	cv := guts.ChainingValue(n)
	var want block.Key
	for i, w := range cv {
		binary.LittleEndian.PutUint32(want[4*i:], w)
	}
	if got := h.AppendKeys(nil, tokens, nil)[0]; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}
