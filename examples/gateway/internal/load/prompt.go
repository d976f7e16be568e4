package load

import (
	"strconv"

	"github.com/stator-go/stator/internal/jsonedit"
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

// MinBound is the least bound of output that requests to simulated engines
// name: a limit as clients set it, which tells nothing of the answer's length.
const MinBound = 4096

// bound is the one limit of output for all requests of a trace: MinBound, or
// what the longest answer needs.
func bound(requests []trace.Request) int {
	n := MinBound
	for i := range requests {
		n = max(n, requests[i].Output)
	}
	return n
}

// appendBody appends the JSON body of a streamed completion. The answer must
// have the length that the trace says. limit 0 asks for it by max_tokens. With a
// limit, max_tokens is that, and a simulated engine alone is told where its
// model ends.
func appendBody(dst []byte, model string, r *trace.Request, limit int) []byte {
	dst = append(dst, `{"model":`...)
	dst = jsonedit.AppendQuoted(dst, model)
	dst = append(dst, `,"max_tokens":`...)
	if limit > 0 {
		dst = strconv.AppendInt(dst, int64(limit), 10)
		dst = append(dst, `,"vllm_xargs":{"sim_output_tokens":`...)
		dst = strconv.AppendInt(dst, int64(r.Output), 10)
		dst = append(dst, '}')
	} else {
		dst = strconv.AppendInt(dst, int64(r.Output), 10)
	}
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
