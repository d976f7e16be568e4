package jsonedit

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth is how deep objects and arrays may nest.
const MaxDepth = 256

// A SyntaxError says where data stopped being JSON.
type SyntaxError struct {
	Offset int // of the offending byte, from the start of the data given
	Msg    string
}

// Error names the fault and its offset.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("jsonedit: %s at offset %d", e.Msg, e.Offset)
}

func fail(at int, msg string) error { return &SyntaxError{Offset: at, Msg: msg} }

// space returns the index of the first byte at or after i that is no white space.
func space(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns the index of the first byte at or after i that ends a run of
// ordinary string bytes: a quote, a backslash or a control character. It looks
// at eight bytes at a time.
func plain(b []byte, i int) int {
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		// A byte x below 0x20 borrows in x-0x20 without having its high bit set;
		// a byte equal to c is zero after the exclusive or.
		q, s := w^(ones*'"'), w^(ones*'\\')
		m := ((w - ones*0x20) &^ w) | ((q - ones) &^ q) | ((s - ones) &^ s)
		if m &= highs; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		i += 8
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// str returns the index after the string that begins at b[i], which is a quote.
func str(b []byte, i int) (int, error) {
	start := i
	i++
	for {
		i = plain(b, i)
		if i >= len(b) {
			return i, fail(start, "unterminated string")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\':
			if i+1 >= len(b) {
				return i, fail(start, "unterminated string")
			}
			switch b[i+1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				if i+6 > len(b) {
					return i, fail(start, "unterminated string")
				}
				for _, h := range b[i+2 : i+6] {
					if _, ok := hex(h); !ok {
						return i, fail(i, "bad \\u escape")
					}
				}
				i += 6
			default:
				return i, fail(i, "bad escape")
			}
		default:
			return i, fail(i, "control character in string")
		}
	}
}

func hex(c byte) (rune, bool) {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0'), true
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}

func digit(c byte) bool { return c-'0' <= 9 }

// number returns the index after the number that begins at b[i].
func number(b []byte, i int) (int, error) {
	start := i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && digit(b[i]):
		for i < len(b) && digit(b[i]) {
			i++
		}
	default:
		return i, fail(start, "bad number")
	}
	if i < len(b) && b[i] == '.' {
		i++
		if i >= len(b) || !digit(b[i]) {
			return i, fail(start, "bad number")
		}
		for i < len(b) && digit(b[i]) {
			i++
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i >= len(b) || !digit(b[i]) {
			return i, fail(start, "bad number")
		}
		for i < len(b) && digit(b[i]) {
			i++
		}
	}
	if i < len(b) && digit(b[i]) {
		return i, fail(start, "number with a leading zero")
	}
	return i, nil
}

func literal(b []byte, i int, want string) (int, error) {
	if len(b)-i < len(want) || string(b[i:i+len(want)]) != want {
		return i, fail(i, "unknown literal")
	}
	return i + len(want), nil
}

// value returns the index after the value that begins at b[i]. depth is the
// number of containers around it.
func value(b []byte, i, depth int) (int, error) {
	if i >= len(b) {
		return i, fail(i, "unexpected end")
	}
	switch c := b[i]; {
	case c == '"':
		return str(b, i)
	case c == '{':
		return object(b, i, depth+1)
	case c == '[':
		return array(b, i, depth+1)
	case digit(c) || c == '-':
		return number(b, i)
	case c == 't':
		return literal(b, i, "true")
	case c == 'f':
		return literal(b, i, "false")
	case c == 'n':
		return literal(b, i, "null")
	}
	return i, fail(i, "unexpected character")
}

func object(b []byte, i, depth int) (int, error) {
	if depth > MaxDepth {
		return i, fail(i, "nested too deep")
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		var err error
		if i >= len(b) || b[i] != '"' {
			return i, fail(i, "member name expected")
		}
		if i, err = str(b, i); err != nil {
			return i, err
		}
		if i = space(b, i); i >= len(b) || b[i] != ':' {
			return i, fail(i, "colon expected")
		}
		if i, err = value(b, space(b, i+1), depth); err != nil {
			return i, err
		}
		i = space(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = space(b, i+1)
		case i < len(b) && b[i] == '}':
			return i + 1, nil
		default:
			return i, fail(i, "comma or closing brace expected")
		}
	}
}

func array(b []byte, i, depth int) (int, error) {
	if depth > MaxDepth {
		return i, fail(i, "nested too deep")
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		// Token ids make arrays of a hundred thousand small integers: take
		// them without a call each.
		if i < len(b) && b[i]-'1' <= 8 {
			j := i + 1
			for j < len(b) && digit(b[j]) {
				j++
			}
			if j < len(b) && b[j] == ',' {
				i = j + 1
				if i < len(b) && b[i] <= ' ' {
					i = space(b, i)
				}
				continue
			}
		}
		var err error
		if i, err = value(b, i, depth); err != nil {
			return i, err
		}
		i = space(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = space(b, i+1)
		case i < len(b) && b[i] == ']':
			return i + 1, nil
		default:
			return i, fail(i, "comma or closing bracket expected")
		}
	}
}

// Check reports whether data is one JSON value.
func Check(data []byte) error {
	i, err := value(data, space(data, 0), 0)
	if err != nil {
		return err
	}
	if i = space(data, i); i != len(data) {
		return fail(i, "data after the value")
	}
	return nil
}
