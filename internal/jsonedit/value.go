package jsonedit

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A Kind is the type of a JSON value.
type Kind uint8

// The kinds. Invalid is the kind of no bytes.
const (
	Invalid Kind = iota
	Null
	Bool
	Number
	String
	ArrayKind
	ObjectKind
)

// KindOf tells the kind of a value by its first byte.
func KindOf(v []byte) Kind {
	if len(v) == 0 {
		return Invalid
	}
	switch c := v[0]; {
	case c == '"':
		return String
	case c == '{':
		return ObjectKind
	case c == '[':
		return ArrayKind
	case c == 'n':
		return Null
	case c == 't', c == 'f':
		return Bool
	case c == '-' || digit(c):
		return Number
	}
	return Invalid
}

// AppendText appends the text of a string value to dst. It returns false,
// and dst as it was, when v is no string. An escape that stands for half a
// surrogate pair becomes U+FFFD.
func AppendText(dst, v []byte) ([]byte, bool) {
	if len(v) < 2 || v[0] != '"' || v[len(v)-1] != '"' {
		return dst, false
	}
	return appendUnescaped(dst, v[1:len(v)-1]), true
}

// Text is the text of a string value, and false for another kind.
func Text(v []byte) (string, bool) {
	if len(v) < 2 || v[0] != '"' || v[len(v)-1] != '"' {
		return "", false
	}
	in := v[1 : len(v)-1]
	if plain(in, 0) == len(in) {
		return string(in), true
	}
	return string(appendUnescaped(make([]byte, 0, len(in)), in)), true
}

// appendUnescaped appends what s, the inside of a checked string, stands for.
func appendUnescaped(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		j := plain(s, i)
		dst = append(dst, s[i:j]...)
		if i = j; i+1 >= len(s) {
			return append(dst, s[i:]...)
		}
		if s[i] != '\\' {
			dst = append(dst, s[i])
			i++
			continue
		}
		var r rune
		r, i = unescape(s, i)
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

// unescape decodes the escape at s[i], a backslash with at least one byte after
// it, and returns the index after it.
func unescape(s []byte, i int) (rune, int) {
	switch s[i+1] {
	case 'b':
		return '\b', i + 2
	case 'f':
		return '\f', i + 2
	case 'n':
		return '\n', i + 2
	case 'r':
		return '\r', i + 2
	case 't':
		return '\t', i + 2
	case 'u':
		r, ok := unit(s, i)
		if !ok {
			return utf8.RuneError, len(s)
		}
		i += 6
		if utf16.IsSurrogate(r) {
			if low, ok := unit(s, i); ok {
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					return pair, i + 6
				}
			}
			return utf8.RuneError, i
		}
		return r, i
	}
	return rune(s[i+1]), i + 2
}

// unit reads \uXXXX at s[i].
func unit(s []byte, i int) (rune, bool) {
	if i+6 > len(s) || s[i] != '\\' || s[i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range s[i+2 : i+6] {
		h, ok := hex(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | h
	}
	return r, true
}

// Equal reports whether raw, the inside of a string with its escapes, stands
// for text.
func Equal(raw []byte, text string) bool {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 >= len(raw) {
			if text == "" || raw[i] != text[0] {
				return false
			}
			i, text = i+1, text[1:]
			continue
		}
		var r rune
		r, i = unescape(raw, i)
		var enc [utf8.UTFMax]byte
		n := utf8.EncodeRune(enc[:], r)
		if len(text) < n || text[:n] != string(enc[:n]) {
			return false
		}
		text = text[n:]
	}
	return text == ""
}

// Name is a member's name with its escapes decoded.
func Name(raw []byte) string {
	if plain(raw, 0) == len(raw) {
		return string(raw)
	}
	return string(appendUnescaped(make([]byte, 0, len(raw)), raw))
}

// Int is the value of an integer that fits an int64; a fraction or an exponent
// is no integer here.
func Int(v []byte) (int64, bool) {
	// Most numbers are short: take them without a conversion.
	if n := len(v); n > 0 && n <= 18 {
		i, neg := 0, v[0] == '-'
		if neg {
			i = 1
		}
		var x int64
		for _, c := range v[i:] {
			if !digit(c) {
				return 0, false
			}
			x = x*10 + int64(c-'0')
		}
		if neg {
			x = -x
		}
		return x, n > i
	}
	x, err := strconv.ParseInt(string(v), 10, 64)
	return x, err == nil
}

// True reports whether v is the literal true.
func True(v []byte) bool { return string(v) == "true" }

// AppendUint32s appends the elements of v, an array of integers from 0 to
// 2^32-1, to dst. It returns an error that names the offset in v of the first
// element of another kind or range; dst is then returned as it was.
func AppendUint32s(dst []uint32, v []byte) ([]uint32, error) {
	i := space(v, 0)
	if i >= len(v) || v[i] != '[' {
		return dst, fail(i, "array expected")
	}
	out := dst
	if i = space(v, i+1); i < len(v) && v[i] == ']' {
		return out, nil
	}
	for {
		start, x := i, uint64(0)
		for i < len(v) && digit(v[i]) && x <= 1<<32 {
			x = x*10 + uint64(v[i]-'0')
			i++
		}
		if i == start || x >= 1<<32 || (v[start] == '0' && i > start+1) {
			return dst, fail(start, "unsigned 32-bit integer expected")
		}
		out = append(out, uint32(x))
		if i < len(v) && v[i] <= ' ' {
			i = space(v, i)
		}
		if i < len(v) && v[i] == ',' {
			i++
			if i < len(v) && v[i] <= ' ' {
				i = space(v, i)
			}
			continue
		}
		if i < len(v) && v[i] == ']' {
			return out, nil
		}
		if i < len(v) && (v[i] == '.' || v[i] == 'e' || v[i] == 'E') {
			return dst, fail(start, "unsigned 32-bit integer expected")
		}
		return dst, fail(i, "comma or closing bracket expected")
	}
}

// AppendQuoted appends s as a JSON string. Bytes that are not valid UTF-8
// become U+FFFD.
func AppendQuoted(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// AppendName appends a member's name with its escapes decoded.
func AppendName(dst, raw []byte) []byte { return appendUnescaped(dst, raw) }
