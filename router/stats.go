package router

import (
	"time"

	"github.com/stator-go/stator/kvindex"
)

// Stats is a copy of a router's figures at one moment. All of it is control
// path.
type Stats struct {
	// Picks counts bookings and Done their ends; the difference is Outstanding.
	Picks       uint64
	Done        uint64
	Outstanding int
	// Rejected counts refusals by Reason.
	Rejected [Reasons]uint64
	// UnknownReports counts reports of slots that are not in the worker list.
	UnknownReports uint64
	// Workers is the ledger, in the order of the worker list.
	Workers []WorkerStats
	// GoneLeases counts outstanding leases on workers that have left.
	GoneLeases int
	// TrieNodes is the size of the set of active chains, in runs.
	TrieNodes int

	// Timing is the step model in use, and LearnRows the number of observations
	// that went into it. LearnError is their mean absolute error as a share.
	Timing     Timing
	LearnRows  uint64
	LearnError float64
	// OutputMean is the expected number of output tokens.
	OutputMean float64
	// TPOT is the mean time per output token of recent completions; 0 = none yet.
	TPOT time.Duration

	// TTFT sets the expected time to the first token against the actual one, over
	// recent requests.
	TTFT PredictedActual
	// PredictedHit and ActualHit are prompt tokens expected to be reused and those
	// that the engines said were, over all requests with such a report, which had
	// ReportedPrompt prompt tokens.
	PredictedHit, ActualHit, ReportedPrompt uint64
}

// WorkerStats is the ledger of one worker and, apart from it, what the engine
// reported.
type WorkerStats struct {
	Worker
	Picks, Done, Failed uint64
	// Blocks is the number of complete prompt blocks of the picks, and Matched that
	// of those which the index knew to be there in some tier. A worker at work of
	// which nothing ever matches may be one whose events go astray.
	Blocks, Matched uint64
	Outstanding     int
	Decoding        int
	Pending         int           // without a first token
	PendingTokens   int           // to compute for them
	Queue           time.Duration // expected until they are through
	PromptTokens    int           // of the outstanding requests
	ActiveBlocks    int           // distinct complete blocks of theirs
	PrivateBlocks   int           // their other blocks

	// HasLoad says that the engine has reported; Stale that it did too long ago.
	HasLoad, Stale bool
	Load           Load
	LoadAge        time.Duration
	// OtherRequests is how many requests the report has that this router did not
	// send.
	OtherRequests int
	// Failures counts failures in a row; Paused says that the worker is left out
	// because of them.
	Failures int
	Paused   bool
}

// PredictedActual holds means over recent requests, weight 1/200 each.
type PredictedActual struct {
	Count             uint64
	Predicted, Actual time.Duration
	// AbsError is the mean absolute difference.
	AbsError time.Duration
}

// errorMean is what PredictedActual is made from, in seconds.
type errorMean struct {
	n                        uint64
	predicted, actual, error float64
}

func (m *errorMean) add(predicted, actual float64) {
	m.n++
	k := max(1/float64(m.n), 1.0/200)
	m.predicted += (predicted - m.predicted) * k
	m.actual += (actual - m.actual) * k
	m.error += (max(predicted-actual, actual-predicted) - m.error) * k
}

// cachedCount sums reuse that was expected and that engines reported.
type cachedCount struct{ predicted, actual, prompt uint64 }

func (c *cachedCount) add(predicted, actual, prompt int) {
	c.predicted += uint64(predicted)
	c.actual += uint64(min(actual, prompt)) // an engine may say what it likes
	c.prompt += uint64(prompt)
}

// Stats copies the figures. It takes time in proportion to the workers and
// allocates; call it for dashboards, not per request.
func (r *Router) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	r.view.now = now
	r.settleAll(now)
	s := Stats{
		Picks:          r.bookings,
		Done:           r.bookings - uint64(r.outstanding),
		Outstanding:    r.outstanding,
		Rejected:       r.rejected,
		UnknownReports: r.unknownReports,
		TrieNodes:      r.trie.live,
		Timing:         r.timing,
		OutputMean:     r.outputMean,
		TPOT:           seconds(r.tpot),
		TTFT: PredictedActual{
			Count: r.ttft.n, Predicted: seconds(r.ttft.predicted),
			Actual: seconds(r.ttft.actual), AbsError: seconds(r.ttft.error),
		},
		PredictedHit: r.cached.predicted, ActualHit: r.cached.actual, ReportedPrompt: r.cached.prompt,
	}
	if r.learn != nil {
		s.LearnRows, s.LearnError = r.learn.rows, r.learn.mean
	}
	s.GoneLeases = r.outstanding
	for _, w := range r.rows {
		s.GoneLeases -= w.outstanding
		ws := WorkerStats{
			Worker: w.Worker, Picks: w.picks, Done: w.done, Failed: w.failed,
			Blocks: w.blocks, Matched: w.matched,
			Outstanding: w.outstanding, Decoding: w.decoding,
			Pending: w.pending, PendingTokens: w.pendTok, Queue: seconds(w.queue(now)),
			PromptTokens: w.promptTokens, ActiveBlocks: w.active, PrivateBlocks: w.private,
			HasLoad: w.hasLoad, Load: w.load, LoadAge: -1,
			OtherRequests: w.strangers.waiting + w.strangers.running,
			Failures:      w.fails, Paused: now < w.pausedTill,
		}
		if w.hasLoad {
			ws.LoadAge, ws.Stale = seconds(now-w.loadAt), !r.view.fresh(w)
		}
		s.Workers = append(s.Workers, ws)
	}
	return s
}

// Outstanding is the number of requests that this router has on a slot; 0 for an
// unknown one.
func (r *Router) Outstanding(s kvindex.Slot) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.slots[s]; w != nil {
		return w.outstanding
	}
	return 0
}
