// Package pool makes one engine.Engine of several workers: it tokenises and
// hashes a prompt once, lets a router.Router pick a worker, sends the request
// there, and moves it to another worker while nothing of the answer has been
// passed on.
//
// # Use
//
//	p, err := pool.New(r, nil) // r is a *router.Router
//	err = p.Set([]pool.Worker{{Worker: router.Worker{Slot: slot, Name: "a"}, Engine: a}, …})
//	handler, err := openai.NewHandler(p, nil)
//
// A worker is one slot: one engine, or one data-parallel rank of it. Whoever
// knows the workers calls Set with the whole list each time it changes.
//
// # A request's way
//
// Token ids come from the client, else from the first worker whose engine is an
// engine.Tokenizer and answers, else the prompt is hashed by its bytes: then
// only what this pool itself routed can match, never an engine's events. With
// Options.Guess the pool writes the prompts that passed to the index for workers
// whose engines have no events, so that a later request finds them. Router and
// index see the chain of one hashing. Failing to tokenise never fails a
// request; an engine that finds the prompt faulty says so itself.
//
// # Retries
//
// A worker that fails before the first token costs the client nothing: the
// request moves to another one, at most Options.MaxAttempts in all and within a
// budget over all requests, so that a fault that follows the request does not
// multiply load. Chunks without tokens (the role chunk of a chat) are held back
// until the first token, since they would otherwise end that freedom. A worker
// that answers 429 or 503 with Retry-After rests that long. Faults of the client
// (most 4xx) are its own and go back at once. After the first token nothing is
// retried; that is migration, which is not done here.
//
// # Limits
//
// All workers of a pool serve the same models. An answer that does not stream
// tells the router how many tokens it has, where the engine says so, but not when
// the first one came; such requests are router.Request.Quiet.
package pool
