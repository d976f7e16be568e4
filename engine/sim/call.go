package sim

import "sync"

// Finish reasons.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishAbort  = "abort"
)

// A call is one HTTP request with its sequences: n choices of each prompt. The
// engine puts tokens in, the request's goroutine takes them out.
type call struct {
	id   string
	ask  *ask
	seqs []sequence    // choice k of prompt p is p*n + k
	open int           // sequences in the engine; guarded by Server.mu
	news chan struct{} // has room for one

	mu      sync.Mutex // guards what follows and the sequences' news
	waiting int        // sequences whose end was not told yet
	dead    bool       // the server was closed
}

// A sequence is one choice.
type sequence struct {
	req    Req
	call   *call
	prompt int // index of the prompt

	arrived, last float64 // engine's time of arrival and latest token; guarded by Server.mu

	// News, guarded by call.mu.
	fresh          []uint32 // tokens not taken yet
	cached, stored int
	finish         string

	// The request's goroutine's own.
	taken  []uint32 // the slice that take hands out and swaps
	choice choice
}

// newCall makes the sequences of a request.
func newCall(id string, a *ask) *call {
	c := &call{id: id, ask: a, seqs: make([]sequence, len(a.prompts)*a.n), news: make(chan struct{}, 1)}
	c.waiting = len(c.seqs)
	for i := range c.seqs {
		q := &c.seqs[i]
		q.call, q.prompt = c, i/a.n
		q.choice.index = i
		q.req = Req{
			Tokens: a.prompts[q.prompt], Out: a.limit(len(a.prompts[q.prompt])),
			Salt: a.salt, Session: a.session, Adapter: a.adapter.Name, AdapterPath: a.adapter.Path,
			Seed: uint64(i % a.n), IgnoreEOS: a.ignoreEOS, FullReport: a.fullReport, NoCacheRead: a.promptLogprobs, Data: q,
		}
	}
	return c
}

// token records news of a sequence: a token, an end, or both. It never blocks.
func (c *call) token(q *sequence, t *Token, finish string) {
	c.mu.Lock()
	if t != nil {
		q.fresh = append(q.fresh, t.ID)
		q.cached, q.stored = t.Cached, t.Stored
	}
	if finish != "" {
		q.finish = finish
		c.waiting--
	}
	tell := c.waiting == 0 || len(c.ask.stop) > 0 || len(c.ask.stopIDs) > 0 ||
		c.ask.stream && (len(q.fresh) >= c.ask.interval || finish != "" || t != nil && t.First())
	c.mu.Unlock()
	if tell {
		c.wakeUp()
	}
}

// cut tells the request's goroutine that the server is gone.
func (c *call) cut() {
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	c.wakeUp()
}

func (c *call) wakeUp() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// take returns a sequence's tokens since the last take, which are valid until
// the next one, and its finish reason.
func (c *call) take(q *sequence) (ids []uint32, finish string) {
	c.mu.Lock()
	q.taken, q.fresh = q.fresh, q.taken[:0]
	finish = q.finish
	c.mu.Unlock()
	return q.taken, finish
}

// state tells whether all sequences have ended, and whether the server is gone.
func (c *call) state() (over, dead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting == 0, c.dead
}

// counts are a call's cached and newly stored tokens. A prompt counts once,
// whatever the number of its choices.
func (c *call) counts() (cached, stored int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.seqs {
		if i%c.ask.n == 0 {
			cached += c.seqs[i].cached
		}
		stored += c.seqs[i].stored
	}
	return cached, stored
}
