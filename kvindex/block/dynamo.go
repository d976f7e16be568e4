package block

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

const (
	dynamoSeed  = 1337
	dynamoBytes = 0x62 // follows each message of a chain of bytes
)

// dynamo is one step of scheme SchemeDynamo: the local hash of the message, then
// the chain over (parent, local). The first local hash is the first of the chain.
func dynamo(parent Hash, hasParent bool, msg []byte) Hash {
	local := xxh3.HashSeed(msg, dynamoSeed)
	if !hasParent {
		return Hash(local)
	}
	var pair [16]byte
	binary.LittleEndian.PutUint64(pair[:8], uint64(parent))
	binary.LittleEndian.PutUint64(pair[8:], local)
	return Hash(xxh3.HashSeed(pair[:], dynamoSeed))
}
