// Package engine is the vocabulary between a gateway and inference engines.
//
// An [Engine] answers requests. It may be one worker behind HTTP
// (engine/openai's Client, engine/vllm), a pool of workers (engine/pool) or a
// simulation (engine/sim): wrappers compose the way http.RoundTripper does.
// Abilities that not every engine has are small interfaces of their own, found
// by assertion: [Tokenizer], [LoadSource], [ModelLister], [HealthChecker].
//
// # Answers
//
// An answer is a sequence of chunks. Chunks are not tokens: one may carry none
// (a role, a fragment of a character) or several, so [Chunk.Tokens] counts
// them. Those of an engine that relays carry the upstream bytes in [Chunk.Raw],
// so that fields nobody here knows survive; those of any other engine carry text
// and finish reasons, of which engine/openai makes the JSON.
//
// # Endings
//
// Engines die politely: a killed worker may end its stream with a finish reason
// "abort", an error event, or no choice at all, each followed by the usual end
// marker. A sequence without an error therefore means that every choice was
// finished, and everything else is an error: [ErrAborted], [ErrCut],
// [ErrNotServed], [ErrTimeout], [ErrUnreachable], [ErrUnavailable] or an
// [*Error] with the engine's own words. [Retryable] says whether another worker
// may do better, [Delivered] whether part of the answer was already handed on.
//
// # Time
//
// A [Timeline] collects where a request's time went, each span labelled
// control, data or compute.
//
// # Limits
//
// The package holds no logic of its own and starts no goroutine. It knows the
// OpenAI form of bodies only by name.
package engine
