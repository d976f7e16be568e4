// Package page is the gateway's live page: one embedded HTML file at / and the
// state that it shows at /debug/state.
//
// # Use
//
// A [Page] is told what happens: [Page.Begin] for each request, whose
// [Request] takes the rest, and [Page.Decide] for each pick. What changes
// without an event, the workers, it asks for through Options.Workers when
// somebody looks.
//
// # Promises
//
// Everything is kept in rings of a fixed size: memory does not grow with the
// number of requests. Recording takes one short lock a request, none a token.
// The page needs no other host: styles and script are in the file, and the
// Content-Security-Policy that is sent with it forbids anything else.
//
// All times of a state are in seconds of trace time, which is wall clock times
// Options.Speed; the exceptions have wall in their names.
package page
