package promtext

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// dump lists what a scanner sees, with the labels a and b.
func dump(text string) string {
	var s Scanner
	s.Reset([]byte(text))
	var out strings.Builder
	for s.Next() {
		fmt.Fprintf(&out, "%s", s.Name())
		for _, l := range []string{"a", "b"} {
			if v, ok := s.Label(l); ok {
				fmt.Fprintf(&out, " %s=%q", l, v)
			}
		}
		if v, ok := s.Value(); ok {
			fmt.Fprintf(&out, " %v\n", v)
		} else {
			out.WriteString(" bad\n")
		}
	}
	if n := s.Malformed(); n > 0 {
		fmt.Fprintf(&out, "malformed %d\n", n)
	}
	return out.String()
}

func TestScan(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "up 1\n", "up 1\n"},
		{"no newline at the end", "up 1", "up 1\n"},
		{"carriage return", "up 1\r\ndown 2\r\n", "up 1\ndown 2\n"},
		{"comments and blank lines", "# HELP up x\n# TYPE up gauge\n\n  \n up\t 1 \n#\n", "up 1\n"},
		{"colon in the name", `vllm:kv_cache_usage_perc{a="0",b="m"} 0.46875`, "vllm:kv_cache_usage_perc a=\"0\" b=\"m\" 0.46875\n"},
		{"spaces everywhere", "x { a = \"1\" , b = \"2\" , } 3", "x a=\"1\" b=\"2\" 3\n"},
		{"no space before the value", `x{a="1"}3`, "x a=\"1\" 3\n"},
		{"empty labels", "x{} 3", "x 3\n"},
		{"escapes", `x{a="q\"b\\n\nt\t"} 3`, "x a=\"q\\\"b\\\\n\\nt\\\\t\" 3\n"},
		{"brace in a value", `x{a="}{,=",b="#"} 3`, "x a=\"}{,=\" b=\"#\" 3\n"},
		{"label name within another", `x{aa="1",a="2"} 3`, "x a=\"2\" 3\n"},
		{"empty value of a label", `x{a=""} 3`, "x a=\"\" 3\n"},
		{"time stamp", "x 3 1795964150840", "x 3\n"},
		{"exemplar", `x{a="1"} 3 # {trace="t"} 0.5`, "x a=\"1\" 3\n"},
		{"specials", "a +Inf\nb -Inf\nc NaN\nd nan\ne 1e400", "a +Inf\nb -Inf\nc NaN\nd NaN\ne +Inf\n"},
		{"unclosed labels", "x{a=\"1\" 3\ny 1", "x bad\ny 1\nmalformed 1\n"},
		{"unclosed string", "x{a=\"1} 3\ny 1", "x bad\ny 1\nmalformed 1\n"},
		{"no value", "x{a=\"1\"}\ny 1", "x bad\ny 1\nmalformed 1\n"},
		{"name only", "x\ny 1", "y 1\nmalformed 1\n"},
		{"value no number", "x three\nx 0x10\nx 1_0\nx .\nx -\nx 1e\nx e5\ny 1", "x bad\nx bad\nx bad\nx bad\nx bad\nx bad\nx bad\ny 1\nmalformed 7\n"},
		{"no name", "{a=\"1\"} 3\n1x 3\n\"q\" 3\ny 1", "y 1\nmalformed 3\n"},
		{"label without string", "x{a=1} 3", "x 3\n"},
		{"label without equals", "x{a} 3", "x 3\n"},
		{"long line", "x{a=\"" + strings.Repeat("y", maxLine) + "\"} 3\ny 1", "y 1\nmalformed 1\n"},
		{"html", "<html>\n<body>Not Found</body>\n</html>", "malformed 3\n"},
		{"empty", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) { require.Equal(t, tc.want, dump(tc.in)) })
	}
}

// TestDecimal: the short way gives what the long way gives.
func TestDecimal(t *testing.T) {
	for _, in := range []string{"0", "-0", "0.0", "00012", "2.5e3", "1e-7", "1E+2", "5.", ".5", "123456789012345", "0.1", "1e22", "9e-22"} {
		got, ok := decimal([]byte(in))
		want, err := strconv.ParseFloat(in, 64)
		require.NoError(t, err)
		require.True(t, ok, in)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), in)
	}
	for _, in := range []string{"", "+", "1234567890123456", "1e23", "e1", "1e1e1", "1..2", "Inf", "1e-", ".e1"} {
		_, ok := decimal([]byte(in))
		require.False(t, ok, in)
	}
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringMatching(`[-+]?[0-9]{0,9}(\.[0-9]{0,9})?(e[-+]?[0-9]{1,2})?`).Draw(t, "in")
		got, ok := decimal([]byte(in))
		if !ok {
			return
		}
		want, err := strconv.ParseFloat(in, 64)
		require.NoError(t, err, in)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), in)
	})
}

func TestAllocs(t *testing.T) {
	text := []byte("# HELP x\nx{a=\"1\",b=\"q\\\"\"} 0.46875\ny 12 5\nz{a=\"1\"} +Inf\n")
	var s Scanner
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s.Reset(text)
		for s.Next() {
			s.Label("b")
			if len(s.Name()) == 1 && s.Name()[0] != 'z' {
				s.Value()
			}
		}
	}))
}

func FuzzMetrics(f *testing.F) {
	f.Add("vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 2.0\n# c\nx 1e400 5\n")
	f.Add("x{a=\"\\\"\\n\\\\\",b=\"}\"} NaN # {t=\"1\"} 2")
	f.Add("x{a=\"1\nx{\nx}\n{")
	f.Fuzz(func(t *testing.T, text string) {
		var s Scanner
		s.Reset([]byte(text))
		n := 0
		for s.Next() {
			n++
			if len(s.Name()) == 0 {
				t.Fatal("sample without a name")
			}
			for _, l := range []string{"a", "b", "engine"} {
				if v, ok := s.Label(l); ok && len(v) > len(text) {
					t.Fatal("label longer than the text")
				}
			}
			before := s.Malformed()
			_, ok := s.Value()
			_, again := s.Value()
			if ok != again || ok && s.Malformed() != before {
				t.Fatal("asking changes the answer")
			}
		}
		if n+s.Malformed() > 2*(strings.Count(text, "\n")+1) {
			t.Fatal("more samples than lines")
		}
	})
}
