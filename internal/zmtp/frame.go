package zmtp

import "encoding/binary"

// Bits of a frame's flags octet.
const (
	flagMore    = 1 << 0 // more frames of this message follow
	flagLong    = 1 << 1 // the length takes 8 octets, otherwise 1
	flagCommand = 1 << 2 // the frame is a command
	flagsKnown  = flagMore | flagLong | flagCommand
)

// maxHeader is the size of the longest frame header.
const maxHeader = 9

// AppendFrame appends one message frame to dst; more says that another frame of
// the same message follows.
func AppendFrame(dst, body []byte, more bool) []byte {
	var flags byte
	if more {
		flags = flagMore
	}
	return append(appendHeader(dst, flags, len(body)), body...)
}

// AppendCommand appends a command frame to dst. The name has at most 255
// octets.
func AppendCommand(dst []byte, name string, body []byte) []byte {
	dst = appendHeader(dst, flagCommand, 1+len(name)+len(body))
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, body...)
}

func appendHeader(dst []byte, flags byte, n int) []byte {
	if n <= 255 {
		return append(dst, flags, byte(n))
	}
	dst = append(dst, flags|flagLong)
	return binary.BigEndian.AppendUint64(dst, uint64(n))
}

// splitCommand takes the body of a command frame apart.
func splitCommand(frame []byte) (name, body []byte, ok bool) {
	if len(frame) == 0 {
		return nil, nil, false
	}
	n := int(frame[0])
	if n == 0 || 1+n > len(frame) {
		return nil, nil, false
	}
	return frame[1 : 1+n], frame[1+n:], true
}
