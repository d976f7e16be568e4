package block_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew")

const vectorsFile = "vectors.json"

// vector is one row of testdata/vectors.json: inputs, then what they give. Tokens
// are listed, or made by the rule token(i) = (i*step + first) mod 2^32.
type vector struct {
	Name        string            `json:"name"`
	Scheme      block.Scheme      `json:"scheme"`
	BlockTokens int               `json:"block_tokens"`
	Scope       map[string]string `json:"scope"`
	Tokens      []uint32          `json:"tokens,omitempty"`
	Rule        *tokenRule        `json:"token_rule,omitempty"`
	Bytes       string            `json:"bytes_base64,omitempty"`
	Media       []mediaRow        `json:"media,omitempty"`
	Parent      string            `json:"parent,omitempty"` // hash that Extend continues

	Root   string   `json:"root"`
	Hashes []string `json:"hashes"`
	Keys   []string `json:"keys,omitempty"`
}

type tokenRule struct {
	Count int    `json:"count"`
	First uint32 `json:"first"`
	Step  uint32 `json:"step"`
}

type mediaRow struct {
	ID     string `json:"id"`
	Offset int    `json:"offset"`
	Length int    `json:"length"`
}

func (v *vector) tokens() []uint32 {
	if v.Rule == nil {
		return v.Tokens
	}
	t := make([]uint32, v.Rule.Count)
	for i := range t {
		t[i] = uint32(i)*v.Rule.Step + v.Rule.First
	}
	return t
}

func (v *vector) media() []block.Media {
	var m []block.Media
	for _, r := range v.Media {
		m = append(m, block.Media{ID: r.ID, Offset: r.Offset, Length: r.Length})
	}
	return m
}

// fill computes the outputs.
func (v *vector) fill(t *testing.T) {
	scope := block.Scope{
		Model: v.Scope["model"], Revision: v.Scope["revision"], Adapter: v.Scope["adapter"],
		Tenant: v.Scope["tenant"], Group: v.Scope["group"],
	}
	h, err := block.NewHasher(scope, v.BlockTokens, &block.Options{Scheme: v.Scheme})
	require.NoError(t, err, v.Name)
	v.Root = h.Root().String()
	var hashes []block.Hash
	var keys []block.Key
	switch {
	case v.Bytes != "":
		raw, err := base64.StdEncoding.DecodeString(v.Bytes)
		require.NoError(t, err, v.Name)
		hashes = h.AppendBytes(nil, raw, v.media())
	case v.Parent != "":
		raw, err := hex.DecodeString(v.Parent)
		require.NoError(t, err, v.Name)
		var p block.Hash
		for _, b := range raw {
			p = p<<8 | block.Hash(b)
		}
		hashes = h.Extend(nil, p, true, v.tokens(), v.media())
	default:
		hashes = h.AppendHashes(nil, v.tokens(), v.media())
		keys = h.AppendKeys(nil, v.tokens(), v.media())
	}
	v.Hashes, v.Keys = []string{}, nil
	for _, x := range hashes {
		v.Hashes = append(v.Hashes, x.String())
	}
	for _, x := range keys {
		v.Keys = append(v.Keys, x.String())
	}
}

// vectorInputs lists what the file covers.
func vectorInputs() []vector {
	var vs []vector
	add := func(name string, v vector) {
		v.Name = name
		if v.Scheme == "" {
			v.Scheme = block.SchemeBLAKE3
		}
		if v.Scope == nil {
			v.Scope = map[string]string{}
		}
		vs = append(vs, v)
	}
	eight := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	full := map[string]string{"model": "llama-8b", "revision": "r1", "adapter": "sql-lora", "tenant": "tenant-a", "group": "0"}
	long := &tokenRule{Count: 100, First: 7, Step: 2654435761}

	add("no scope", vector{BlockTokens: 4, Tokens: eight})
	add("model only", vector{BlockTokens: 4, Scope: map[string]string{"model": "llama-8b"}, Tokens: eight})
	for _, f := range []string{"model", "revision", "adapter", "tenant", "group"} {
		add("only "+f, vector{BlockTokens: 4, Scope: map[string]string{f: "x"}, Tokens: eight})
		add("empty "+f, vector{BlockTokens: 4, Scope: map[string]string{"model": "m", "tenant": "t", f: ""}, Tokens: eight})
	}
	add("all fields", vector{BlockTokens: 4, Scope: full, Tokens: eight})
	add("field border 1", vector{BlockTokens: 4, Scope: map[string]string{"model": "llama", "tenant": "-8b-tenantA"}, Tokens: eight})
	add("field border 2", vector{BlockTokens: 4, Scope: map[string]string{"model": "llama-8b", "tenant": "-tenantA"}, Tokens: eight})
	add("text beyond ASCII", vector{BlockTokens: 4, Scope: map[string]string{"model": "modèle-ß", "tenant": "租户"}, Tokens: eight})
	for _, n := range []int{1, 2, 4, 15, 16, 17, 31, 32, 64, 256, 257, 512, 513, 1024, 4096, 4097, 10000} {
		count := 3*n + n/2
		add(fmt.Sprintf("block of %d", n), vector{BlockTokens: n, Scope: full, Rule: &tokenRule{Count: count, First: uint32(n), Step: 2654435761}})
	}
	add("incomplete block", vector{BlockTokens: 16, Tokens: eight})
	add("no tokens", vector{BlockTokens: 16})
	add("greatest tokens", vector{BlockTokens: 2, Tokens: []uint32{1<<32 - 1, 1<<32 - 2, 0, 1<<32 - 1}})
	add("continued", vector{BlockTokens: 16, Scope: full, Rule: long, Parent: "0123456789abcdef"})
	add("continued from hash 0", vector{BlockTokens: 16, Scope: full, Rule: long, Parent: "0000000000000000"})

	media := map[string][]mediaRow{
		"within one block":         {{"img-1", 3, 5}},
		"across three blocks":      {{"img-1", 10, 30}},
		"begins at a border":       {{"img-1", 16, 16}},
		"ends at a border":         {{"img-1", 8, 8}},
		"began before":             {{"img-1", -20, 40}},
		"ended before":             {{"img-1", -20, 20}},
		"two in a block, unsorted": {{"b", 9, 2}, {"a", 2, 3}},
		"two at one place":         {{"b", 4, 2}, {"a", 4, 9}, {"b", 4, 1}},
		"one of length 0":          {{"a", 4, 0}, {"b", 5, 1}},
		"beyond the end":           {{"a", 5000, 10}},
		"id of 4 bytes":            {{"abcd", 0, 1}},
		"id beyond ASCII":          {{"画像", 1, 64}},
		"long record":              {{string(make([]byte, 1500)), 0, 96}, {"x", 40, 1}},
	}
	for _, name := range sortedKeys(media) {
		add("media: "+name, vector{BlockTokens: 16, Scope: full, Rule: long, Media: media[name]})
		add("media, blocks of 512: "+name, vector{BlockTokens: 512, Rule: &tokenRule{Count: 1100, First: 1, Step: 3}, Media: media[name]})
	}
	add("media, continued", vector{BlockTokens: 16, Rule: long, Parent: "fedcba9876543210", Media: []mediaRow{{"img", -5, 8}}})

	text := base64.StdEncoding.EncodeToString([]byte("You are a helpful assistant. Answer in one sentence: why is the sky blue? Grüße."))
	for _, n := range []int{1, 4, 16, 17} {
		add(fmt.Sprintf("bytes, block of %d", n), vector{BlockTokens: n, Scope: full, Bytes: text})
	}
	add("bytes with media", vector{BlockTokens: 4, Scope: full, Bytes: text, Media: []mediaRow{{"img", 20, 13}}})

	add("dynamo", vector{Scheme: block.SchemeDynamo, BlockTokens: 4, Tokens: eight})
	add("dynamo, model and revision left out", vector{Scheme: block.SchemeDynamo, BlockTokens: 4, Scope: map[string]string{"model": "m", "revision": "r"}, Tokens: eight})
	add("dynamo, blocks of 16", vector{Scheme: block.SchemeDynamo, BlockTokens: 16, Rule: long})
	add("dynamo, blocks of 512", vector{Scheme: block.SchemeDynamo, BlockTokens: 512, Rule: &tokenRule{Count: 1100, First: 1, Step: 3}})
	add("dynamo, continued", vector{Scheme: block.SchemeDynamo, BlockTokens: 16, Rule: long, Parent: "0123456789abcdef"})
	add("dynamo, media", vector{Scheme: block.SchemeDynamo, BlockTokens: 16, Rule: long, Media: []mediaRow{{"img-1", 10, 30}}})
	add("dynamo, bytes", vector{Scheme: block.SchemeDynamo, BlockTokens: 4, Bytes: text, Media: []mediaRow{{"img", 20, 13}}})
	return vs
}

func sortedKeys(m map[string][]mediaRow) []string { return slices.Sorted(maps.Keys(m)) }

// The committed file is what other languages check themselves by; it changes
// only with the scheme's name.
func TestVectors(t *testing.T) {
	path := filepath.Join("testdata", vectorsFile)
	if *update {
		vs := vectorInputs()
		for i := range vs {
			vs[i].fill(t)
		}
		out, err := json.MarshalIndent(vs, "", " ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(out, '\n'), 0o644))
	}
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var vs []vector
	require.NoError(t, json.Unmarshal(raw, &vs))
	require.Len(t, vs, len(vectorInputs()))
	for _, v := range vs {
		want := v
		v.fill(t)
		require.Equal(t, want, v, want.Name)
	}
}
