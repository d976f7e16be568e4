package block_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/stator-go/stator/kvindex/block"
)

func newHasher(t testing.TB, s block.Scope, n int) *block.Hasher {
	t.Helper()
	h, err := block.NewHasher(s, n, nil)
	require.NoError(t, err)
	return h
}

func seq(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i + 1)
	}
	return tokens
}

func TestNewHasherFaults(t *testing.T) {
	long := strings.Repeat("x", block.MaxField+1)
	for _, c := range []struct {
		name   string
		scope  block.Scope
		tokens int
		opts   *block.Options
		want   []error
		text   []string
	}{
		{"no tokens", block.Scope{}, 0, nil, []error{block.ErrBlockTokens}, []string{"65536"}},
		{"too many tokens", block.Scope{}, block.MaxBlockTokens + 1, nil, []error{block.ErrBlockTokens}, nil},
		{"scheme", block.Scope{}, 16, &block.Options{Scheme: "md5"}, []error{block.ErrScheme}, []string{`"md5"`}},
		{"field", block.Scope{Tenant: long}, 16, nil, []error{block.ErrScope}, []string{"Tenant", "65536"}},
		{"all at once", block.Scope{Adapter: long, Group: long}, -1, &block.Options{Scheme: "x"},
			[]error{block.ErrBlockTokens, block.ErrScheme, block.ErrScope}, []string{"Adapter", "Group"}},
		{"dynamo fields", block.Scope{Adapter: "a", Tenant: "t"}, 16, &block.Options{Scheme: block.SchemeDynamo},
			[]error{block.ErrScope}, []string{"Adapter", "Tenant"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := block.NewHasher(c.scope, c.tokens, c.opts)
			require.Nil(t, h)
			for _, w := range c.want {
				require.ErrorIs(t, err, w)
			}
			for _, s := range c.text {
				require.ErrorContains(t, err, s)
			}
		})
	}
	for _, n := range []int{1, block.MaxBlockTokens} {
		newHasher(t, block.Scope{Model: long[1:]}, n)
	}
}

func TestAccessors(t *testing.T) {
	s := block.Scope{Model: "m", Tenant: "t"}
	h := newHasher(t, s, 16)
	require.Equal(t, block.SchemeBLAKE3, h.Scheme())
	require.Equal(t, s, h.Scope())
	require.Equal(t, 16, h.BlockTokens())
	d, err := block.NewHasher(block.Scope{Model: "m"}, 16, &block.Options{Scheme: block.SchemeDynamo})
	require.NoError(t, err)
	m := newHasher(t, block.Scope{Model: "m"}, 16)
	require.Equal(t, m.Root(), d.Root())
	require.Equal(t, m.AppendKeys(nil, seq(40), nil), d.AppendKeys(nil, seq(40), nil), "keys depend on the scheme of hashes")
	require.NotEqual(t, m.Root(), h.Root())
}

// Every block size must give what the public keyed mode gives, block by block.
func TestAgainstPublicBLAKE3(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sizes := []int{1, 3, 15, 16, 17, 255, 256, 257, 511, 512, 513, 767, 768, 4096, 4097, 8192, 12_345, block.MaxBlockTokens}
	for _, n := range sizes {
		h := newHasher(t, block.Scope{Model: "m"}, n)
		tokens := make([]uint32, 2*n+n/2)
		for i := range tokens {
			tokens[i] = rnd.Uint32()
		}
		root := h.Root()
		key, hk := root, root
		var keys []block.Key
		var hashes []block.Hash
		for at := 0; at+n <= len(tokens); at += n {
			var msg []byte
			for _, v := range tokens[at : at+n] {
				msg = append(msg, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
			}
			key = sum(key, msg)
			keys = append(keys, key)
			d := sum(hk, msg)
			var v block.Hash
			hk = root
			for i := range 8 {
				v |= block.Hash(d[i]) << (8 * i)
				hk[i] ^= d[i]
			}
			hashes = append(hashes, v)
		}
		require.Equal(t, keys, h.AppendKeys(nil, tokens, nil), "keys, %d tokens", n)
		require.Equal(t, hashes, h.AppendHashes(nil, tokens, nil), "hashes, %d tokens", n)
	}
}

func sum(key block.Key, msg []byte) (out block.Key) {
	b := blake3.New(32, key[:])
	b.Write(msg)
	b.Sum(out[:0])
	return out
}

func TestWholeBlocksOnly(t *testing.T) {
	for _, n := range []int{1, 4, 16, 17} {
		h := newHasher(t, block.Scope{}, n)
		tokens := seq(5 * n)
		all := h.AppendHashes(nil, tokens, nil)
		require.Len(t, all, 5)
		for cut := range len(tokens) {
			require.Equal(t, len(all[:cut/n]), len(h.AppendHashes(nil, tokens[:cut], nil)))
			require.Equal(t, cut/n, len(h.AppendKeys(nil, tokens[:cut], nil)))
			require.True(t, slices.Equal(all[:cut/n], h.AppendHashes(nil, tokens[:cut], nil)))
		}
	}
	h := newHasher(t, block.Scope{}, 16)
	pre := []block.Hash{7}
	require.Equal(t, pre, h.AppendHashes(pre, seq(15), nil))
	require.Equal(t, block.Hash(7), h.AppendHashes(pre, seq(16), nil)[0], "what dst holds stays")
}

// Fault H1: fields must not run into each other.
func TestH1ScopesDoNotAlias(t *testing.T) {
	tokens := seq(64)
	scopes := []block.Scope{
		{}, {Model: "llama", Tenant: "-8b-tenantA"}, {Model: "llama-8b", Tenant: "-tenantA"},
		{Model: "llama-8b-tenantA"}, {Tenant: "llama-8b-tenantA"}, {Adapter: "llama-8b-tenantA"},
		{Revision: "llama-8b-tenantA"}, {Group: "llama-8b-tenantA"},
		{Model: "a\x02\x01\x00\x00\x00b"}, {Model: "a", Revision: "b"}, {Model: "ab"}, {Model: "b", Revision: "a"},
	}
	hashes, keys := map[block.Hash]int{}, map[block.Key]int{}
	for i, s := range scopes {
		h := newHasher(t, s, 16)
		for _, x := range h.AppendHashes(nil, tokens, nil) {
			if j, ok := hashes[x]; ok {
				t.Errorf("scopes %d and %d share a hash", i, j)
			}
			hashes[x] = i
		}
		for _, x := range h.AppendKeys(nil, tokens, nil) {
			if j, ok := keys[x]; ok {
				t.Errorf("scopes %d and %d share a key", i, j)
			}
			keys[x] = i
		}
	}
}

// Fault H3: base model and adapter are two entries whatever the engine's own
// hash says, and an empty adapter is the base model.
func TestH3AdapterApart(t *testing.T) {
	base := newHasher(t, block.Scope{Model: "m"}, 16).AppendHashes(nil, seq(64), nil)
	lora := newHasher(t, block.Scope{Model: "m", Adapter: "sql-lora"}, 16).AppendHashes(nil, seq(64), nil)
	none := newHasher(t, block.Scope{Model: "m", Adapter: ""}, 16).AppendHashes(nil, seq(64), nil)
	for i := range base {
		require.NotEqual(t, base[i], lora[i])
	}
	require.Equal(t, base, none)
}

// Fault H4: hashes of another scheme or block size are refused with an error
// and never just fail to match.
func TestH4MismatchIsAnError(t *testing.T) {
	ours := newHasher(t, block.Scope{}, 16)
	dyn, err := block.NewHasher(block.Scope{}, 16, &block.Options{Scheme: block.SchemeDynamo})
	require.NoError(t, err)
	got, err := ours.Accept(dyn.Name(dyn.AppendHashes(nil, seq(32), nil)))
	require.ErrorIs(t, err, block.ErrScheme)
	require.ErrorContains(t, err, "dynamo-xxh3-1337")
	require.Nil(t, got)
	_, err = ours.Accept(newHasher(t, block.Scope{}, 32).Name(nil))
	require.ErrorIs(t, err, block.ErrBlockTokens)
	require.NotErrorIs(t, err, block.ErrScheme)
	_, err = ours.Accept(block.Named{})
	require.ErrorIs(t, err, block.ErrScheme)
	chain := ours.AppendHashes(nil, seq(32), nil)
	got, err = ours.Accept(ours.Name(chain))
	require.NoError(t, err)
	require.Equal(t, chain, got)
}

// Fault H8: names depend on scope and tokens only. Two Hashers made apart agree,
// as those of an event's reader and a request's do, whatever seed the engine has.
func TestH8NoHiddenSeed(t *testing.T) {
	s := block.Scope{Model: "m", Adapter: "a", Tenant: "t"}
	require.Equal(t,
		newHasher(t, s, 16).AppendHashes(nil, seq(64), nil),
		newHasher(t, s, 16).AppendHashes(nil, seq(64), nil))
}

func TestOrderMatters(t *testing.T) {
	h := newHasher(t, block.Scope{}, 4)
	a := h.AppendHashes(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, nil)
	b := h.AppendHashes(nil, []uint32{5, 6, 7, 8, 1, 2, 3, 4}, nil)
	c := h.AppendHashes(nil, []uint32{1, 2, 3, 4, 1, 2, 3, 4}, nil)
	seen := map[block.Hash]bool{}
	for _, x := range []block.Hash{a[0], a[1], b[0], b[1], c[1]} {
		require.False(t, seen[x])
		seen[x] = true
	}
	require.Equal(t, a[0], c[0])
}

func TestBytesApartFromTokens(t *testing.T) {
	h := newHasher(t, block.Scope{Model: "m"}, 4)
	tokens := seq(8)
	var raw []byte
	for _, v := range tokens {
		raw = append(raw, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	a, b := h.AppendHashes(nil, tokens, nil), h.AppendBytes(nil, raw, nil)
	require.Len(t, b, 2)
	for i := range a {
		require.NotEqual(t, a[i], b[i])
	}
	require.Len(t, h.AppendBytes(nil, raw[:31], nil), 1)
	require.Equal(t, b[:1], h.AppendBytes(nil, raw[:16], nil))
}

func TestHostileMediaDoNotPanic(t *testing.T) {
	edge := []int{math.MinInt, math.MinInt + 1, -1, 0, 1, 15, 16, math.MaxInt - 1, math.MaxInt}
	for _, scheme := range []block.Scheme{block.SchemeBLAKE3, block.SchemeDynamo} {
		h, err := block.NewHasher(block.Scope{}, 16, &block.Options{Scheme: scheme})
		require.NoError(t, err)
		var all []block.Media
		for _, o := range edge {
			for _, l := range edge {
				m := []block.Media{{ID: "x", Offset: o, Length: l}}
				all = append(all, m...)
				require.Len(t, h.AppendHashes(nil, seq(48), m), 3)
				require.Len(t, h.AppendKeys(nil, seq(48), m), 3)
			}
		}
		require.Len(t, h.AppendHashes(nil, seq(48), all), 3)
	}
}

// An item that is longer than numbers go reaches to the end.
func TestEndlessMedia(t *testing.T) {
	h := newHasher(t, block.Scope{}, 16)
	require.Equal(t,
		h.AppendHashes(nil, seq(64), []block.Media{{ID: "x", Offset: 20, Length: 1000}}),
		h.AppendHashes(nil, seq(64), []block.Media{{ID: "x", Offset: 20, Length: math.MaxInt}}))
}

// Without a parent the number that stands in its place means nothing.
func TestNoParent(t *testing.T) {
	for _, scheme := range []block.Scheme{block.SchemeBLAKE3, block.SchemeDynamo} {
		h, err := block.NewHasher(block.Scope{}, 4, &block.Options{Scheme: scheme})
		require.NoError(t, err)
		require.Equal(t, h.AppendHashes(nil, seq(8), nil), h.Extend(nil, 99, false, seq(8), nil))
		require.NotEqual(t, h.AppendHashes(nil, seq(8), nil), h.Extend(nil, 99, true, seq(8), nil))
	}
}

func TestConcurrentUse(t *testing.T) {
	h := newHasher(t, block.Scope{Model: "m"}, 300)
	tokens, media := seq(1500), []block.Media{{ID: "a", Offset: 100, Length: 900}}
	want := h.AppendHashes(nil, tokens, media)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if !slices.Equal(want, h.AppendHashes(nil, tokens, media)) {
					t.Error("another goroutine's memory shows")
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestAllocations(t *testing.T) {
	media := []block.Media{{ID: "b", Offset: 40, Length: 90}, {ID: "a", Offset: 3, Length: 20}}
	dyn := &block.Options{Scheme: block.SchemeDynamo}
	for _, c := range []struct {
		name   string
		tokens int
		opts   *block.Options
		media  []block.Media
		pooled bool
	}{
		{"one compression", 16, nil, nil, false},
		{"size 1", 1, nil, nil, false},
		{"long block", 32, nil, nil, true},
		{"many chunks", 5000, nil, nil, true},
		{"media", 16, nil, media, true},
		{"dynamo", 16, dyn, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := block.NewHasher(block.Scope{Model: "m"}, c.tokens, c.opts)
			require.NoError(t, err)
			tokens, raw := seq(10*c.tokens), make([]byte, 40*c.tokens)
			hashes, keys := make([]block.Hash, 0, 10), make([]block.Key, 0, 10)
			for _, f := range []struct {
				name   string
				pooled bool
				call   func()
			}{
				{"AppendHashes", c.pooled, func() { hashes = h.AppendHashes(hashes[:0], tokens, c.media) }},
				{"Extend", c.pooled, func() { hashes = h.Extend(hashes[:0], 5, true, tokens, c.media) }},
				{"AppendKeys", c.pooled, func() { keys = h.AppendKeys(keys[:0], tokens, c.media) }},
				{"AppendBytes", true, func() { hashes = h.AppendBytes(hashes[:0], raw, c.media) }},
			} {
				n := testing.AllocsPerRun(100, f.call)
				if f.pooled && poolForgets {
					n = 0
				}
				if n != 0 {
					t.Errorf("%s allocates %v times", f.name, n)
				}
			}
		})
	}
}
