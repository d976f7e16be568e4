package block

// A Hash is the chained routing hash of one block: it names the block and
// everything before it. 64 bits steer a request; they never prove that two
// requests may share bytes, which is what [Key] is for.
type Hash uint64

// A Key is the chained storage key of one block: the whole 256-bit digest. Two
// blocks with one key hold the same KV.
type Key [32]byte

// Scope is everything besides tokens that must agree before two requests may
// share KV. An empty field and an absent one are the same.
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
// block is touched by the item when their token ranges meet.
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
