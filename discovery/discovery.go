package discovery

import (
	"context"
	"iter"
	"time"
)

// A Source tells which workers exist.
type Source interface {
	// Watch yields a full snapshot first, then changes, until ctx ends or the
	// consumer breaks off. It must survive a failing store: it keeps the last
	// good state and says so with an Update whose Err is set. Until a first
	// snapshot could be read, such updates may come before it. Watch may be called
	// several times, also at once; each call is its own sequence.
	//
	// A non-nil error ends the sequence: the source cannot go on. The end of ctx
	// is not an error; the sequence just ends.
	Watch(ctx context.Context) iter.Seq2[Update, error]
}

// An Update is one step of a Source's sequence.
type Update struct {
	// Snapshot is true when Put is the whole list and replaces all before.
	Snapshot bool
	// Put holds new and changed workers, Gone the names of those that left. A
	// worker whose Incarnation changed is put again, not gone in between.
	Put  []Worker
	Gone []string
	// Age is how old the state is that this update leaves in force: 0 when it is
	// fresh. Before the first snapshot, when nothing is in force, it is the time
	// since Watch began. Err tells why the state is not fresh; an update without
	// Put, Gone and Err says that it is fresh again.
	Age time.Duration
	Err error
}

// A Role is what a worker is used for.
type Role string

// Roles.
const (
	RoleBoth    Role = "" // prefill and decode
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

// Endpoints are the addresses of a worker. Empty means absent.
type Endpoints struct {
	HTTP     string `json:"http"`               // base URL
	Events   string `json:"events,omitempty"`   // tcp://host:port of rank 0
	Replay   string `json:"replay,omitempty"`   // tcp://host:port of rank 0
	Transfer string `json:"transfer,omitempty"` // host:port
}

// A Worker is one engine instance.
type Worker struct {
	Name        string            `json:"name"`                  // unique in its source
	Incarnation string            `json:"incarnation,omitempty"` // another one: it restarted, its cache is empty
	Engine      string            `json:"engine,omitempty"`      // kind: "vllm"
	Role        Role              `json:"role,omitempty"`
	Ranks       int               `json:"ranks,omitempty"` // data-parallel ranks, 0 means 1
	Endpoints   Endpoints         `json:"endpoints"`
	Labels      map[string]string `json:"labels,omitempty"`
	Models      []string          `json:"models,omitempty"`
	Adapters    []string          `json:"adapters,omitempty"`
	Capacity    Capacity          `json:"capacity,omitzero"`
	Draining    bool              `json:"draining,omitempty"` // takes no new requests
	// Extra keeps fields of the source that this version does not know, numbers
	// as json.Number. Unknown fields of endpoints and capacity are kept as objects
	// under those names.
	Extra map[string]any `json:"-"`
}

// Capacity is what a worker can hold. 0 means unknown.
type Capacity struct {
	KVBlocks  int `json:"kv_blocks,omitempty"`
	BlockSize int `json:"block_size,omitempty"` // tokens per engine block
}
