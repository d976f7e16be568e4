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
//	core.Add(&sim.Req{ID: 1, Prompt: 4096, Chain: ids, Out: 100})
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
// # Use of the server
//
//	engine, err := sim.NewServer(&sim.Options{Speed: 20})
//	… engine.URL(), engine.EventsEndpoint(), engine.ReplayEndpoint() …
//	engine.Close()
//
// The server answers as vLLM 0.32 does, down to the order of fields, the forms
// of errors and the habits that bite: a reset cache is announced with the next
// request only, a fully cached prompt stores its last block again, equal prompts
// at once store copies, an unknown id can be aborted, a draining engine answers
// 200 with nothing in it. Recorded messages and answers of a real engine are
// among its tests, and go through the same checks as its own.
//
// A token is a word (see [Tokenizer]), so ids, text and counts can be foretold.
// The field vllm_xargs.sim_output_tokens of a request ends its answers after so
// many tokens: a client that replays a trace gives the output length there, and
// max_tokens stays what a client knows, a bound. With Options.Speed the engine
// runs faster than its model; its own times are exact, and what clients see is
// late by what the machine needs.
//
// # Limits
//
// One attention group, adapters without a limit of their number, one data-parallel
// rank, no speculative decoding, no KV transfer, no tool calls, no priorities
// (accepted and ignored, as by a real engine without priority scheduling). The
// text is noise: the next token is a function of the model's seed and of all
// token ids before it, so equal prompts have equal answers on every simulated
// engine with one seed.
//
// A Core is not safe for concurrent use.
package sim
