// Package zmtp speaks ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) with the NULL
// mechanism over TCP or Unix sockets: enough of ZeroMQ to follow an engine's
// event publisher and to ask its replay socket, and for a simulated engine to
// offer both, without a C library and without goroutines of its own.
//
// A [Conn] is one connection. [Conn.Handshake] exchanges greeting and READY;
// after it [Conn.ReadMessage] and [Conn.WriteMessage] move multipart messages.
// Commands are handled inside ReadMessage: PING is answered, SUBSCRIBE and
// CANCEL (ZMTP 3.1) reach a publisher in the older message form, all others
// are skipped. [Sub] and [Dealer] are the two client roles.
//
// What is promised about hostile or broken peers: no length that a peer
// announces is allocated before its bytes have arrived; frame size, message
// size and number of frames are bounded by [Limits]; reserved flag bits,
// malformed commands and metadata end the connection with [ErrProtocol];
// nothing panics. Connections are not resumed: after an error of any method the
// Conn is to be closed.
//
// Not done: other mechanisms (PLAIN, CURVE, GSSAPI), ZMTP 1 and 2, sending
// heartbeats, outgoing queues. ZeroMQ's automatic reconnection is the work of
// whoever owns the Conn, since only the owner knows what a cut means.
package zmtp
