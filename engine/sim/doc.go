// Package sim is a model of an inference engine that is exact to the step: what
// vLLM V1 would schedule, cache, evict, preempt and announce, with the time of
// each step taken from a formula instead of a GPU.
//
// It has two layers. [Core] is the engine alone: a pure state machine without
// goroutine, clock or IO, driven by whoever holds the clock. Routing policies
// are judged on it in virtual time, a day of traffic in seconds. [Server] puts a
// core behind real sockets and the wall clock: OpenAI HTTP with server-sent
// events, ZeroMQ publisher and replay socket with vLLM's bytes, Prometheus text.
//
// # Use of the core
//
// A core is idle or has one step in flight. Add hands it requests; Step(now)
// ends the step in flight if its time has come, starts the next one and says
// when to call again:
//
//	core, err := sim.NewCore(sim.H100TP4("dram"))
//	core.Add(now, &sim.Req{ID: 1, Prompt: 4096, Chain: ids, Out: 100})
//	next, out := core.Step(now) // next = +Inf when there is nothing to do
//
// Call Step after an Add to an idle core, and at the times that Step returns.
// The output holds tokens, ends of requests, preemptions and cache events in
// the engine's own order. The same calls give the same outputs: nothing is
// random. Clone copies the whole state, for looking ahead.
//
// # Model
//
// A step carries one token of every decoding sequence and up to Timing.Chunk
// tokens of prefill, first come first served, and takes
//
//	T0 + max(W, B*(p+d)) + C*ctx + KV*kv + D*d + Load*hit   seconds
//
// with p prefill tokens, d decoding sequences, ctx the sum over prefilled tokens
// of the tokens before them, kv the computed tokens of the decoding sequences,
// hit the tokens found in cache by requests admitted in this step. Admission,
// paging, reference counts, least-recently-used eviction (deepest block of the
// oldest chain first), duplicate copies, preemption by recomputation and the
// order of cache events follow vLLM 0.32. The formula's form and the constants
// of the presets are those with which public routing policies were compared;
// absolute times are good to a factor of two, ranks are the point.
//
// # Limits
//
// One attention group, one adapter slot table without limits, no speculative
// decoding, no KV transfer. The text is noise: the next token is a function of
// the model's seed and of all token ids before it, so equal prompts have equal
// answers on every simulated engine with one seed.
//
// A Core is not safe for concurrent use.
package sim
