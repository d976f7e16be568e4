package page

// State is what /debug/state answers. Times and durations are in seconds of
// trace time; At is counted from the start of the run. A pointer that is null
// stands for a figure that is not known, which is not the same as zero.
type State struct {
	Now       float64    `json:"now"`
	Speed     float64    `json:"speed"`
	Policy    string     `json:"policy"`
	Model     string     `json:"model,omitempty"`
	Run       Run        `json:"run"`
	Totals    Totals     `json:"totals"`
	History   []Interval `json:"history"`
	Results   []Result   `json:"results"`
	Workers   []Worker   `json:"workers"`
	Decisions []Decision `json:"decisions"` // newest first
	Requests  []Trip     `json:"requests"`  // newest first
}

// Run says what is being played. Total is 0 when nothing is.
type Run struct {
	Title string `json:"title"`
	Index int    `json:"index"` // from 1
	Of    int    `json:"of"`
	Done  int    `json:"done"`
	Total int    `json:"total"`
}

// Totals are the figures of the present run. Latencies are those of the last
// Window requests that were answered.
type Totals struct {
	Requests     int      `json:"requests"` // ended
	Active       int      `json:"active"`
	Errors       int      `json:"errors"`
	Left         int      `json:"left"`          // whose client did not wait for the end
	PromptTokens int      `json:"prompt_tokens"` // of requests whose engine told its cached tokens
	CachedTokens int      `json:"cached_tokens"`
	OutputTokens int      `json:"output_tokens"`
	OutputRate   *float64 `json:"output_rate"` // tokens a second, last whole intervals
	Window       int      `json:"window"`
	TTFTMean     *float64 `json:"ttft_mean"`
	TTFTP95      *float64 `json:"ttft_p95"`
	ITLMean      *float64 `json:"itl_mean"`
	ITLP95       *float64 `json:"itl_p95"`
	OwnWall      *float64 `json:"own_wall"`         // the gateway's own time a request, wall clock
	OwnControl   *float64 `json:"own_control_wall"` // of it, before the engine was asked
}

// An Interval sums up the requests that ended in a few seconds.
type Interval struct {
	At     float64  `json:"at"`
	Ended  int      `json:"ended"`
	TTFT   *float64 `json:"ttft"` // mean
	ITL    *float64 `json:"itl"`
	Reuse  *float64 `json:"reuse"`
	Output float64  `json:"output"` // tokens a second
	Own    *float64 `json:"own"`    // wall clock
}

// A Result is a finished run.
type Result struct {
	Policy   string  `json:"policy"`
	Requests int     `json:"requests"`
	Errors   int     `json:"errors"`
	TTFTMean float64 `json:"ttft_mean"`
	TTFTP50  float64 `json:"ttft_p50"`
	TTFTP95  float64 `json:"ttft_p95"`
	TTFTP99  float64 `json:"ttft_p99"`
	ITLP95   float64 `json:"itl_p95"`
	Reuse    float64 `json:"reuse"`
	Goodput  float64 `json:"goodput"`
	Own      float64 `json:"own"`
}

// A Worker is one engine as the gateway sees it.
type Worker struct {
	Name     string   `json:"name"`
	URL      string   `json:"url"`
	State    string   `json:"state"` // up, draining or down
	Why      string   `json:"why,omitempty"`
	Running  *int     `json:"running"`
	Waiting  *int     `json:"waiting"`
	KV       *float64 `json:"kv"`    // share of KV blocks that requests hold
	Reuse    *float64 `json:"reuse"` // share of prompt tokens found in cache
	Requests int      `json:"requests"`
	Events   string   `json:"events"` // state of the KV event stream, none without
	Blocks   *int     `json:"blocks"` // blocks that the index knows it to hold, in all tiers; null without events
}

// Cost is a decision's cost in seconds by component.
type Cost struct {
	Queue    float64 `json:"queue"`
	Prefill  float64 `json:"prefill"`
	Load     float64 `json:"load"`
	Transfer float64 `json:"transfer"`
	Decode   float64 `json:"decode"`
	Memory   float64 `json:"memory"`
	Price    float64 `json:"price"`
}

// A Decision is one pick. Total is 0 when the policy does not reckon in seconds.
type Decision struct {
	At     float64  `json:"at"`
	Worker string   `json:"worker"`
	Tokens int      `json:"tokens"` // of the prompt
	Reused int      `json:"reused"` // of them expected in the worker's cache
	Cost   Cost     `json:"cost"`
	Total  float64  `json:"total"`
	Next   *float64 `json:"next"` // cost of the second best worker
}

// A Trip is one request's way through the gateway and the engine.
type Trip struct {
	ID     string  `json:"id"`
	At     float64 `json:"at"`
	Worker string  `json:"worker"`
	Prompt int     `json:"prompt"`
	// Predicted is the number of prompt tokens that the index expected the engine
	// to have cached, Cached what the engine then reported.
	Predicted *int     `json:"predicted"`
	Cached    *int     `json:"cached"`
	Output    int      `json:"output"`
	TTFT      *float64 `json:"ttft"`
	Total     float64  `json:"total"` // so far, while Live
	Live      bool     `json:"live"`
	Error     string   `json:"error,omitempty"`
	Left      bool     `json:"left,omitempty"` // the client did not wait for the end
	Spans     []Span   `json:"spans"`
}

// A Span is a named piece of a trip, counted from the trip's start.
type Span struct {
	Name  string  `json:"name"`
	Class string  `json:"class"`
	Start float64 `json:"start"`
	End   float64 `json:"end"`
	Live  bool    `json:"live,omitempty"`
}
