// Package report turns the outcomes of replayed requests into the figures that
// the examples print: one row a policy, as a table and as JSON.
//
// Definitions. TTFT runs from a request's arrival to its first token. ITL is the
// mean gap between a request's tokens (first to last token over tokens less
// one); its p95 is over requests. Reuse is cached over prompt tokens as the
// engine reported them. Goodput is the share of requests that were answered
// with a TTFT of at most 2 s plus the cold prefill time of their prompt, and an
// ITL of at most 50 ms; an error is not good.
package report
