package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/stator-go/stator/engine"
)

// errEventSize is what an event over the limit ends a stream with.
var errEventSize = fmt.Errorf("%w: event exceeds the size limit", engine.ErrProtocol)

// sse reads the data of server-sent events. Lines end with LF or CRLF; a lone
// CR is not taken for a line's end, since no JSON payload can hold one. It
// copies nothing unless an event has several data lines.
type sse struct {
	r   io.Reader
	max int // bytes that one event may take

	buf   []byte // window of the stream; buf[event:hi] is held
	event int    // where the current event's first line begins
	pos   int    // where the next line begins
	scan  int    // no line feed in buf[pos:scan]
	hi    int

	joined []byte // data of an event with several data lines
	empty  int    // reads in a row that gave nothing
	first  bool   // the stream's first line is still to come
}

func (s *sse) reset(r io.Reader, max int) {
	*s = sse{r: r, max: max, buf: s.buf, joined: s.joined[:0], first: true}
}

var (
	prefixData = []byte("data:")
	bom        = []byte("\xef\xbb\xbf")
)

// next returns the data of the next event, valid until the next call. At the
// end of the stream it returns the reader's error, io.EOF for a clean one. An
// event whose blank line never came is dropped, as the standard wants, except a
// last "[DONE]".
func (s *sse) next() ([]byte, error) {
	s.event = s.pos
	lines := 0
	var from, to int // the first data line's value, relative to s.event
	for {
		lo, hi, err := s.line()
		if err != nil {
			if first := s.buf[s.event+from : s.event+to]; errors.Is(err, io.EOF) && lines == 1 && string(first) == "[DONE]" {
				return first, nil
			}
			return nil, err
		}
		line := s.buf[lo:hi]
		switch {
		case lo == hi && lines == 1:
			return s.buf[s.event+from : s.event+to], nil
		case lo == hi && lines > 1:
			return s.joined, nil
		case bytes.HasPrefix(line, prefixData):
			lo += len(prefixData)
			if lo < hi && s.buf[lo] == ' ' {
				lo++
			}
		case string(line) == "data": // a data line without a colon is empty
			lo = hi
		default:
			// A blank line without an event, a comment, or a field that carries
			// no data ("event", "id", "retry").
			if lines == 0 {
				s.event = s.pos
			}
			continue
		}
		if lines++; lines == 1 {
			from, to = lo-s.event, hi-s.event
			continue
		}
		if lines == 2 {
			s.joined = append(s.joined[:0], s.buf[s.event+from:s.event+to]...)
		}
		s.joined = append(append(s.joined, '\n'), s.buf[lo:hi]...)
		if len(s.joined) > s.max {
			return nil, errEventSize
		}
	}
}

// line finds the next line, buf[lo:hi] without its end.
func (s *sse) line() (lo, hi int, err error) {
	for {
		if i := bytes.IndexByte(s.buf[s.scan:s.hi], '\n'); i >= 0 {
			lo, hi = s.pos, s.scan+i
			s.pos, s.scan = hi+1, hi+1
			if hi > lo && s.buf[hi-1] == '\r' {
				hi--
			}
			if s.first {
				s.first = false
				if bytes.HasPrefix(s.buf[lo:hi], bom) {
					lo += len(bom)
				}
			}
			return lo, hi, nil
		}
		s.scan = s.hi
		if err := s.fill(); err != nil {
			return 0, 0, err
		}
	}
}

// fill reads more of the stream, making room first.
func (s *sse) fill() error {
	if s.hi-s.event > s.max {
		return errEventSize
	}
	// Room for a whole read is worth moving the beginning of an event, if that is
	// no longer than the room it makes.
	if held := s.hi - s.event; held <= s.event && len(s.buf)-s.hi < initialBuffer/2 || held == 0 {
		copy(s.buf, s.buf[s.event:s.hi])
		s.pos, s.scan, s.hi = s.pos-s.event, s.scan-s.event, s.hi-s.event
		s.event = 0
	}
	if s.hi == len(s.buf) {
		s.buf = append(s.buf, make([]byte, max(initialBuffer, len(s.buf)))...)
	}
	for {
		n, err := s.r.Read(s.buf[s.hi:])
		s.hi += n
		if n > 0 {
			s.empty = 0
			return nil // an error comes again with the next read
		}
		if err != nil {
			return err
		}
		if s.empty++; s.empty > 100 {
			return io.ErrNoProgress
		}
	}
}

// ready reports whether the next event is in the buffer already. It looks for
// the usual form only, one line of data and the blank line after it.
func (s *sse) ready() bool {
	if !bytes.HasPrefix(s.buf[s.pos:s.hi], prefixData) {
		return false
	}
	i := bytes.IndexByte(s.buf[s.scan:s.hi], '\n')
	if i < 0 {
		s.scan = s.hi
		return false
	}
	s.scan += i // line need not look again
	switch rest := s.buf[s.scan+1 : s.hi]; {
	case len(rest) > 0 && rest[0] == '\n':
		return true
	default:
		return len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n'
	}
}

// initialBuffer holds the events of a usual stream with room to spare.
const initialBuffer = 16 << 10
