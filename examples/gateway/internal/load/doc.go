// Package load plays a trace against an OpenAI-compatible server as its clients
// would: each request at its time, over HTTP, streaming, and measured from the
// outside.
//
// A trace names prompts by ids that stand for 512 tokens each. [AppendPrompt]
// turns an id into 512 fixed token ids, so that equal ids are equal text to an
// engine, and sends the prompt as an array of token ids.
//
// A trace also knows how long each answer is, and a router does not. Simulated
// engines are therefore told on a way of their own (see Options.Simulated), so
// that no policy is judged by what it could not know. Real engines can be made to
// answer with so many tokens by max_tokens only, which their router sees.
//
// All measured times are trace time: wall clock times the scale. Time to first
// token counts from the moment at which the trace wants the request, not from
// when it was sent, so a client that falls behind makes its figures worse and
// not better.
package load
