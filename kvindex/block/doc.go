// Package block gives KV-cache blocks their names.
//
// A block is a fixed number of consecutive tokens of one sequence, the unit in
// which inference engines cache KV. A name covers the block's tokens, all tokens
// before it, and the [Scope]: everything else that must agree before two
// requests may share KV. There are two kinds of name. A [Hash] has 64 bits and
// steers requests: a collision costs a little time, never a wrong answer. A
// [Key] has 256 bits and decides whether stored bytes may be handed to another
// request.
//
// # Use
//
// Make one [Hasher] per scope and keep it; it is safe for concurrent use. Turn
// each prompt into hashes once with [Hasher.AppendHashes] and pass the slice on.
// Continue a chain whose last hash is known with [Hasher.Extend]. Prompts whose
// tokens are not known are steered by [Hasher.AppendBytes]. What leaves the
// process goes as a [Named], which carries the scheme, so that two programs that
// hash differently get an error instead of never finding a match.
//
// # Bytes
//
// This is scheme "stator-blake3-1", whole; any BLAKE3 library reproduces it.
// u32, u64 and i64 are little-endian integers, ‖ joins, keyed(k, m) is the first
// 32 bytes of BLAKE3's keyed mode with key k over message m.
//
// The scope record is a row of fields. A field is
//
//	tag (1 byte) ‖ length (u32) ‖ content
//
// with these tags in this order, a field with empty content being left out:
//
//	0  scheme: the text "stator-blake3-1"
//	1  model
//	2  revision
//	3  adapter
//	4  tenant
//	5  group
//	6  unit: absent for chains of tokens, the text "bytes" for chains of bytes
//
// The root is the unkeyed BLAKE3 hash, 32 bytes, of that record.
//
// The message of a block is its tokens, each as u32; in a chain of bytes with
// blocks of n tokens it is the next 4n bytes themselves. An incomplete block at
// the end has no name.
//
//	hash(i) = the first 8 bytes, as u64, of keyed(hk(i), message(i))
//	hk(i)   = the root with its first 8 bytes XORed by u64 hash(i-1); hash(-1) is 0
//
//	key(i)  = keyed(kk(i), message(i))
//	kk(i)   = key(i-1); key(-1) is the root
//
// A multimodal item touches a block when their ranges meet. When at least one
// item touches block i, keyed(hk(i), media(i)) stands for hk(i), and
// keyed(kk(i), media(i)) for kk(i), where media(i) is the record
//
//	0x4d ‖ count (u32) ‖ count items, each:
//	length of id (u32) ‖ id ‖ zero bytes to a multiple of 4 ‖ offset (i64)
//
// The offset of an item is its first token's index less that of the block's
// first token, negative when the item began in an earlier block. Items stand in
// ascending order of offset, then id, each pair once. An item's length is left
// out on purpose: engines announce which blocks an item touches and where it
// begins, not how long it is, and the record must be the same from both sides.
//
// No two inputs give one record: fields are tagged, lengths stand before
// contents, and a media record's length is 1 more than a multiple of 4, which no
// block's message is. Vectors for other languages are in testdata/vectors.json;
// testdata/check_vectors.py derives them in Python from the inputs alone.
//
// # Other schemes
//
// "dynamo-xxh3-1337" computes what NVIDIA Dynamo (lib/kv-router, before its
// change to seed 0) does with XXH3-64 of seed 1337 for both steps:
//
//	local(i) = xxh3(message(i), 1337)
//	hash(0)  = local(0);  hash(i) = xxh3(u64 hash(i-1) ‖ u64 local(i), 1337)
//
// It covers neither model nor revision, and a scope with an adapter, tenant or
// group is an error. What Dynamo has no fixed form for still gets names, which
// match no foreign one: media(i) is appended to the message of a touched block,
// and a chain of bytes appends the byte 0x62 to each message before that.
//
// Keys are always BLAKE3 as above, whatever the scheme of the hashes.
//
// # Limits
//
// A hash of 0 is a valid name and makes its child look like a first block; the
// chance is that of any 64-bit collision. Adversarial inputs can be made to
// collide in 2^32 tries of a hash; use keys where that matters. Hashing a prompt
// costs one compression per 16 tokens, and one per 64 bytes of each block's
// media record.
package block
