package load

import (
	"strconv"

	"github.com/stator-go/stator/internal/trace"
)

// Token ids lie in [firstToken, firstToken+tokens): above the special ids of
// any vocabulary, and four digits each.
const (
	firstToken = 1000
	tokens     = 9000
)

// AppendPrompt appends the token ids of a request's prompt, Input of them.
// The ids of a block are a fixed function of the block's id.
func AppendPrompt(dst []uint32, r *trace.Request) []uint32 {
	left := r.Input
	for _, id := range r.Blocks {
		for j := range min(left, trace.BlockTokens) {
			dst = append(dst, token(id, j))
		}
		left -= min(left, trace.BlockTokens)
	}
	return dst
}

// token is the j-th token of a block: SplitMix64's finaliser of both numbers.
func token(id uint32, j int) uint32 {
	z := (uint64(id)<<32 | uint64(j)) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return firstToken + uint32(z>>32*tokens>>32)
}

// appendBody appends the JSON body of a streamed completion.
func appendBody(dst []byte, model string, r *trace.Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = strconv.AppendQuote(dst, model)
	dst = append(dst, `,"max_tokens":`...)
	dst = strconv.AppendInt(dst, int64(r.Output), 10)
	dst = append(dst, `,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"prompt":[`...)
	left, comma := r.Input, false
	for _, id := range r.Blocks {
		for j := range min(left, trace.BlockTokens) {
			if comma {
				dst = append(dst, ',')
			}
			dst = strconv.AppendUint(dst, uint64(token(id, j)), 10)
			comma = true
		}
		left -= min(left, trace.BlockTokens)
	}
	return append(dst, ']', '}')
}
