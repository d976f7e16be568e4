package sim

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vectors were computed outside the engine with the rule that reproduced
// every recorded hash of a real one.
func TestSHA256CBORVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/hash-vectors.json")
	require.NoError(t, err)
	var file struct {
		Vectors []struct {
			Algo, Seed, Name, Parent, Digest string
			Preimage                         string     `json:"preimage_hex"`
			Tokens                           []uint32   `json:"tokens"`
			Extra                            [][]string `json:"extra_keys"`
			Int                              uint64     `json:"event_int"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &file))
	tried := 0
	for _, v := range file.Vectors {
		if v.Algo != "sha256_cbor" || v.Seed != noneSeed {
			continue
		}
		tried++
		c := newChainer(HashSHA256CBOR)
		root := c.sum
		if v.Name == "root" {
			require.Equal(t, v.Digest, hex.EncodeToString(root[:]))
			continue
		}
		_, err := hex.Decode(c.sum[:], []byte(v.Parent))
		require.NoError(t, err)
		c.first = c.sum == root
		var r Req
		for _, e := range v.Extra {
			switch e[0] {
			case "lora":
				r.Adapter, r.AdapterPath = e[1], e[2]
			case "cache_salt":
				r.Salt = e[1]
			default:
				t.Fatalf("%s: extra key %q", v.Name, e[0])
			}
		}
		require.Equal(t, v.Preimage, hex.EncodeToString(c.appendPreimage(nil, v.Tokens, &r)), v.Name)
		name, _ := c.next(nil, v.Tokens, &r)
		require.Equal(t, v.Digest, hex.EncodeToString(c.sum[:]), v.Name)
		require.Equal(t, v.Int, name, v.Name)
	}
	require.GreaterOrEqual(t, tried, 6)
}

func TestMix64SetsScopesApart(t *testing.T) {
	toks := []uint32{1, 2, 3, 4}
	names := map[uint64]string{}
	for _, r := range []Req{{}, {Salt: "a"}, {Salt: "b"}, {Adapter: "a"}, {Adapter: "a", Salt: "a"}, {Adapter: "aa"}} {
		c := newChainer(HashMix64)
		first, _ := c.next(nil, toks, &r)
		second, _ := c.next(nil, toks, &r)
		for _, n := range []uint64{first, second} {
			require.NotContains(t, names, n)
			names[n] = r.Salt + "/" + r.Adapter
		}
		d := newChainer(HashMix64)
		again, _ := d.next(nil, toks, &r)
		require.Equal(t, first, again)
	}
	odd, even := newChainer(HashMix64), newChainer(HashMix64)
	a, _ := odd.next(nil, []uint32{7}, &Req{})
	b, _ := even.next(nil, []uint32{7, 0}, &Req{})
	require.NotEqual(t, a, b)
}
