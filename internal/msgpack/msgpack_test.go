package msgpack

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

func TestForms(t *testing.T) {
	// one value of every format of the specification
	for in, kind := range map[string]Kind{
		"00": Int, "7f": Int, "e0": Int, "ff": Int,
		"ccff": Int, "cd0102": Int, "ce01020304": Int, "cf0102030405060708": Int,
		"d080": Int, "d18000": Int, "d280000000": Int, "d38000000000000000": Int,
		"c0": Nil, "c2": Bool, "c3": Bool,
		"ca3f800000": Float, "cb3ff0000000000000": Float,
		"a0": Str, "a161": Str, "d90161": Str, "da000161": Str, "db0000000161": Str,
		"c40161": Bin, "c5000161": Bin, "c60000000161": Bin,
		"90": Array, "9101": Array, "dc000101": Array, "dd0000000101": Array,
		"80": Map, "810102": Map, "de00010102": Map, "df000000010102": Map,
		"c7010561": Ext, "c800010561": Ext, "c9000000010561": Ext,
		"d40561": Ext, "d5056162": Ext, "d60561626364": Ext, "d7056162636465666768": Ext,
		"d80561626364656667686162636465666768": Ext,
	} {
		b := unhex(t, in)
		var r Reader
		r.Reset(append(bytes.Clone(b), 0xc0))
		require.Equal(t, kind, r.Kind(), in)
		require.NoError(t, r.Skip(), in)
		require.True(t, r.Nil(), in)
		require.Equal(t, End, r.Kind())
		// every cut is noticed
		for n := range len(b) {
			r.Reset(b[:n])
			require.ErrorIs(t, r.Skip(), ErrTruncated, "%s cut at %d", in, n)
			require.Zero(t, r.Offset())
		}
		// every other typed read refuses and consumes nothing
		r.Reset(b)
		for k, read := range map[Kind]func() error{
			Bool:  func() error { _, err := r.Bool(); return err },
			Str:   func() error { _, err := r.Str(); return err },
			Bin:   func() error { _, err := r.Bin(); return err },
			Array: func() error { _, err := r.Array(); return err },
			Map:   func() error { _, err := r.Map(); return err },
		} {
			if k != kind {
				require.ErrorIs(t, read(), ErrType, in)
				require.Zero(t, r.Offset())
			}
		}
		if kind != Int {
			_, _, err := r.Bits()
			require.ErrorIs(t, err, ErrType, in)
			require.Zero(t, r.Offset())
		}
	}
}

func TestInvalid(t *testing.T) {
	var r Reader
	for _, in := range []string{"c1", "91c1", "8101c1"} {
		r.Reset(unhex(t, in))
		require.ErrorIs(t, r.Skip(), ErrInvalid)
	}
	r.Reset(unhex(t, "c1"))
	_, err := r.Bool()
	require.ErrorIs(t, err, ErrInvalid)
	// lengths far beyond the input
	for _, in := range []string{"ddffffffff", "dfffffffff", "dbffffffff", "c6ffffffff", "c9ffffffff", "df7fffffff01"} {
		r.Reset(unhex(t, in))
		require.ErrorIs(t, r.Skip(), ErrTruncated, in)
	}
	r.Reset(unhex(t, "ddffffffff"))
	_, err = r.Array()
	require.ErrorIs(t, err, ErrTruncated)
	r.Reset(unhex(t, "df8000000101"))
	_, err = r.Map()
	require.ErrorIs(t, err, ErrTruncated)
}

// TestDeep: nesting takes no memory and no stack.
func TestDeep(t *testing.T) {
	b := append(bytes.Repeat([]byte{0x91}, 1<<20), 0xc0)
	var r Reader
	r.Reset(b)
	require.NoError(t, r.Skip())
	require.Zero(t, r.Left())
	r.Reset(b[:1<<20])
	require.ErrorIs(t, r.Skip(), ErrTruncated)
}

func TestNumbers(t *testing.T) {
	for in, want := range map[string]float64{
		"00": 0, "7f": 127, "e0": -32, "ff": -1, "ccff": 255, "d080": -128, "d18000": -32768,
		"ca3fc00000": 1.5, "cb3ff8000000000000": 1.5, "d07f": 127, "cfffffffffffffffff": math.MaxUint64,
	} {
		var r Reader
		r.Reset(unhex(t, in))
		v, err := r.Float()
		require.NoError(t, err)
		require.Equal(t, want, v, in)
	}
	var r Reader
	r.Reset(unhex(t, "cfffffffffffffffff"))
	_, err := r.Int()
	require.ErrorIs(t, err, ErrType)
	require.Zero(t, r.Offset())
	v, neg, err := r.Bits()
	require.NoError(t, err)
	require.False(t, neg)
	require.Equal(t, uint64(math.MaxUint64), v)
}

func TestUint32s(t *testing.T) {
	var b []byte
	want := []uint32{0, 127, 128, 255, 256, 65535, 65536, math.MaxUint32}
	for _, v := range want {
		b = AppendUint(b, uint64(v))
	}
	b = append(b, 0xd1, 0x01, 0x00) // 256 as a signed number
	var r Reader
	r.Reset(b)
	got, err := r.Uint32s(nil, len(want)+1)
	require.NoError(t, err)
	require.Equal(t, append(want, 256), got)
	for n := range len(b) {
		r.Reset(b[:n])
		got, err = r.Uint32s(got[:1], len(want)+1)
		require.ErrorIs(t, err, ErrTruncated)
		require.Len(t, got, 1)
		require.Zero(t, r.Offset())
	}
	for _, in := range []string{"ff", "cf0000000100000000", "c3", "a131", "cb3ff0000000000000"} {
		r.Reset(unhex(t, "01"+in))
		_, err = r.Uint32s(nil, 2)
		require.ErrorIs(t, err, ErrType, in)
		require.Zero(t, r.Offset())
	}
}

// TestRoundTrip writes random trees and reads them back.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b []byte
		var check []func(r *Reader)
		var value func(depth int)
		value = func(depth int) {
			kind := rapid.IntRange(0, 6+2*min(depth, 1)).Draw(t, "kind")
			switch kind {
			case 0:
				b = AppendNil(b)
				check = append(check, func(r *Reader) { require.True(t, r.Nil()) })
			case 1:
				v := rapid.Bool().Draw(t, "bool")
				b = AppendBool(b, v)
				check = append(check, func(r *Reader) {
					got, err := r.Bool()
					require.NoError(t, err)
					require.Equal(t, v, got)
				})
			case 2:
				v := rapid.Int64().Draw(t, "int")
				b = AppendInt(b, v)
				check = append(check, func(r *Reader) {
					got, err := r.Int()
					require.NoError(t, err)
					require.Equal(t, v, got)
				})
			case 3:
				v := rapid.Uint64().Draw(t, "uint")
				b = AppendUint(b, v)
				check = append(check, func(r *Reader) {
					got, neg, err := r.Bits()
					require.NoError(t, err)
					require.False(t, neg)
					require.Equal(t, v, got)
				})
			case 4:
				v := rapid.Float64().Draw(t, "float")
				b = AppendFloat(b, v)
				check = append(check, func(r *Reader) {
					got, err := r.Float()
					require.NoError(t, err)
					require.Equal(t, math.Float64bits(v), math.Float64bits(got))
				})
			case 5, 6:
				n := rapid.SampledFrom([]int{0, 1, 31, 32, 255, 256, 65535, 65536}).Draw(t, "len")
				v := strings.Repeat("x", n)
				if kind == 5 {
					b = AppendStr(b, v)
				} else {
					b = AppendBin(b, []byte(v))
				}
				check = append(check, func(r *Reader) {
					read := r.Str
					if kind == 6 {
						read = r.Bin
					}
					got, err := read()
					require.NoError(t, err)
					require.Equal(t, v, string(got))
				})
			default:
				n := rapid.SampledFrom([]int{0, 1, 3, 15, 16, 17}).Draw(t, "n")
				head, fill := AppendArray, n
				if kind == 8 {
					head, fill = AppendMap, 2*n
				}
				b = head(b, n)
				check = append(check, func(r *Reader) {
					read := r.Array
					if kind == 8 {
						read = r.Map
					}
					got, err := read()
					require.NoError(t, err)
					require.Equal(t, n, got)
				})
				for range fill {
					value(depth - 1)
				}
			}
		}
		value(2)
		var r Reader
		r.Reset(b)
		require.NoError(t, r.Skip())
		require.Zero(t, r.Left())
		r.Reset(b)
		for _, c := range check {
			c(&r)
		}
		require.Zero(t, r.Left())
	})
}

func TestLongHeads(t *testing.T) {
	require.Equal(t, "dd00010000", hex.EncodeToString(AppendArray(nil, 65536)))
	require.Equal(t, "df00010000", hex.EncodeToString(AppendMap(nil, 65536)))
	require.Equal(t, "dc0010", hex.EncodeToString(AppendArray(nil, 16)))
	require.Equal(t, "8f", hex.EncodeToString(AppendMap(nil, 15)))
}

func FuzzSkip(f *testing.F) {
	f.Add(unhex(f, "93cb41d954fc400000009181a474797065b0416c6c426c6f636b73436c656172656400"))
	f.Add(unhex(f, "ddffffffff"))
	f.Add(unhex(f, "c7ff"))
	f.Add(unhex(f, "df00000001c1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Reader
		r.Reset(b)
		for r.Left() > 0 {
			before := r.Offset()
			if r.Skip() != nil {
				if r.Offset() != before {
					t.Fatal("a failed skip moved")
				}
				break
			}
			if r.Offset() <= before || r.Offset() > len(b) {
				t.Fatal("bad position")
			}
		}
		for n := range 5 {
			r.Reset(b)
			_, _ = r.Uint32s(nil, n)
			_, _ = r.Float()
			_, _ = r.Str()
			_, _ = r.Array()
		}
	})
}
