package jsonedit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/internal/jsonedit"
)

func TestArray(t *testing.T) {
	in := ` [ 1, "a,]" ,{"b":[2]},[] , null ] `
	e := jsonedit.Array([]byte(in))
	var got []string
	for e.Next() {
		got = append(got, string(e.Value))
		require.Equal(t, string(e.Value), in[e.Start:e.Start+len(e.Value)])
		require.Equal(t, len(got) == 5, e.Last())
	}
	require.NoError(t, e.Err())
	require.Equal(t, []string{"1", `"a,]"`, `{"b":[2]}`, "[]", "null"}, got)
	require.False(t, e.Next())

	e = jsonedit.Array([]byte("[]"))
	require.False(t, e.Next())
	require.NoError(t, e.Err())
	for in, off := range map[string]int{"{}": 0, "": 0, "[": 1, "[1": 2, "[1 2]": 3, "[1,]": 3, "[1]x": 3, "[nul]": 1, "[1,": 3} {
		e := jsonedit.Array([]byte(in))
		for e.Next() {
		}
		var s *jsonedit.SyntaxError
		require.True(t, errors.As(e.Err(), &s), in)
		require.Equal(t, off, s.Offset, in)
	}
}

// An iteration that was copied goes on from where it was.
func TestIterationsAreValues(t *testing.T) {
	f := jsonedit.Object([]byte(`{"a":1,"b":2,"c":3}`))
	require.True(t, f.Next())
	again := f
	require.True(t, f.Next())
	require.True(t, f.Next())
	require.Equal(t, "c", string(f.Key))
	require.True(t, again.Next())
	require.Equal(t, "b", string(again.Key))
}

func TestEdit(t *testing.T) {
	in := `{ "a" : 1, "b":{"x":1},"c":[1] }`
	got, err := jsonedit.Edit([]byte(">"), []byte(in), func(f *jsonedit.Fields) ([]byte, bool) {
		switch string(f.Key) {
		case "a":
			return nil, false
		case "b":
			return []byte(`"new"`), true
		}
		return f.Value, true
	})
	require.NoError(t, err)
	require.Equal(t, `>{ "b":"new","c":[1] }`, string(got))
	got, err = jsonedit.Edit([]byte(">"), []byte(`{"a":1,"b"}`), func(f *jsonedit.Fields) ([]byte, bool) { return f.Value, true })
	require.Error(t, err)
	require.Equal(t, ">", string(got), "an error leaves the buffer as it was")
}

func TestKinds(t *testing.T) {
	for in, want := range map[string]jsonedit.Kind{
		"": jsonedit.Invalid, "null": jsonedit.Null, "true": jsonedit.Bool, "false": jsonedit.Bool, "-1": jsonedit.Number,
		"0": jsonedit.Number, `"x"`: jsonedit.String, "[1]": jsonedit.ArrayKind, "{}": jsonedit.ObjectKind, "x": jsonedit.Invalid,
	} {
		require.Equal(t, want, jsonedit.KindOf([]byte(in)), in)
	}
	require.True(t, jsonedit.True([]byte("true")))
	require.False(t, jsonedit.True([]byte("false")))
}

func TestNames(t *testing.T) {
	for raw, want := range map[string]string{"plain": "plain", `\u006bv`: "kv", `a\"b`: `a"b`, "ü": "ü", `\ud83d\ude00`: "😀"} {
		require.Equal(t, want, jsonedit.Name([]byte(raw)))
		require.Equal(t, ">"+want, string(jsonedit.AppendName([]byte(">"), []byte(raw))))
	}
	// Inputs that no checked string contains are taken without a panic.
	for _, raw := range []string{`\`, `\u`, `\u12`, `\ud800\u`, `a\`} {
		jsonedit.Name([]byte(raw))
		jsonedit.Equal([]byte(raw), "a")
	}
}

func TestQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"plain": `"plain"`, "a\"b\\c": `"a\"b\\c"`, "\n\r\t\x00\x1f": `"\n\r\t\u0000\u001f"`, "é😀": `"é😀"`, "\xff": "\"\ufffd\"",
	} {
		got := jsonedit.AppendQuoted(nil, in)
		require.Equal(t, want, string(got))
		back, ok := jsonedit.Text(got)
		require.True(t, ok)
		require.Equal(t, strings.ToValidUTF8(in, "\ufffd"), back)
	}
}

func TestCheck(t *testing.T) {
	require.NoError(t, jsonedit.Check([]byte(" [1] ")))
	require.ErrorContains(t, jsonedit.Check([]byte("[1] 2")), "offset 4")
	require.Error(t, jsonedit.Check(nil))
}

func ExampleSet() {
	out, err := jsonedit.Set(nil, []byte(`{"n":1, "stream":false}`), "stream", []byte("true"))
	fmt.Println(string(out), err)
	// Output: {"n":1, "stream":true} <nil>
}
