package block_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex/block"
)

func TestNamedForms(t *testing.T) {
	n := block.Named{Scheme: block.SchemeBLAKE3, BlockTokens: 16, Hashes: []block.Hash{1, 0xfedcba9876543210}}
	text, err := n.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "stator-blake3-1/16:0000000000000001,fedcba9876543210", string(text))
	js, err := json.Marshal(n)
	require.NoError(t, err)
	require.JSONEq(t, `{"scheme":"stator-blake3-1","block_tokens":16,"hashes":["0000000000000001","fedcba9876543210"]}`, string(js))
	for _, form := range []func(*block.Named) error{
		func(m *block.Named) error { return m.UnmarshalText(text) },
		func(m *block.Named) error { return json.Unmarshal(js, m) },
	} {
		var m block.Named
		require.NoError(t, form(&m))
		require.Equal(t, n, m)
	}
	empty := block.Named{Scheme: block.SchemeDynamo, BlockTokens: 1}
	text, err = empty.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "dynamo-xxh3-1337/1:", string(text))
	var m block.Named
	require.NoError(t, m.UnmarshalText(text))
	require.Equal(t, empty, m)
}

func TestNamedRefuses(t *testing.T) {
	before := block.Named{Scheme: block.SchemeDynamo, BlockTokens: 4, Hashes: []block.Hash{9}}
	for _, c := range []struct {
		text string
		want error
	}{
		{"", block.ErrMalformed},
		{"stator-blake3-1", block.ErrMalformed},
		{"stator-blake3-1:", block.ErrMalformed},
		{"stator-blake3-1/x:", block.ErrMalformed},
		{"stator-blake3-1/+16:", block.ErrMalformed},
		{"stator-blake3-1/016:", block.ErrMalformed},
		{"stator-blake3-1/16:1", block.ErrMalformed},
		{"stator-blake3-1/16:0000000000000001,", block.ErrMalformed},
		{"stator-blake3-1/16:000000000000000A", block.ErrMalformed},
		{"stator-blake3-1/16:00000000000000012", block.ErrMalformed},
		{"stator-blake3-1/0:", block.ErrBlockTokens},
		{"stator-blake3-1/65537:", block.ErrBlockTokens},
		{"stator-blake3-2/16:", block.ErrScheme},
		{"/16:", block.ErrScheme},
	} {
		m := before
		require.ErrorIs(t, m.UnmarshalText([]byte(c.text)), c.want, "%q", c.text)
		require.Equal(t, before, m)
	}
	for _, c := range []struct {
		js   string
		want error
	}{
		{`[]`, block.ErrMalformed},
		{`{"scheme":"stator-blake3-1","block_tokens":16,"hashes":[1]}`, block.ErrMalformed},
		{`{"scheme":"stator-blake3-1","block_tokens":16,"hashes":["1"]}`, block.ErrMalformed},
		{`{"scheme":"x","block_tokens":16}`, block.ErrScheme},
		{`{"block_tokens":16,"hashes":[]}`, block.ErrScheme},
		{`{"scheme":"stator-blake3-1","hashes":[]}`, block.ErrBlockTokens},
	} {
		m := before
		require.ErrorIs(t, m.UnmarshalJSON([]byte(c.js)), c.want, c.js)
		require.Equal(t, before, m)
	}
	_, err := block.Named{Scheme: "x", BlockTokens: 1}.MarshalText()
	require.ErrorIs(t, err, block.ErrScheme)
	_, err = json.Marshal(block.Named{Scheme: block.SchemeBLAKE3})
	require.ErrorIs(t, err, block.ErrBlockTokens)
}

// What is accepted must be written back as it was read (text), or so that it
// reads the same again (JSON, which has more than one spelling).
func FuzzNamed(f *testing.F) {
	for _, s := range []string{
		"stator-blake3-1/16:0000000000000001,fedcba9876543210",
		"dynamo-xxh3-1337/1:",
		"stator-blake3-1/16",
		`{"scheme":"stator-blake3-1","block_tokens":16,"hashes":["0000000000000001"]}`,
		`{"scheme":"dynamo-xxh3-1337","block_tokens":4,"hashes":null,"more":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var n block.Named
		if n.UnmarshalText(data) == nil {
			out, err := n.MarshalText()
			if err != nil || !bytes.Equal(out, data) {
				t.Fatalf("%q became %q, %v", data, out, err)
			}
		}
		if n.UnmarshalJSON(data) == nil {
			out, err := n.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var m block.Named
			if err := m.UnmarshalJSON(out); err != nil || m.Scheme != n.Scheme || len(m.Hashes) != len(n.Hashes) {
				t.Fatalf("%s: %v", out, err)
			}
		}
	})
}
