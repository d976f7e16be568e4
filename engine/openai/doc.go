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
// hides nothing of it: a failure after the first byte becomes an error event
// followed by [DONE], which is what vLLM itself does, and never a clean end.
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
