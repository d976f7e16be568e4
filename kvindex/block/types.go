package block

import (
	"encoding/hex"
	"errors"
	"strconv"
)

// A Hash is the chained routing hash of one block: it names the block and
// everything before it. 64 bits steer a request; they never prove that two
// requests may share bytes, which is what [Key] is for.
type Hash uint64

// String formats the hash as 16 hexadecimal digits.
func (h Hash) String() string {
	const zeros = "0000000000000000"
	s := strconv.FormatUint(uint64(h), 16)
	return zeros[len(s):] + s
}

// A Key is the chained storage key of one block: the whole 256-bit digest. Two
// blocks with one key hold the same KV.
type Key [32]byte

// String formats the key as 64 hexadecimal digits, in the order of its bytes.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Scope is everything besides tokens that must agree before two requests may
// share KV. An empty field and an absent one are the same. Each field has at
// most [MaxField] bytes.
type Scope struct {
	// Model is the base model's name.
	Model string
	// Revision is the version of the weights.
	Revision string
	// Adapter is the LoRA adapter's name.
	Adapter string
	// Tenant is the cache salt.
	Tenant string
	// Group is the attention group of a hybrid model.
	Group string
}

// Media is one multimodal item of a prompt. Offset is the index of its first
// placeholder token in the token slice that is hashed (negative when the item
// began before that slice) and Length the number of its placeholder tokens. A
// block is touched by the item when their token ranges meet; an item whose
// length is not positive touches none.
//
// In a chain of bytes both count bytes.
type Media struct {
	ID             string
	Offset, Length int
}

// A Scheme names a hash function and its byte layout. It travels with every
// value that leaves the process.
type Scheme string

// Schemes of routing hashes.
const (
	// SchemeBLAKE3 is Stator's own: keyed BLAKE3, see the package comment.
	SchemeBLAKE3 Scheme = "stator-blake3-1"
	// SchemeDynamo is XXH3-64 with seed 1337 as NVIDIA Dynamo computes it. It
	// has no adapter or tenant.
	SchemeDynamo Scheme = "dynamo-xxh3-1337"
)

// Known says whether this package computes the scheme.
func (s Scheme) Known() bool { return s == SchemeBLAKE3 || s == SchemeDynamo }

// Limits of inputs.
const (
	// MaxBlockTokens is the greatest number of tokens in a block.
	MaxBlockTokens = 1 << 16
	// MaxField is the greatest length of a field of a [Scope] and of a media
	// item's ID, in bytes.
	MaxField = 1 << 16
	// MaxMedia is the greatest number of media items that CheckMedia lets pass.
	MaxMedia = 1 << 16
	// MaxOffset bounds a media item's Offset (in both directions) and Length.
	MaxOffset = 1<<31 - 1
)

// Errors that callers may want to tell apart.
var (
	// ErrScheme means that a scheme is not known, or that a value was made by
	// another scheme than the one that would read it.
	ErrScheme = errors.New("block: hash scheme does not match")
	// ErrBlockTokens means that a block size is out of range, or that a value was
	// made with another block size than the one that would read it.
	ErrBlockTokens = errors.New("block: tokens per block do not match")
	// ErrScope means that a scope cannot be expressed in the scheme.
	ErrScope = errors.New("block: scope not usable")
	// ErrMedia is wrapped by each error about media items.
	ErrMedia = errors.New("block: media not usable")
	// ErrMalformed means that a text is not the form of a value of this package.
	ErrMalformed = errors.New("block: malformed value")
)
