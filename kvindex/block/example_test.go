package block_test

import (
	"encoding/json"
	"fmt"

	"github.com/stator-go/stator/kvindex/block"
)

func ExampleHasher_AppendHashes() {
	h, err := block.NewHasher(block.Scope{Model: "llama-8b", Tenant: "team-a"}, 4, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Ten tokens are two whole blocks; the last two tokens have no name yet.
	chain := h.AppendHashes(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, nil)
	for _, x := range chain {
		fmt.Println(x)
	}
	// Two more tokens complete the third block. It continues the chain.
	chain = h.Extend(chain, chain[1], true, []uint32{9, 10, 11, 12}, nil)
	fmt.Println(len(chain))
	// Output:
	// e67a024b7d1fb81c
	// d8043dd228b53bf4
	// 3
}

func ExampleNamed() {
	ours, err := block.NewHasher(block.Scope{}, 4, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var got block.Named
	sent := []byte(`{"scheme":"dynamo-xxh3-1337","block_tokens":4,"hashes":["cb38e4d7fb2dca5c"]}`)
	if err := json.Unmarshal(sent, &got); err != nil {
		fmt.Println(err)
		return
	}
	_, err = ours.Accept(got)
	fmt.Println(err)
	// Output:
	// block: hash scheme does not match: have "dynamo-xxh3-1337", want "stator-blake3-1"
}
