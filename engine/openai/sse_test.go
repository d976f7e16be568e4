package openai

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// readEvents reads a stream to its end.
func readEvents(r io.Reader, max int) (events []string, err error) {
	var s sse
	s.reset(r, max)
	for {
		data, err := s.next()
		if err != nil {
			return events, err
		}
		events = append(events, string(data))
	}
}

func TestEventStreams(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"no space", "data:a\n\ndata:  b\n\n", []string{"a", " b"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"mixed ends", "data: a\r\n\ndata: b\n\r\n", []string{"a", "b"}},
		{"several lines", "data: {\ndata: }\n\ndata: a\ndata:\ndata: b\n\n", []string{"{\n}", "a\n\nb"}},
		{"comments and fields", ": ping\n\nevent: x\nid: 1\nretry: 5\ndata: a\n: c\nfoo\n\n", []string{"a"}},
		{"other fields between", "data: a\nid: 4\ndata: b\n\n", []string{"a\nb"}},
		{"empty data", "data\n\ndata:\n\ndata\ndata\n\n", []string{"", "", "\n"}},
		{"stray blank lines", "\n\n\r\n\ndata: a\n\n\n\n", []string{"a"}},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []string{"a"}},
		{"cut event", "data: a\n\ndata: b\n", []string{"a"}},
		{"cut line", "data: a\n\ndata: b", []string{"a"}},
		{"last done without a blank line", "data: a\n\ndata: [DONE]\n", []string{"a", "[DONE]"}},
		{"a field called database", "database: x\n\n", nil},
		{"long", "data: " + strings.Repeat("x", 40_000) + "\n\ndata: y\n\n", []string{strings.Repeat("x", 40_000), "y"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, wrap := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader,
				"halves": iotest.HalfReader, "data with error": iotest.DataErrReader,
			} {
				got, err := readEvents(wrap(strings.NewReader(tc.in)), 1<<20)
				require.ErrorIs(t, err, io.EOF)
				require.Equal(t, tc.want, got, name)
			}
		})
	}
}

func TestEventsAreBounded(t *testing.T) {
	for name, in := range map[string]string{
		"one line":   "data: " + strings.Repeat("x", 100_000),
		"many lines": strings.Repeat("data: xxxxxxxxxxxxxxx\n", 10_000),
		"no line":    strings.Repeat("x", 100_000),
		"fields":     "data: a\n" + strings.Repeat("id: x\n", 20_000),
	} {
		_, err := readEvents(strings.NewReader(in), 10_000)
		require.ErrorIs(t, err, errEventSize, name)
	}
	// Comments between events take no room, however many.
	got, err := readEvents(io.MultiReader(strings.NewReader(strings.Repeat(": ping\n\n", 50_000)), strings.NewReader("data: a\n\n")), 10_000)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"a"}, got)
}

func TestReaderErrorComesThrough(t *testing.T) {
	boom := errors.New("boom")
	got, err := readEvents(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(boom)), 1000)
	require.ErrorIs(t, err, boom)
	require.Equal(t, []string{"a"}, got)
}

func TestReadyMeansNoFurtherRead(t *testing.T) {
	for in, want := range map[string]bool{
		"data: b\n\n": true, "data: b\r\n\r\n": true, "data: b\n": false, "data: b": false, "": false, ": ping\n\ndata: b\n\n": false,
	} {
		var s sse
		s.reset(io.MultiReader(strings.NewReader("data: a\n\n"+in), iotest.ErrReader(errors.New("read"))), 1000)
		_, err := s.next()
		require.NoError(t, err)
		require.Equal(t, want, s.ready(), in)
		if want {
			data, err := s.next()
			require.NoError(t, err)
			require.Equal(t, "b", string(data))
		}
	}
}

// naiveEvents is the standard's algorithm on the whole text, with LF and CRLF.
func naiveEvents(in string, max int) (events []string, ok bool) {
	var data []string
	in = strings.TrimPrefix(in, "\xef\xbb\xbf")
	lines := strings.Split(in, "\n")
	for i, line := range lines {
		if i == len(lines)-1 { // what follows the last line feed is no line
			break
		}
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			if data != nil {
				events = append(events, strings.Join(data, "\n"))
			}
			data = nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		if field == "data" {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	if len(data) == 1 && data[0] == "[DONE]" {
		events = append(events, data[0])
	}
	return events, len(in) <= max
}

// FuzzSSE holds the reader to the standard's algorithm, however the stream is
// cut into reads.
func FuzzSSE(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n", ": c\nevent: e\ndata: a\ndata: b\n\n", "\xef\xbb\xbfdata: a\n\n",
		"data\n\ndata:\n\n", "data: [DONE]\n", "\r\n\n\r\r\ndata: \r\r\n\n", "data : a\n\n", "data:\x00\n\n\n\ndata: x",
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		want, fits := naiveEvents(string(in), 1000)
		if !fits {
			readEvents(bytes.NewReader(in), 1000) // no panic, no endless loop
			return
		}
		got, err := readEvents(&stepReader{in, int(step)%17 + 1}, 1000)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if strings.Join(got, "\x01") != strings.Join(want, "\x01") || len(got) != len(want) {
			t.Fatalf("got %q, want %q of %q", got, want, in)
		}
	})
}

type stepReader struct {
	rest []byte
	step int
}

func (s *stepReader) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.step)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
