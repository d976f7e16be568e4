// Package openai speaks the OpenAI HTTP form on both sides: [Client] is an
// engine.Engine over any compatible server (vLLM, SGLang, TensorRT-LLM, a
// hosted API), [Handler] serves any engine.Engine to OpenAI clients.
//
// # Use
//
//	client, err := openai.NewClient("http://10.0.0.7:8000", nil)
//	handler, err := openai.NewHandler(client, nil)
//	err = http.ListenAndServe(":8080", handler)
//
// Put engine/pool between the two and requests are routed; anything that has
// Generate can stand in the client's place.
//
// # Engines of your own
//
// An engine that yields chunks with Text, Tokens and Finish is served as it is:
// where its chunks have no Raw the handler makes the JSON. A stream gets one
// text_completion or chat.completion.chunk event a chunk that has text, token ids
// or a finish reason, the role with the first of each choice, and a usage event
// when the client set include_usage and a chunk had Usage. Without stream the
// chunks of each choice are gathered, up to ServerOptions.MaxAnswer, into one
// text_completion or chat.completion object. token_ids are added when the client
// set return_token_ids. What a chunk has no field for (logprobs, echo, tool
// calls, reasoning) only an engine with Raw can answer. An answer is of one kind
// or the other, as its first chunk that is not hidden is; a mix fails.
//
// # Relay
//
// Bodies and answers pass byte for byte. A request is scanned, not decoded:
// only fields that the gateway must know are read, and only fields that clients
// may not set are taken out ([Stripped]). An event that an engine sends goes on
// as it came, with fields nobody here knows; one that differs from the event
// before it in nothing but its text, token ids or choice is not even scanned, only
// compared. Events that came together are sent together.
//
// # Fields and headers that clients may not set
//
// A handoff (kv_transfer_params and its kin) names memory of other machines.
// On vLLM 0.32 a single {"do_remote_prefill":true} ends the engine's process,
// and a stale one answers with another prompt's text, so such fields are
// removed wherever the engine would look: at the top level and in the objects
// that engines merge into their sampling parameters, however the names are
// escaped, cased or repeated. Headers that steer an engine (X-Vllm-Priority,
// X-Data-Parallel-Rank and the like) and hop-by-hop headers go as well. What is
// left of a header may have 128 lines and 32 KiB; more is refused with 431, since
// engines drop the connection on it as if they had failed.
//
// # Endings
//
// Neither status 200 nor "[DONE]" means success: a vLLM that is told to stop
// sends both. Every choice must have been finished by a reason other than
// "abort"; see the errors of package engine for everything else. The handler
// hides nothing of it, and checks it for every engine: an answer without a finish
// for each of the n × prompts choices is a failure, with 502 before the first
// byte. A failure after it becomes an error event followed by [DONE], which is
// what vLLM itself does, and never a clean end. [Handler] lists the statuses.
//
// # Connections
//
// The client's transport takes no proxy from the environment, follows no
// redirect, drops idle connections after 4 s (vLLM closes them after 5 s) and
// never half-closes one, which vLLM takes for a disconnect. Cancelling or
// breaking off a generation closes the upstream connection at once, which is
// how all engines abort.
//
// # Sources
//
// Wire behaviour is that of vLLM 0.32.0, recorded in testdata; the event stream
// format is the WHATWG HTML standard's, section "Server-sent events".
package openai
