// Package trace reads request traces in the Mooncake form: one JSON object a
// line with timestamp (milliseconds), input_length and output_length (tokens)
// and hash_ids (one global id for each 512 tokens of the prompt, the last one
// for a partial block; equal ids in a row mean equal prefixes). The format is
// that of github.com/kvcache-ai/Mooncake, FAST25-release/traces.
//
// Public traces carry time stamps rounded to seconds, so that many requests
// seem to come at one instant. [Spread] draws them apart.
package trace
