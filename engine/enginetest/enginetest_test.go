package enginetest_test

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is the smallest engine that keeps every promise, and, by fault, one that
// breaks one of them.
type echo struct {
	plain  bool // no Raw
	fault  string
	active atomic.Int32
}

func (e *echo) Generate(ctx context.Context, req *engine.Request) iter.Seq2[*engine.Chunk, error] {
	return func(yield func(*engine.Chunk, error) bool) {
		e.active.Add(1)
		if e.fault != "leaks" {
			defer e.active.Add(-1)
		}
		if !req.Deadline.IsZero() && req.Deadline.Before(time.Now()) && e.fault != "deadline" {
			yield(nil, context.DeadlineExceeded)
			return
		}
		if strings.Contains(string(req.Body), "bad") && e.fault != "accepts" {
			yield(nil, &engine.Error{Status: 400, Message: "bad"})
			return
		}
		if e.fault == "changes" {
			req.Body[0] = ' '
		}
		for i := range req.N {
			for k := range 5 {
				if ctx.Err() != nil && e.fault != "deaf" {
					yield(nil, ctx.Err())
					return
				}
				if !req.Stream && !e.plain && (i < req.N-1 || k < 4) {
					if k < 4 {
						continue
					}
					if !yield(&engine.Chunk{Choice: i, Part: true, Tokens: 5, Finish: "stop"}, nil) {
						return
					}
					continue
				}
				c := &engine.Chunk{Choice: i, Raw: []byte(`{}`), Text: "x", Tokens: 1}
				if e.plain && (e.fault != "mixes" || k < 4) {
					c.Raw = nil
				}
				switch {
				case e.fault == "silent" && req.RawOnly:
					c.Text = ""
				case e.fault == "goes on" && k == 3:
					c.Finish = "stop"
				case e.fault == "uncounted":
					c.Tokens = 0
				case e.fault == "not JSON":
					c.Raw = []byte("{")
				case k == 4 && e.fault == "aborts":
					c.Finish = "abort"
				}
				if k == 4 && c.Finish == "" && e.fault != "unfinished" {
					c.Finish = "stop"
				}
				if !yield(c, nil) {
					return
				}
			}
		}
		if use := (&engine.Usage{Prompt: 1, Completion: 5, Cached: -1}); e.plain {
			yield(&engine.Chunk{Choice: -1, Usage: use}, nil)
		} else if req.Stream {
			yield(&engine.Chunk{Choice: -1, Raw: []byte(`{}`), Hidden: e.fault != "shows", Usage: use}, nil)
		}
	}
}

func harness(fault string, plain bool) enginetest.Harness {
	return enginetest.Harness{
		New: func(t *testing.T) enginetest.Instance {
			e := &echo{fault: fault, plain: plain}
			return enginetest.Instance{Engine: e, Active: func() int { return int(e.active.Load()) }}
		},
		Request: func(stream bool, n, tokens int) *engine.Request {
			return &engine.Request{API: engine.APICompletions, Body: []byte("{}"), Stream: stream, N: n, Prompts: 1, Rank: -1}
		},
		Bad:      func() *engine.Request { return &engine.Request{Body: []byte("bad"), N: 1, Prompts: 1} },
		Patience: 50 * time.Millisecond,
	}
}

func TestGoodEnginePasses(t *testing.T) { enginetest.Run(t, harness("", false)) }

func TestGoodEngineWithoutRawPasses(t *testing.T) { enginetest.Run(t, harness("", true)) }

// Each broken promise is found. A failing test cannot run inside a passing one,
// so this one runs its own binary again for each.
func TestBrokenPromisesAreFound(t *testing.T) {
	if fault := os.Getenv("ENGINETEST_FAULT"); fault != "" {
		fault, plain := strings.CutPrefix(fault, "plain ")
		enginetest.Run(t, harness(fault, plain))
		return
	}
	for _, tc := range []struct{ fault, says string }{
		{"unfinished", "is not finished"},
		{"aborts", `with "abort"`},
		{"uncounted", "counts no token"},
		{"not JSON", "not JSON"},
		{"shows", "usage shown: true"},
		{"leaks", "still at work"},
		{"deaf", "error <nil>"},
		{"deadline", "DeadlinePassed"},
		{"accepts", "status 4xx"},
		{"changes", "body was changed"},
		{"plain mixes", "chunks with Raw and chunks without it"},
		{"plain silent", "neither Raw nor text"},
		{"plain goes on", "goes on after its finish"},
		{"plain unfinished", "is not finished"},
		{"plain uncounted", "counts no token"},
	} {
		t.Run(tc.fault, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestBrokenPromisesAreFound$", "-test.count=1")
			cmd.Env = append(os.Environ(), "ENGINETEST_FAULT="+tc.fault)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the suite passed: %s", out)
			require.Contains(t, string(out), tc.says)
		})
	}
}

func ExampleRun() {
	// In an adapter's test:
	_ = func(t *testing.T) {
		enginetest.Run(t, enginetest.Harness{
			New: func(t *testing.T) enginetest.Instance { return enginetest.Instance{Engine: &echo{}} },
			Request: func(stream bool, n, tokens int) *engine.Request {
				body := fmt.Appendf(nil, `{"model":"m","prompt":"x","stream":%v,"n":%d,"max_tokens":%d}`, stream, n, tokens)
				return &engine.Request{API: engine.APICompletions, Body: body, Stream: stream, N: n, Prompts: 1, Rank: -1}
			},
		})
	}
	fmt.Println("one subtest a promise")
	// Output: one subtest a promise
}
