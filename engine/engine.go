package engine

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/stator-go/stator/kvindex/block"
)

// An Engine answers requests: a single worker, or a wrapper around others.
type Engine interface {
	// Generate runs one request and yields chunks until the end. Breaking off
	// the iteration, or cancelling ctx, must cancel the request on the engine at
	// once. After a non-nil error nothing more is yielded. A sequence that ends
	// without an error must have yielded a finish reason other than "abort" and
	// "error" for every choice, which are req.N for each of req.Prompts. Chunks
	// either all have Raw or none has; see [Chunk]. Generate must not change or keep req or its body beyond the
	// iteration, and must be safe for concurrent use.
	Generate(ctx context.Context, req *Request) iter.Seq2[*Chunk, error]
}

// An API is the form of a request's body and of its answer's chunks.
type API uint8

// The APIs.
const (
	APICompletions API = iota + 1 // POST /v1/completions
	APIChat                       // POST /v1/chat/completions
)

// A Request is one generation.
type Request struct {
	// ID names the request in logs and upstream (X-Request-Id).
	ID  string
	API API
	// Model is the name that the client asked for: a base model or an adapter.
	Model string
	// Body is the client's JSON object, minus fields that clients may not set.
	// Unknown fields survive.
	Body []byte
	// Header holds the client's headers that may go upstream; nil for none.
	Header http.Header

	Stream       bool // the client asked for a stream
	IncludeUsage bool // the client asked for usage in the stream
	N            int  // choices a prompt, at least 1
	Prompts      int  // prompts in the body, at least 1
	MaxTokens    int  // limit of output tokens a choice, 0 = unknown

	// Adapter is the LoRA adapter that Model names, if any; Base the base model.
	// They are filled by whoever knows the workers' models.
	Base, Adapter string
	// Salt is the client's cache_salt.
	Salt string
	// Session groups the requests of one conversation for affinity.
	Session string
	// Priority: larger is earlier. 0 is the default.
	Priority int
	// Rank pins the data-parallel rank upstream; -1 leaves it to the engine.
	// Beware of the zero value: it pins rank 0.
	Rank int

	// Tokens are the prompt's ids once they are known (nil before). Media are
	// its multimodal items.
	Tokens []uint32
	Media  []block.Media

	// RawOnly says that the caller needs no Chunk.Text where there is Raw: an
	// engine that relays Raw may leave it empty, one without Raw ignores RawOnly.
	// Chunk.Tokens counts all the same.
	RawOnly bool

	// Deadline for the whole request; zero for none. An engine must not go on
	// after it.
	Deadline time.Time
	// Timeline collects spans; nil drops them.
	Timeline *Timeline
}

// A Chunk is one piece of an answer. It and its slices are valid until the next
// step of the iteration.
//
// An engine that has the answer's JSON, because it relays it, puts it into Raw,
// and it reaches the client byte for byte. An engine that has none leaves Raw nil
// in all its chunks: engine/openai's Handler then makes the JSON from Choice,
// Text, TokenIDs, Finish and Usage, and such an engine yields the same chunks
// whether the request streams or not. The first chunk that is not Hidden
// decides, and a Part counts as one with Raw; an answer that mixes the two fails
// with [ErrProtocol].
type Chunk struct {
	// Raw is the upstream event's JSON: one SSE data payload, or the whole body
	// when the request does not stream, of which there is exactly one then. It is
	// nil on a Part, and on every chunk of an engine that has no JSON.
	Raw []byte
	// Part marks a chunk whose event carries several choices (an answer that
	// does not stream with n > 1): one chunk a choice is yielded, and Raw comes
	// with the last of them. It is for engines with Raw alone.
	Part bool
	// More says that another chunk is already there, so that a relay may put
	// off its flush. It is a hint.
	More bool
	// Choice is the choice index, -1 when the chunk carries none. With several
	// prompts those of the first come first: prompt × n + choice.
	Choice   int
	TokenIDs []uint32
	Text     string
	// Tokens is the number of output tokens this chunk stands for as far as
	// it can be told, at least 1 when it has text or ids.
	Tokens int
	// Finish is the choice's finish reason ("stop", "length"), "" while it goes
	// on. Nothing of the choice may come after it when there is no Raw.
	Finish string
	// Usage is set where the engine reported it.
	Usage *Usage
	// Hidden marks a chunk the client did not ask for (injected usage).
	Hidden bool
}

// Usage is what an engine reported about one request.
type Usage struct {
	Prompt, Completion int
	// Cached is the number of prompt tokens served from cache; -1 if unknown.
	Cached int
}

// A Tokenizer turns a request's prompt into the engine's token ids.
type Tokenizer interface {
	// Tokenize appends the ids of the prompt to dst. It must give the ids that
	// the engine itself would use for req.
	Tokenize(ctx context.Context, dst []uint32, req *Request) ([]uint32, error)
}

// Load is what an engine said about itself at one moment. Unknown is not zero:
// a field whose Has flag is false was not reported. A router takes the
// part of it that its own type router.Load has, fields of the same names; there
// stands how to copy it.
type Load struct {
	At               time.Time
	Running, Waiting int
	HasQueue         bool
	KVUsage          float64 // 0 to 1, share of blocks in use by requests
	HasKV            bool
	KVBlocks         int // usable cache blocks, 0 = not reported
	BlockSize        int // tokens per block, 0 = not reported
	// Queries and Hits are cumulative prompt tokens looked up and found.
	Queries, Hits float64
	HasPrefix     bool
}

// A LoadSource reports load, one entry a data-parallel rank.
type LoadSource interface {
	Load(ctx context.Context) ([]Load, error)
}

// A Model is one entry of an engine's model list.
type Model struct {
	ID     string
	Parent string // the base model of an adapter, "" for a base model
	MaxLen int    // context length in tokens, 0 = unknown
}

// A ModelLister lists the models and adapters that an engine serves.
type ModelLister interface {
	Models(ctx context.Context) ([]Model, error)
}

// A HealthChecker says whether the engine answers.
type HealthChecker interface {
	Health(ctx context.Context) error
}
