package zmtp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

const (
	greetingLen = 64
	// versionMajor and versionMinor are what this package offers. A minor
	// version of 0 tells a 3.1 peer to use the older subscription messages.
	versionMajor = 3
	versionMinor = 0
	// maxReady bounds the READY command of a peer.
	maxReady = 8 << 10
)

// A Peer is what the other side said about itself during the handshake.
type Peer struct {
	Major, Minor byte
	SocketType   string
	Identity     []byte
}

// AppendGreeting appends the 64 octets of a NULL greeting to dst.
func AppendGreeting(dst []byte) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, greetingLen)...)
	g := dst[n:]
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = versionMajor, versionMinor
	copy(g[12:32], "NULL")
	return dst
}

// parseGreeting checks a peer's greeting. The octets between the first and the
// last of the signature are not looked at, as the specification demands.
func parseGreeting(g []byte) (major, minor byte, err error) {
	if len(g) != greetingLen || g[0] != 0xff || g[9] != 0x7f {
		return 0, 0, fmt.Errorf("%w: not a ZMTP greeting", ErrProtocol)
	}
	if g[10] < versionMajor {
		return 0, 0, fmt.Errorf("%w: the peer speaks ZMTP %d", ErrVersion, g[10])
	}
	mech := strings.TrimRight(string(g[12:32]), "\x00")
	if mech != "NULL" {
		return 0, 0, fmt.Errorf("%w: the peer wants %q", ErrMechanism, mech)
	}
	return g[10], g[11], nil
}

// AppendReady appends the READY command frame of a socket to dst. An empty
// identity is left out.
func AppendReady(dst []byte, socketType string, identity []byte) []byte {
	body := appendProperty(nil, "Socket-Type", socketType)
	if len(identity) > 0 {
		body = appendProperty(body, "Identity", string(identity))
	}
	return AppendCommand(dst, "READY", body)
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// parseReady reads the frame body of a peer's READY command into p.
func parseReady(frame []byte, p *Peer) error {
	name, meta, ok := splitCommand(frame)
	if !ok {
		return fmt.Errorf("%w: malformed command", ErrProtocol)
	}
	switch string(name) {
	case "READY":
	case "ERROR":
		// body: one length octet and a reason
		reason := meta
		if len(reason) > 0 {
			reason = reason[1:]
		}
		return fmt.Errorf("%w: %q", ErrRefused, reason)
	default:
		return fmt.Errorf("%w: command %q instead of READY", ErrProtocol, name)
	}
	for len(meta) > 0 {
		n := int(meta[0])
		if n == 0 || len(meta) < 1+n+4 {
			return fmt.Errorf("%w: malformed READY", ErrProtocol)
		}
		key := meta[1 : 1+n]
		size := binary.BigEndian.Uint32(meta[1+n:])
		meta = meta[1+n+4:]
		if uint64(size) > uint64(len(meta)) {
			return fmt.Errorf("%w: malformed READY", ErrProtocol)
		}
		value := meta[:size]
		meta = meta[size:]
		switch {
		case strings.EqualFold(string(key), "Socket-Type"):
			p.SocketType = string(value)
		case strings.EqualFold(string(key), "Identity"):
			p.Identity = append([]byte(nil), value...)
		}
	}
	return nil
}

// fits says whether two socket types may talk to each other.
func fits(a, b string) bool {
	switch a {
	case "SUB", "XSUB":
		return b == "PUB" || b == "XPUB"
	case "PUB", "XPUB":
		return b == "SUB" || b == "XSUB"
	case "DEALER":
		return b == "ROUTER" || b == "DEALER" || b == "REP"
	case "ROUTER":
		return b == "DEALER" || b == "ROUTER" || b == "REQ"
	case "REQ":
		return b == "REP" || b == "ROUTER"
	case "REP":
		return b == "REQ" || b == "DEALER"
	case "PAIR":
		return b == "PAIR"
	case "PUSH":
		return b == "PULL"
	case "PULL":
		return b == "PUSH"
	}
	return false
}
