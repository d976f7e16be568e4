package sim

import (
	"errors"
	"fmt"
	"math"
	"net"
)

// An Adapter is a LoRA adapter that the engine serves.
type Adapter struct{ Name, Path string }

func adapterIndex(adapters []Adapter, name string) int {
	if name == "" {
		return -1
	}
	for i := range adapters {
		if adapters[i].Name == name {
			return i
		}
	}
	return -1
}

// Options describes a [Server]. The zero value, and nil, are a vLLM on four
// H100 with a host cache and blocks of 16 tokens, at its own speed, on free
// ports of the loopback interface.
type Options struct {
	// Config is the engine. One without RunBlocks means
	// H100TP4("dram").WithBlockTokens(16).VLLM(), with this Config's Model and
	// Hash.
	Config Config
	// Model is the served model's name. "" means "sim".
	Model string
	// Adapters are served beside it.
	Adapters []Adapter
	// MaxModelLen is the context in tokens. 0 means 131,072 or what fits into
	// the memory for running requests.
	MaxModelLen int
	// DefaultMaxTokens is the output limit of chats that name none. 0 means 256.
	DefaultMaxTokens int

	// Speed is the number of engine seconds in one second. 0 means 1.
	Speed float64

	// HTTP, Events and Replay are where the server listens. It owns them. A nil
	// HTTP opens a free port of the loopback interface, and so do nil Events and
	// Replay unless NoEvents is set.
	HTTP, Events, Replay net.Listener
	// NoEvents runs without event publisher and replay socket.
	NoEvents bool
	// Topic is the events' topic. "" means kv@ADDRESS@MODEL.
	Topic string
	// BufferSteps is the number of messages kept for replay, BufferBytes their
	// size. 0 means 10,000 and 64 MiB.
	BufferSteps, BufferBytes int
	// NoRender answers render requests with 403, as a vLLM without
	// --enable-scale-out does.
	NoRender bool
	// MaxRequests bounds the requests in the server, running or waiting; more are
	// answered with 503. 0 means 16,384.
	MaxRequests int
	// MaxBody bounds request bodies in bytes. 0 means 64 MiB.
	MaxBody int64
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Config.RunBlocks == 0 {
		c := H100TP4("dram").WithBlockTokens(16).VLLM()
		c.Model, c.Hash = v.Config.Model, v.Config.Hash
		v.Config = c
	}
	v.Config.PerToken = true
	if v.Model == "" {
		v.Model = "sim"
	}
	if v.MaxModelLen == 0 {
		fit := v.Config.RunBlocks
		if !v.Config.Preempt {
			fit--
		}
		v.MaxModelLen = min(131_072, fit*v.Config.BlockTokens)
	}
	if v.DefaultMaxTokens == 0 {
		v.DefaultMaxTokens = 256
	}
	if v.Speed == 0 {
		v.Speed = 1
	}
	if v.BufferSteps == 0 {
		v.BufferSteps = 10_000
	}
	if v.BufferBytes == 0 {
		v.BufferBytes = 64 << 20
	}
	if v.MaxRequests == 0 {
		v.MaxRequests = 16_384
	}
	if v.MaxBody == 0 {
		v.MaxBody = 64 << 20
	}
	return v
}

func (o *Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("sim: "+format, args...)) }
	if !(o.Speed > 0) || math.IsInf(o.Speed, 0) {
		bad("Speed is %v, want a finite number above 0", o.Speed)
	}
	if o.MaxModelLen < 1 || o.Config.BlockTokens > 0 && o.Config.RunBlocks > 0 &&
		(o.MaxModelLen+o.Config.BlockTokens-1)/o.Config.BlockTokens > o.Config.RunBlocks {
		bad("MaxModelLen is %d, want 1 to the tokens of Config.RunBlocks (%d)", o.MaxModelLen, o.Config.RunBlocks*o.Config.BlockTokens)
	}
	if o.DefaultMaxTokens < 1 {
		bad("DefaultMaxTokens is %d, want at least 1", o.DefaultMaxTokens)
	}
	if o.BufferSteps < 1 || o.BufferBytes < 1 {
		bad("BufferSteps and BufferBytes are %d and %d, want at least 1", o.BufferSteps, o.BufferBytes)
	}
	if o.MaxBody < 1 || o.MaxRequests < 1 {
		bad("MaxBody and MaxRequests are %d and %d, want at least 1", o.MaxBody, o.MaxRequests)
	}
	seen := map[string]bool{o.Model: true}
	for _, a := range o.Adapters {
		if a.Name == "" || seen[a.Name] {
			bad("adapter name %q is empty or served twice", a.Name)
		}
		seen[a.Name] = true
	}
	if o.NoEvents && (o.Events != nil || o.Replay != nil) {
		bad("NoEvents is set together with Events or Replay")
	}
	return errors.Join(errs...)
}
