package msgpack

import (
	"encoding/binary"
	"errors"
	"math"
)

// Errors of a Reader. They are bare values: reading allocates nothing.
var (
	// ErrTruncated: the input ends inside a value.
	ErrTruncated = errors.New("msgpack: truncated")
	// ErrType: the next value has another type than asked for, or does not fit
	// it. Nothing was consumed.
	ErrType = errors.New("msgpack: unexpected type")
	// ErrInvalid: the octet 0xc1, which MessagePack never uses.
	ErrInvalid = errors.New("msgpack: invalid octet")
)

// A Kind is the type of a value.
type Kind uint8

// Kinds.
const (
	End     Kind = iota // no octet left
	Invalid             // the octet 0xc1
	Nil
	Bool
	Int // any integer
	Float
	Str
	Bin
	Array
	Map
	Ext
)

// A Reader walks one buffer. The zero Reader is at the end of nothing.
type Reader struct {
	b   []byte
	off int
}

// Reset starts over with another buffer, which the Reader aliases.
func (r *Reader) Reset(b []byte) { r.b, r.off = b, 0 }

// Offset is the position in the buffer.
func (r *Reader) Offset() int { return r.off }

// Seek sets the position to an offset that [Reader.Offset] gave.
func (r *Reader) Seek(off int) { r.off = off }

// Left is the number of octets that remain.
func (r *Reader) Left() int { return len(r.b) - r.off }

// Kind tells what stands next without consuming it.
func (r *Reader) Kind() Kind {
	if r.off >= len(r.b) {
		return End
	}
	return kinds[r.b[r.off]]
}

var kinds = func() (k [256]Kind) {
	for c := range k {
		switch {
		case c <= 0x7f || c >= 0xe0:
			k[c] = Int
		case c <= 0x8f:
			k[c] = Map
		case c <= 0x9f:
			k[c] = Array
		case c <= 0xbf:
			k[c] = Str
		case c == 0xc0:
			k[c] = Nil
		case c == 0xc1:
			k[c] = Invalid
		case c <= 0xc3:
			k[c] = Bool
		case c <= 0xc6:
			k[c] = Bin
		case c <= 0xc9:
			k[c] = Ext
		case c <= 0xcb:
			k[c] = Float
		case c <= 0xd3:
			k[c] = Int
		case c <= 0xd8:
			k[c] = Ext
		case c <= 0xdb:
			k[c] = Str
		case c <= 0xdd:
			k[c] = Array
		default:
			k[c] = Map
		}
	}
	return k
}()

// fail says why a typed read could not be done.
func (r *Reader) fail() error {
	switch r.Kind() {
	case End:
		return ErrTruncated
	case Invalid:
		return ErrInvalid
	}
	return ErrType
}

// Nil consumes a nil if one stands next and reports whether it did.
func (r *Reader) Nil() bool {
	if r.off < len(r.b) && r.b[r.off] == 0xc0 {
		r.off++
		return true
	}
	return false
}

// Bool reads a boolean.
func (r *Reader) Bool() (bool, error) {
	if r.Kind() != Bool {
		return false, r.fail()
	}
	r.off++
	return r.b[r.off-1] == 0xc3, nil
}

// Bits reads any integer as 64 bits in two's complement; neg tells that it was
// below zero.
func (r *Reader) Bits() (v uint64, neg bool, err error) {
	b := r.b[min(r.off, len(r.b)):]
	if len(b) == 0 {
		return 0, false, ErrTruncated
	}
	c := b[0]
	switch {
	case c <= 0x7f:
		r.off++
		return uint64(c), false, nil
	case c >= 0xe0:
		r.off++
		return uint64(int64(int8(c))), true, nil
	case c < 0xcc || c > 0xd3:
		return 0, false, r.fail()
	}
	n := 1 << (c & 3) // cc..cf unsigned, d0..d3 signed: 1, 2, 4, 8 octets
	if len(b) < 1+n {
		return 0, false, ErrTruncated
	}
	switch c {
	case 0xcc:
		v = uint64(b[1])
	case 0xcd:
		v = uint64(binary.BigEndian.Uint16(b[1:]))
	case 0xce:
		v = uint64(binary.BigEndian.Uint32(b[1:]))
	case 0xcf:
		v = binary.BigEndian.Uint64(b[1:])
	case 0xd0:
		v = uint64(int64(int8(b[1])))
	case 0xd1:
		v = uint64(int64(int16(binary.BigEndian.Uint16(b[1:]))))
	case 0xd2:
		v = uint64(int64(int32(binary.BigEndian.Uint32(b[1:]))))
	case 0xd3:
		v = binary.BigEndian.Uint64(b[1:])
	}
	r.off += 1 + n
	return v, c >= 0xd0 && int64(v) < 0, nil
}

// Int reads an integer that fits int64.
func (r *Reader) Int() (int64, error) {
	off := r.off
	v, neg, err := r.Bits()
	if err == nil && !neg && v > math.MaxInt64 {
		r.off = off
		return 0, ErrType
	}
	return int64(v), err
}

// Float reads a floating-point number; an integer is converted.
func (r *Reader) Float() (float64, error) {
	switch r.Kind() {
	case Float:
	case Int:
		v, neg, err := r.Bits()
		if neg {
			return float64(int64(v)), err
		}
		return float64(v), err
	default:
		return 0, r.fail()
	}
	b := r.b[r.off:]
	if b[0] == 0xca {
		if len(b) < 5 {
			return 0, ErrTruncated
		}
		r.off += 5
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b[1:]))), nil
	}
	if len(b) < 9 {
		return 0, ErrTruncated
	}
	r.off += 9
	return math.Float64frombits(binary.BigEndian.Uint64(b[1:])), nil
}

// Str reads a string. The result aliases the buffer and is not checked to be
// UTF-8.
func (r *Reader) Str() ([]byte, error) { return r.bytes(Str) }

// Bin reads a byte string. The result aliases the buffer.
func (r *Reader) Bin() ([]byte, error) { return r.bytes(Bin) }

func (r *Reader) bytes(want Kind) ([]byte, error) {
	if r.Kind() != want {
		return nil, r.fail()
	}
	h, n, _, err := r.header()
	if err != nil {
		return nil, err
	}
	start := r.off + h
	r.off = start + n
	return r.b[start:r.off:r.off], nil
}

// Array reads the head of an array and returns the number of its elements,
// which is at most the number of octets left.
func (r *Reader) Array() (int, error) { return r.container(Array) }

// Map reads the head of a map and returns the number of its pairs, which is at
// most half the number of octets left.
func (r *Reader) Map() (int, error) { return r.container(Map) }

func (r *Reader) container(want Kind) (int, error) {
	if r.Kind() != want {
		return 0, r.fail()
	}
	h, _, n, err := r.header()
	if err != nil {
		return 0, err
	}
	r.off += h
	if want == Map {
		return n / 2, nil
	}
	return n, nil
}

// Skip consumes the next value, whatever it is.
func (r *Reader) Skip() error {
	off := r.off
	// A count of values still to come is enough: no stack is needed to find the
	// end of a prefix code.
	for todo := 1; todo > 0; todo-- {
		h, n, children, err := r.header()
		if err != nil {
			r.off = off
			return err
		}
		r.off += h + n
		todo += children
		if todo-1 > r.Left() {
			r.off = off
			return ErrTruncated
		}
	}
	return nil
}

// header measures the value that stands next: octets of its head, of its
// payload, and the number of values inside it. Both exist in the buffer, or at
// least could.
func (r *Reader) header() (head, payload, children int, err error) {
	b := r.b[min(r.off, len(r.b)):]
	if len(b) == 0 {
		return 0, 0, 0, ErrTruncated
	}
	var n uint64
	c := b[0]
	head = 1
	switch {
	case c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
		return 1, 0, 0, nil
	case c <= 0x8f:
		n = uint64(c & 0x0f)
	case c <= 0x9f:
		n = uint64(c & 0x0f)
	case c <= 0xbf:
		n = uint64(c & 0x1f)
	case c == 0xc1:
		return 0, 0, 0, ErrInvalid
	case c == 0xca || c == 0xcb:
		n = 4 << (c & 1)
	case c >= 0xcc && c <= 0xd3:
		n = 1 << (c & 3)
	case c >= 0xd4 && c <= 0xd8: // fixext: type octet and 1, 2, 4, 8 or 16
		n = 1 + 1<<(c-0xd4)
	default:
		// a length of 1, 2 or 4 octets follows
		size := 2
		switch c {
		case 0xc4, 0xc7, 0xd9:
			size = 1
		case 0xc6, 0xc9, 0xdb, 0xdd, 0xdf:
			size = 4
		}
		if len(b) < 1+size {
			return 0, 0, 0, ErrTruncated
		}
		switch size {
		case 1:
			n = uint64(b[1])
		case 2:
			n = uint64(binary.BigEndian.Uint16(b[1:]))
		case 4:
			n = uint64(binary.BigEndian.Uint32(b[1:]))
		}
		head += size
		if c >= 0xc7 && c <= 0xc9 {
			n++ // the type octet of an extension
		}
	}
	switch kinds[c] {
	case Map:
		n *= 2
		fallthrough
	case Array:
		if n > uint64(len(b)-head) {
			return 0, 0, 0, ErrTruncated
		}
		return head, 0, int(n), nil
	}
	if n > uint64(len(b)-head) {
		return 0, 0, 0, ErrTruncated
	}
	return head, int(n), 0, nil
}

// Uint32s reads n values, all of them integers from 0 to 2^32-1, and appends
// them to dst. After an error the position is where it was and dst as it came.
func (r *Reader) Uint32s(dst []uint32, n int) ([]uint32, error) {
	b, i := r.b, r.off
	base := len(dst)
	for range n {
		if i >= len(b) {
			return dst[:base], ErrTruncated
		}
		c := b[i]
		switch {
		case c == 0xcd: // by far the most frequent: token ids of two octets
			if len(b)-i < 3 {
				return dst[:base], ErrTruncated
			}
			dst = append(dst, uint32(b[i+1])<<8|uint32(b[i+2]))
			i += 3
		case c <= 0x7f:
			dst = append(dst, uint32(c))
			i++
		case c == 0xce:
			if len(b)-i < 5 {
				return dst[:base], ErrTruncated
			}
			dst = append(dst, binary.BigEndian.Uint32(b[i+1:]))
			i += 5
		default:
			s := Reader{b: b, off: i}
			v, neg, err := s.Bits()
			if err != nil {
				return dst[:base], err
			}
			if neg || v > math.MaxUint32 {
				return dst[:base], ErrType
			}
			dst = append(dst, uint32(v))
			i = s.off
		}
	}
	r.off = i
	return dst, nil
}
