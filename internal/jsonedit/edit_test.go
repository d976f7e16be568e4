package jsonedit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stator-go/stator/internal/jsonedit"
)

func TestGet(t *testing.T) {
	for _, tc := range []struct{ in, name, want string }{
		{`{"a":1}`, "a", "1"},
		{` { "b" : [1, 2] , "a" : {"x":"}"} } `, "a", `{"x":"}"}`},
		{`{"a":1,"a":2}`, "a", "2"},
		{`{"\u0061":9007199254740993}`, "a", "9007199254740993"},
		{`{"a\/b":true}`, "a/b", "true"},
		{`{"\ud83d\ude00":null}`, "😀", "null"},
	} {
		v, ok, err := jsonedit.Get([]byte(tc.in), tc.name)
		require.NoError(t, err, tc.in)
		require.True(t, ok, tc.in)
		require.Equal(t, tc.want, string(v), tc.in)
	}
	_, ok, err := jsonedit.Get([]byte(`{"ab":1}`), "a")
	require.NoError(t, err)
	require.False(t, ok)
}

func TestSet(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{}`, `{"k":0}`},
		{` { } `, ` { "k":0} `},
		{`{"a":1}`, `{"a":1,"k":0}`},
		{`{"a" : 1 , "k" : [ 7 ], "z":2 }`, `{"a" : 1, "k" : 0, "z":2 }`},
		{`{"k":1,"a":12345678901234567890,"\u006b":2}`, `{"a":12345678901234567890,"\u006b":0}`},
	} {
		got, err := jsonedit.Set([]byte("x"), []byte(tc.in), "k", []byte("0"))
		require.NoError(t, err, tc.in)
		require.Equal(t, "x"+tc.want, string(got), tc.in)
	}
}

func TestDelete(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{}`, `{}`},
		{`{"k":1}`, `{}`},
		{`{"k":1,"a":2}`, `{"a":2}`},
		{`{"a":2, "k":{"k":[]}}`, `{"a":2}`},
		{`{"k":1, "a":2, "k":3, "b":{"k":4},"j":5}`, `{ "a":2, "b":{"k":4}}`},
		{"{\n \"a\": 1.50e+3,\n \"k\": 2,\n \"b\": 3\n}\n", "{\n \"a\": 1.50e+3,\n \"b\": 3\n}\n"},
	} {
		got, err := jsonedit.Delete(nil, []byte(tc.in), "k", "j")
		require.NoError(t, err, tc.in)
		require.Equal(t, tc.want, string(got), tc.in)
	}
}

func TestErrorsNameTheOffset(t *testing.T) {
	deep := strings.Repeat("[", jsonedit.MaxDepth+1) + strings.Repeat("]", jsonedit.MaxDepth+1)
	for _, tc := range []struct {
		in  string
		off int
	}{
		{``, 0}, {`[]`, 0}, {`"a"`, 0}, {`{`, 1}, {`{"a"}`, 4}, {`{"a":}`, 5}, {`{"a":1,}`, 7},
		{`{a:1}`, 1}, {`{"a":1 "b":2}`, 7}, {`{"a":01}`, 5}, {`{"a":NaN}`, 5}, {`{"a":1}x`, 7},
		{`{"a":"\x"}`, 6}, {"{\"a\":\"\n\"}", 6}, {`{"a":"\u12g4"}`, 6}, {`{"a":tru}`, 5},
		{`{"a":1.}`, 5}, {`{"a":-}`, 5}, {`{"a":1e}`, 5}, {`{"a":[1,]}`, 8}, {`{"a":[1,2}`, 9},
		{"\xef\xbb\xbf{}", 0}, {`{"a":"unfinished`, 5}, {`{"a":` + deep + `}`, 5 + jsonedit.MaxDepth - 1},
		{`{"a":{"b":1,}}`, 12}, {`{"a":[12`, 8}, {`{"a":[-]}`, 6}, {`{"a":{"b" 1}}`, 10},
	} {
		_, _, err := jsonedit.Get([]byte(tc.in), "zz")
		var s *jsonedit.SyntaxError
		require.True(t, errors.As(err, &s), "%q: %v", tc.in, err)
		require.Equal(t, tc.off, s.Offset, "%q: %v", tc.in, err)
		_, err = jsonedit.Set(nil, []byte(tc.in), "k", []byte("1"))
		require.Error(t, err, tc.in)
		_, err = jsonedit.Delete(nil, []byte(tc.in), "k")
		require.Error(t, err, tc.in)
	}
	ok := strings.Repeat("[", jsonedit.MaxDepth-1) + strings.Repeat("]", jsonedit.MaxDepth-1)
	_, _, err := jsonedit.Get([]byte(`{"a":`+ok+`}`), "a")
	require.NoError(t, err)
}

func TestUint32s(t *testing.T) {
	got, err := jsonedit.AppendUint32s([]uint32{7}, []byte(` [ 0, 12 ,4294967295 ] `))
	require.NoError(t, err)
	require.Equal(t, []uint32{7, 0, 12, 4294967295}, got)
	for _, tc := range []struct {
		in  string
		off int
	}{{`[4294967296]`, 1}, {`[1,-1]`, 3}, {`[1.5]`, 1}, {`["a"]`, 1}, {`[1,[2]]`, 3}, {`[01]`, 1}, {`[1e3]`, 1}, {`[99999999999999999999999]`, 1}} {
		got, err := jsonedit.AppendUint32s(nil, []byte(tc.in))
		var s *jsonedit.SyntaxError
		require.True(t, errors.As(err, &s), tc.in)
		require.Equal(t, tc.off, s.Offset, tc.in)
		require.Empty(t, got)
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		`"plain"`: "plain", `"a\"\\\/\b\f\n\r\t"`: "a\"\\/\b\f\n\r\t", `"\u00e9\ud83d\ude00"`: "é😀",
		`"\ud800x"`: "\ufffdx", `"\ud800\u0041"`: "\ufffdA", `""`: "",
	} {
		got, ok := jsonedit.Text([]byte(in))
		require.True(t, ok)
		require.Equal(t, want, got, in)
		app, ok := jsonedit.AppendText([]byte("<"), []byte(in))
		require.True(t, ok)
		require.Equal(t, "<"+want, string(app))
		require.True(t, jsonedit.Equal([]byte(in[1:len(in)-1]), want), in)
		require.False(t, jsonedit.Equal([]byte(in[1:len(in)-1]), want+"x"), in)
	}
	_, ok := jsonedit.Text([]byte("12"))
	require.False(t, ok)
}

func TestInt(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "-7": -7, "123456789012345678": 123456789012345678, "9223372036854775807": 9223372036854775807} {
		got, ok := jsonedit.Int([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "-", "1.0", "1e3", `"1"`, "9223372036854775808", "null", "1 "} {
		_, ok := jsonedit.Int([]byte(in))
		require.False(t, ok, in)
	}
}

// doc draws an object as a list of members, so that duplicates and order count.
func doc(t *rapid.T) (text string, names []string, values []any) {
	var b strings.Builder
	b.WriteString(rapid.SampledFrom([]string{"{", " {\n", "{ "}).Draw(t, "open"))
	n := rapid.IntRange(0, 6).Draw(t, "n")
	for i := range n {
		name := rapid.SampledFrom([]string{"k", "a", "b\"", "ü", "kk", ""}).Draw(t, "name")
		value := rapid.SampledFrom([]any{nil, true, "x\n", 1.5, []any{1.0, "k"}, map[string]any{"k": 2.0}}).Draw(t, "value")
		enc, _ := json.Marshal(value)
		key, _ := json.Marshal(name)
		if name == "k" && rapid.Bool().Draw(t, "escaped") {
			key = []byte(`"\u006B"`)
		}
		if i > 0 {
			b.WriteString(rapid.SampledFrom([]string{",", " ,", ", ", "\n,\n"}).Draw(t, "comma"))
		}
		b.Write(key)
		b.WriteString(rapid.SampledFrom([]string{":", " : "}).Draw(t, "colon"))
		b.Write(enc)
		names, values = append(names, name), append(values, value)
	}
	b.WriteString(rapid.SampledFrom([]string{"}", " } ", "\n}\n"}).Draw(t, "close"))
	return b.String(), names, values
}

// members decodes an object into its members in order, with the standard library.
func members(t require.TestingT, data []byte) (names []string, values []any) {
	d := json.NewDecoder(bytes.NewReader(data))
	_, err := d.Token()
	require.NoError(t, err)
	for d.More() {
		k, err := d.Token()
		require.NoError(t, err)
		var v any
		require.NoError(t, d.Decode(&v))
		names, values = append(names, k.(string)), append(values, v)
	}
	return names, values
}

func TestEditsAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, names, values := doc(t)
		out, err := jsonedit.Delete(nil, []byte(text), "k")
		require.NoError(t, err, text)
		var wantN []string
		var wantV []any
		for i, n := range names {
			if n != "k" {
				wantN, wantV = append(wantN, n), append(wantV, values[i])
			}
		}
		gotN, gotV := members(t, out)
		require.Equal(t, wantN, gotN, text)
		require.Equal(t, wantV, gotV, text)

		out, err = jsonedit.Set(nil, []byte(text), "k", []byte("7"))
		require.NoError(t, err, text)
		last := -1
		for i, n := range names {
			if n == "k" {
				last = i
			}
		}
		wantN, wantV = nil, nil
		for i, n := range names {
			switch {
			case n != "k":
				wantN, wantV = append(wantN, n), append(wantV, values[i])
			case i == last:
				wantN, wantV = append(wantN, n), append(wantV, 7.0)
			}
		}
		if last < 0 {
			wantN, wantV = append(wantN, "k"), append(wantV, 7.0)
		}
		gotN, gotV = members(t, out)
		require.Equal(t, wantN, gotN, text)
		require.Equal(t, wantV, gotV, text)
	})
}

func TestNothingIsAllocated(t *testing.T) {
	data := []byte(`{"model":"m","prompt":[1,2,3,4,5,6],"\u006b":"v","n":2}`)
	ids := make([]uint32, 0, 16)
	got := testing.AllocsPerRun(200, func() {
		f := jsonedit.Object(data)
		for f.Next() {
			if f.Is("prompt") {
				ids, _ = jsonedit.AppendUint32s(ids[:0], f.Value)
			}
			if f.Is("n") {
				jsonedit.Int(f.Value)
			}
		}
	})
	require.Zero(t, got)
	require.Len(t, ids, 6)
}

// FuzzJSONEdit holds the scanner to the standard library's idea of JSON and the
// edits to a decoded model.
func FuzzJSONEdit(f *testing.F) {
	for _, s := range []string{`{}`, `{"k":1,"a":[1,2,{"k":null}],"\u006b":"\ud83d\ude00"}`, ` { "a" : -0.5e-7 , "k" : "\\" } `,
		`{"a":1,}`, `{"k":[`, `[1]`, `{"a":01}`, `{"a":"` + "\x00" + `"}`, `{"k" :true,"k":false}`, "{\"\xff\":1}", `{"":1e700}`, `{"a":[10,20 ,30],"k":[1,2`} {
		f.Add([]byte(s), "k")
	}
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		if jsonedit.Check(data) == nil != json.Valid(data) && strings.Count(string(data), "[")+strings.Count(string(data), "{") <= jsonedit.MaxDepth {
			t.Fatalf("Check says %v, encoding/json %v: %q", jsonedit.Check(data), json.Valid(data), data)
		}
		it := jsonedit.Object(data)
		for it.Next() {
			if !bytes.Equal(it.Value, data[it.ValueStart:it.End]) {
				t.Fatal("offsets differ from value")
			}
		}
		if it.Err() != nil {
			return
		}
		deleted, err := jsonedit.Delete(nil, data, name)
		if err != nil || !json.Valid(deleted) {
			t.Fatalf("delete: %v %q from %q", err, deleted, data)
		}
		if _, ok, _ := jsonedit.Get(deleted, name); ok {
			t.Fatalf("%q still in %q", name, deleted)
		}
		set, err := jsonedit.Set(nil, data, name, []byte(`[1]`))
		if err != nil || !json.Valid(set) {
			t.Fatalf("set: %v %q", err, set)
		}
		if v, ok, err := jsonedit.Get(set, strings.ToValidUTF8(name, "\ufffd")); err != nil || (ok && string(v) != `[1]`) {
			t.Fatalf("get after set: %q %v %v", v, ok, err)
		}
		same, err := jsonedit.DeleteFunc(nil, data, func(*jsonedit.Fields) bool { return false })
		if err != nil || !reflect.DeepEqual(decode(t, same), decode(t, data)) {
			t.Fatalf("an edit that keeps all changed %q to %q", data, same)
		}
	})
}

// decode reads JSON without limits of its own on numbers: 1e700 is valid.
func decode(t *testing.T, data []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %q", err, data)
	}
	return v
}

func BenchmarkObject(b *testing.B) {
	var ids []byte
	for i := range 100_000 {
		ids = fmt.Appendf(ids, "%d,", i)
	}
	chunk := []byte(`{"id":"cmpl-ab06a9745b7fe5c2","object":"text_completion","created":1795964210,"model":"tiny","choices":[{"index":0,"text":" over","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[585]}]}`)
	for name, data := range map[string][]byte{
		"ids=100000": []byte(`{"model":"m","prompt":[` + string(ids[:len(ids)-1]) + `]}`),
		"text=64KiB": []byte(`{"model":"m","prompt":"` + strings.Repeat("lorem ipsum dolor sit ", 2979) + `"}`),
		"chunk":      chunk,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				f := jsonedit.Object(data)
				for f.Next() {
				}
			}
		})
	}
}

func ExampleDelete() {
	body := []byte(`{"model":"m","kv_transfer_params":{"do_remote_prefill":true},"seed":12345678901234567890}`)
	out, err := jsonedit.Delete(nil, body, "kv_transfer_params")
	fmt.Println(string(out), err)
	// Output: {"model":"m","seed":12345678901234567890} <nil>
}

func ExampleObject() {
	f := jsonedit.Object([]byte(`{"n":2,"stop":["a"]}`))
	for f.Next() {
		fmt.Println(string(f.Key), string(f.Value))
	}
	fmt.Println(f.Err())
	// Output:
	// n 2
	// stop ["a"]
	// <nil>
}
