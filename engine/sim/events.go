package sim

import (
	"encoding/binary"
	"sync"

	"github.com/stator-go/stator/internal/msgpack"
	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
)

// appendBatch appends the payload of one event message in the form of vLLM 0.24
// and later: a positional batch of events that are maps.
func appendBatch(b []byte, ts float64, events []CacheEvent, rank int, adapters []Adapter) []byte {
	b = msgpack.AppendArray(b, 3)
	b = msgpack.AppendFloat(b, ts)
	b = msgpack.AppendArray(b, len(events))
	for i := range events {
		b = appendEvent(b, &events[i], adapters)
	}
	return msgpack.AppendUint(b, uint64(rank))
}

// appendEvent writes the keys that 0.32 writes, in its order: those without a
// default always, others when they differ from it.
func appendEvent(b []byte, ev *CacheEvent, adapters []Adapter) []byte {
	key := func(b []byte, k string) []byte { return msgpack.AppendStr(b, k) }
	str := func(b []byte, s string) []byte {
		if s == "" {
			return msgpack.AppendNil(b)
		}
		return msgpack.AppendStr(b, s)
	}
	hashes := func(b []byte) []byte {
		b = msgpack.AppendArray(key(b, "block_hashes"), len(ev.Hashes))
		for _, h := range ev.Hashes {
			b = msgpack.AppendUint(b, h)
		}
		return b
	}
	switch ev.Kind {
	case kvindex.EventRemoved:
		b = msgpack.AppendMap(b, 4)
		b = msgpack.AppendStr(key(b, "type"), "BlockRemoved")
		b = hashes(b)
		b = msgpack.AppendStr(key(b, "medium"), "GPU")
		return msgpack.AppendUint(key(b, "group_idx"), 0)
	case kvindex.EventStored:
		n := 11
		if ev.Session != "" {
			n++
		}
		b = msgpack.AppendMap(b, n)
		b = msgpack.AppendStr(key(b, "type"), "BlockStored")
		b = hashes(b)
		b = key(b, "parent_block_hash")
		if ev.HasParent {
			b = msgpack.AppendUint(b, ev.Parent)
		} else {
			b = msgpack.AppendNil(b)
		}
		b = msgpack.AppendArray(key(b, "token_ids"), len(ev.Tokens))
		for _, t := range ev.Tokens {
			b = msgpack.AppendUint(b, uint64(t))
		}
		b = msgpack.AppendUint(key(b, "block_size"), uint64(ev.BlockSize))
		b = key(b, "lora_id")
		if i := adapterIndex(adapters, ev.Adapter); i >= 0 {
			b = msgpack.AppendUint(b, uint64(i+1))
		} else {
			b = msgpack.AppendNil(b)
		}
		b = msgpack.AppendStr(key(b, "medium"), "GPU")
		b = str(key(b, "lora_name"), ev.Adapter)
		b = msgpack.AppendArray(key(b, "extra_keys"), len(ev.Hashes))
		for i := range ev.Hashes {
			b = appendExtra(b, ev, i == 0 && !ev.HasParent)
		}
		b = msgpack.AppendUint(key(b, "group_idx"), 0)
		b = msgpack.AppendStr(key(b, "kv_cache_spec_kind"), "full_attention")
		if ev.Session != "" {
			b = msgpack.AppendStr(key(b, "session_id"), ev.Session)
		}
		return b
	}
	return msgpack.AppendStr(key(msgpack.AppendMap(b, 1), "type"), "AllBlocksCleared")
}

// appendExtra writes the extra keys of one block: the adapter's name on each,
// the salt on the first of a sequence.
func appendExtra(b []byte, ev *CacheEvent, first bool) []byte {
	n := 0
	if ev.Adapter != "" {
		n++
	}
	salted := first && ev.Salt != ""
	if salted {
		n++
	}
	if n == 0 {
		return msgpack.AppendNil(b)
	}
	b = msgpack.AppendArray(b, n)
	if ev.Adapter != "" {
		b = msgpack.AppendStr(b, ev.Adapter)
	}
	if salted {
		b = msgpack.AppendStr(b, ev.Salt)
	}
	return b
}

// A publisher numbers event messages, keeps the latest ones for replay and
// sends them to subscribers.
type publisher struct {
	topic []byte
	pub   *zmtp.Pub        // nil without an events listener
	sock  *zmtp.RouterSock // nil without a replay listener

	mu       sync.Mutex
	seq      uint64 // of the next message
	ring     [][]byte
	bytes    int
	maxSteps int
	maxBytes int
}

// publish takes over payload.
func (p *publisher) publish(payload []byte) {
	p.mu.Lock()
	seq := binary.BigEndian.AppendUint64(nil, p.seq)
	p.seq++
	p.ring = append(p.ring, payload)
	p.bytes += len(payload)
	for len(p.ring) > p.maxSteps || p.bytes > p.maxBytes && len(p.ring) > 1 {
		p.bytes -= len(p.ring[0])
		p.ring[0] = nil
		p.ring = p.ring[1:]
	}
	p.mu.Unlock()
	if p.pub != nil {
		p.pub.Publish(p.topic, seq, payload)
	}
}

// from returns the kept messages from a sequence number on.
func (p *publisher) from(seq uint64) (first uint64, msgs [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first = p.seq - uint64(len(p.ring))
	if seq > first {
		first = min(seq, p.seq)
	}
	return first, append([][]byte(nil), p.ring[uint64(len(p.ring))-(p.seq-first):]...)
}

// replayEnd is the sequence number of the end marker.
var replayEnd = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// replay answers one request of the replay socket. Anything but an empty
// delimiter and a start is dropped without an answer.
func (p *publisher) replay(request [][]byte, reply func(frames ...[]byte) error) error {
	if len(request) != 2 || len(request[0]) != 0 {
		return nil
	}
	start := uint64(0)
	for _, c := range request[1] { // big-endian, of any length
		if start>>56 != 0 {
			start = 1<<64 - 1
			break
		}
		start = start<<8 | uint64(c)
	}
	seq, msgs := p.from(start)
	for _, m := range msgs {
		if err := reply(nil, p.topic, binary.BigEndian.AppendUint64(nil, seq), m); err != nil {
			return err
		}
		seq++
	}
	return reply(nil, nil, replayEnd, nil)
}

func (p *publisher) close() {
	if p.pub != nil {
		_ = p.pub.Close()
	}
	if p.sock != nil {
		_ = p.sock.Close()
	}
}
