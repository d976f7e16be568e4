// Package jsonedit reads and edits the top level of JSON objects on their raw
// bytes.
//
// A proxy must hand on what it does not understand: unknown fields, their
// order, integers beyond 2^53, the exact spelling of numbers and strings.
// Decoding into a map and encoding again loses all of that, so this package
// only finds where members begin and end, and copies the rest as it stands.
//
// # Use
//
// [Object] and [Array] iterate without allocating. [Get] finds one member,
// [Set], [Delete] and [DeleteFunc] append an edited copy to a buffer of the
// caller's.
//
// # Promises
//
// What the functions accept is JSON as RFC 8259 defines it, so nothing that a
// stricter or laxer reader further on could take for another value: no
// trailing commas, comments, NaN or byte order mark. An object whose iteration
// ended without an error was checked to its last byte. Nesting is limited to
// [MaxDepth]. A duplicate name counts as its last member, as in Python and
// JavaScript, and deleting a name deletes every member of that name, however
// it is escaped. Every syntax error is a [*SyntaxError] with its offset.
//
// # Limits
//
// Strings are not checked for valid UTF-8: their bytes are handed on.
package jsonedit
