package promtext

import (
	"bytes"
	"math"
	"strconv"
)

const (
	// maxLine is the length of the longest line that is looked at.
	maxLine = 64 << 10
	// maxDigits is the number of decimal digits that a float64 holds exactly.
	maxDigits = 15
)

// A Scanner walks the samples of one exposition. The zero Scanner has none.
type Scanner struct {
	rest   []byte
	name   []byte
	labels []byte // between the braces
	value  []byte
	split  bool // labels and value of this line are known
	fine   bool // and well-formed
	bad    int
	buf    []byte
}

// Reset starts over with another text, which the Scanner aliases.
func (s *Scanner) Reset(text []byte) { *s = Scanner{rest: text, buf: s.buf} }

// Malformed is the number of lines so far that were found not to follow the
// format. A line that the caller did not look into is checked up to its name.
func (s *Scanner) Malformed() int { return s.bad }

// Next goes to the next sample and reports whether there is one.
func (s *Scanner) Next() bool {
	for len(s.rest) > 0 {
		line := s.rest
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line, s.rest = line[:i], line[i+1:]
		} else {
			s.rest = nil
		}
		line = bytes.Trim(line, " \t\r")
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		n := nameLen(line)
		if n == 0 || n == len(line) || len(line) > maxLine {
			s.bad++
			continue
		}
		s.name, s.value, s.labels = line[:n], line[n:], nil
		s.split = false
		return true
	}
	return false
}

// nameLen is the length of the metric name that b begins with.
func nameLen(b []byte) int {
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == ':':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return i
		}
	}
	return len(b)
}

// Name is the name of the sample's series. It is valid until Reset.
func (s *Scanner) Name() []byte { return s.name }

// open splits the line into labels and value.
func (s *Scanner) open() bool {
	if s.split {
		return s.fine
	}
	s.split, s.fine = true, false
	b := bytes.TrimLeft(s.value, " \t")
	if len(b) > 0 && b[0] == '{' {
		end := labelsEnd(b)
		if end < 0 {
			s.bad++
			return false
		}
		s.labels = b[1:end]
		b = bytes.TrimLeft(b[end+1:], " \t")
	}
	if i := bytes.IndexAny(b, " \t"); i >= 0 { // a time stamp or exemplar follows
		b = b[:i]
	}
	s.value = b
	s.fine = len(b) > 0
	if !s.fine {
		s.bad++
	}
	return s.fine
}

// labelsEnd is the index of the brace that closes the labels at b[0], or -1.
func labelsEnd(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			if quoted {
				i++
			}
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// Label is the value of a label of the sample, escapes resolved. It is valid
// until the next call. Of a label that stands twice, the first counts.
func (s *Scanner) Label(name string) (value []byte, ok bool) {
	if !s.open() {
		return nil, false
	}
	b := s.labels
	for {
		b = bytes.TrimLeft(b, " \t,")
		n := nameLen(b)
		key := b[:n]
		b = bytes.TrimLeft(b[n:], " \t")
		if n == 0 || len(b) == 0 || b[0] != '=' {
			return nil, false
		}
		b = bytes.TrimLeft(b[1:], " \t")
		if len(b) == 0 || b[0] != '"' {
			return nil, false
		}
		end, escaped := 1, false
		for end < len(b) && b[end] != '"' {
			if b[end] == '\\' {
				escaped = true
				end++
			}
			end++
		}
		if end >= len(b) {
			return nil, false
		}
		if string(key) != name {
			b = b[end+1:]
			continue
		}
		if !escaped {
			return b[1:end], true
		}
		s.buf = unescape(s.buf[:0], b[1:end])
		return s.buf, true
	}
}

func unescape(dst, b []byte) []byte {
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == '\\' && i+1 < len(b) {
			i++
			switch c = b[i]; c {
			case 'n':
				c = '\n'
			case '\\', '"':
			default: // no escape of the format: both stand for themselves
				dst = append(dst, '\\')
			}
		}
		dst = append(dst, c)
	}
	return dst
}

// Value is the value of the sample: any float64, infinities and NaN included.
func (s *Scanner) Value() (v float64, ok bool) {
	if !s.open() {
		return 0, false
	}
	if v, ok = decimal(s.value); ok {
		return v, true
	}
	for _, c := range s.value {
		if c == '_' || c == 'x' || c == 'X' || c == 'p' || c == 'P' { // forms of Go, not of the format
			s.fail()
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(string(s.value), 64)
	if err != nil && !math.IsInf(v, 0) { // beyond the range is infinite
		s.fail()
		return 0, false
	}
	return v, true
}

func (s *Scanner) fail() {
	if s.fine {
		s.fine = false
		s.bad++
	}
}

var powers = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
	1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// decimal reads the plain forms for which one operation on exact numbers gives
// the nearest float64: at most 15 digits and a power of ten up to 22.
func decimal(b []byte) (float64, bool) {
	i, neg := 0, false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		neg = b[0] == '-'
		i = 1
	}
	var m uint64
	digits, exp, dot := 0, 0, false
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c >= '0' && c <= '9':
			if digits == maxDigits {
				return 0, false
			}
			m = m*10 + uint64(c-'0')
			if digits > 0 || c != '0' {
				digits++
			}
			if dot {
				exp--
			}
			continue
		case c == '.' && !dot:
			dot = true
			continue
		case c == 'e' || c == 'E':
			e, err := strconv.Atoi(string(b[i+1:])) // short: stays on the stack
			if err != nil || e < -100 || e > 100 || i == 0 {
				return 0, false
			}
			exp += e
			i = len(b)
		default:
			return 0, false
		}
	}
	if !anyDigit(b) || exp < -22 || exp > 22 {
		return 0, false
	}
	v := float64(m)
	if exp < 0 {
		v /= powers[-exp]
	} else {
		v *= powers[exp]
	}
	if neg {
		v = -v
	}
	return v, true
}

// anyDigit says whether the mantissa of b has a digit.
func anyDigit(b []byte) bool {
	for _, c := range b {
		if c >= '0' && c <= '9' {
			return true
		}
		if c == 'e' || c == 'E' {
			break
		}
	}
	return false
}
