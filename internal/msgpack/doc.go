// Package msgpack walks MessagePack (https://msgpack.org, the specification at
// github.com/msgpack/msgpack/blob/master/spec.md) in place: a [Reader] over a
// byte slice that allocates nothing, and Append functions for writing.
//
// It does not map data to Go values. A caller asks what stands next, reads it
// by type or skips it; every type can be skipped, extensions included, at any
// depth and in constant memory. A failed typed read leaves the position where it
// was, so that the caller can skip the value and go on.
//
// Input is untrusted: announced lengths are compared with the bytes that are
// left before anything relies on them, and nothing panics.
package msgpack
