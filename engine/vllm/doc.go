// Package vllm adapts vLLM: its KV cache events, its metrics, its tokenizer and
// its OpenAI-compatible API.
//
// # Events
//
// vLLM publishes what its prefix cache stores and drops over ZeroMQ. A
// [Decoder] reads the messages of every release since 0.8.5, and of SGLang,
// without configuration: positional events (up to 0.23) and tagged maps (since
// 0.24) may even stand in one batch while a pool is being upgraded. A broken or
// unknown event costs only itself.
//
// A [Subscriber] follows one data-parallel rank: one socket for live messages,
// one for replay, reconnecting by itself. It hands decoded batches to a [Sink],
// which [kvindex.Stream] is; order, gaps and restarts are the Sink's business.
// The engine must run with
//
//	--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq",
//	  "endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'
//
// where the star matters: with a plain address the engine connects instead of
// binding, and publishes to nobody.
//
// # Worker
//
// A [Worker] is one engine behind one URL. It implements engine.Engine and the
// optional abilities Tokenizer, LoadSource, ModelLister and HealthChecker, and
// asks the engine once, by [Worker.Probe], what it allows: which flags are
// missing is a result, not a surprise.
//
// # Token ids
//
// [Worker.Tokenize] gives the ids that the engine itself uses, or [ErrNoTokens].
// The engine is asked, and answers are cached under everything that can matter.
// For a conversation that goes on, only the new messages are sent, in place of
// the old ones stand-ins of the same roles, and what is known is continued.
// Templates are code, so this is no theorem: it is done for plain texts only,
// after the rule has given the engine's own ids several times in a row for that
// model, tools and template arguments; it is compared again now and then; and one
// difference ends it. WorkerOptions.NoPrefixReuse asks for everything in full.
//
// # Restarts
//
// An engine process that is replaced starts its sequence anew, which the stream
// sees at the first message. Who learns of it earlier, from discovery for
// instance, calls Stream.Reset through [Subscriber.Do], or detaches the slot.
//
// # Limits
//
// Token ids of pairs (EAGLE) are indexed by their first half, so that the last
// block of a shared prefix may be predicted where the engine, which looks one
// token further, misses it. Blocks of adapters that an old release names by
// number only are kept apart from all others and match no request. Wire forms
// were taken from the engines' sources (vllm/distributed/kv_events.py,
// python/sglang/srt/disaggregation/kv_events.py) and from recordings of vLLM
// 0.32.0, which are in testdata.
package vllm
