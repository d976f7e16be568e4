package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
	"github.com/stator-go/stator/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	usage = `data: {"id":"c","choices":[],"usage":{"prompt_tokens":700,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":512}}}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

func event1(text, finish string) string {
	f := "null"
	if finish != "" {
		f = `"` + finish + `"`
	}
	return fmt.Sprintf(`data: {"id":"c","choices":[{"index":0,"text":%q,"finish_reason":%s}],"usage":null}`+"\n\n", text, f)
}

func TestAnswer(t *testing.T) {
	long := event1(strings.Repeat("x", 20_000), "")
	for _, c := range []struct {
		name, in, err string
		completion    int
	}{
		{"whole", event1("a", "") + event1("b", "") + event1("c", "length") + fmt.Sprintf(usage, 3) + done, "", 3},
		{"usage with the end", event1("a", "") + strings.Replace(event1("b", "stop"), `"usage":null`, `"usage":{"prompt_tokens":1,"completion_tokens":2}`, 1) + done, "", 2},
		{"comments", ": hello\n\n" + event1("a", "length") + ": ping\n\n" + fmt.Sprintf(usage, 1) + done, "", 1},
		{"long events", long + long + event1("", "length") + fmt.Sprintf(usage, 9) + done, "", 9},
		{"cut", event1("a", "") + event1("b", ""), errCut.Error(), 0},
		{"nothing", "", errCut.Error(), 0},
		{"no finish", event1("a", "") + event1("b", "") + fmt.Sprintf(usage, 2) + done, errFinish.Error(), 2},
		{"polite abort", event1("a", "") + event1("", "abort") + fmt.Sprintf(usage, 1) + done, `answer ended with finish reason "abort"`, 1},
		{"error event", event1("a", "") + `data: {"error": {"message": "engine is dead", "code": 500}}` + "\n\n" + done, "engine is dead", 0},
		{"no usage", event1("a", "") + event1("b", "length") + done, errUsage.Error(), 0},
		{"only usage", fmt.Sprintf(usage, 0) + done, errFinish.Error(), 0},
		{"no JSON", "data: {\n\n" + done, "answer: unexpected end of JSON input", 0},
		{"too long", "data: " + strings.Repeat("y", maxEvent+10) + "\n", fmt.Sprintf("answer: an event of more than %d bytes", maxEvent), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a answer
			err := a.read(strings.NewReader(c.in))
			if c.err == "" {
				require.NoError(t, err)
				require.False(t, a.first.IsZero())
				require.False(t, a.last.Before(a.first))
			} else {
				require.EqualError(t, err, c.err)
			}
			require.Equal(t, c.completion, a.completion)
		})
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(event1("a", "length") + fmt.Sprintf(usage, 1) + done))
	f.Add([]byte("data: {\"choices\":[{}]}\ndata:[DONE]\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var a answer
		if a.read(strings.NewReader(string(in))) == nil && a.first.IsZero() {
			t.Fatal("an answer without a token passed as whole")
		}
	})
}

func TestPromptIsFixed(t *testing.T) {
	r := &trace.Request{Input: 700, Output: 5, Blocks: []uint32{0, 77}}
	ids := AppendPrompt(nil, r)
	require.Len(t, ids, 700)
	// Other runs and other machines must send the same prompts.
	require.Equal(t, []uint32{8949, 6099, 6320, 2021}, ids[:4])
	require.Equal(t, ids[:512], AppendPrompt(nil, &trace.Request{Input: 512, Blocks: []uint32{0}}))
	require.NotEqual(t, ids[:188], ids[512:])
	var body struct {
		Prompt    []uint32 `json:"prompt"`
		Model     string   `json:"model"`
		MaxTokens int      `json:"max_tokens"`
		IgnoreEOS bool     `json:"ignore_eos"`
		Stream    bool     `json:"stream"`
	}
	hostile := "a\"b\x00\x07\u2028</script>'"
	require.NoError(t, json.Unmarshal(appendBody(nil, hostile, r, 0), &body))
	require.Equal(t, ids, body.Prompt)
	require.Equal(t, hostile, body.Model)
	require.Equal(t, 5, body.MaxTokens)
	require.True(t, body.IgnoreEOS && body.Stream)
}

// A router must not learn from the playing client how long an answer will be:
// requests of different lengths differ in what the engine alone reads.
func TestLengthIsForSimulatedEnginesOnly(t *testing.T) {
	reqs := []trace.Request{{Input: 1, Output: 5, Blocks: []uint32{1}}, {Input: 1, Output: 900, Blocks: []uint32{1}}}
	require.Equal(t, MinBound, bound(reqs))
	require.Equal(t, 5000, bound(append(reqs, trace.Request{Output: 5000})))
	for _, r := range reqs {
		// As the gateway's handler reads and forwards it.
		var req engine.Request
		require.NoError(t, openai.ParseRequest(&req, engine.APICompletions, appendBody(nil, "m", &r, MinBound), openai.Limits{}))
		require.Equal(t, MinBound, req.MaxTokens)
		require.Contains(t, string(req.Body), fmt.Sprintf(`"vllm_xargs":{"sim_output_tokens":%d}`, r.Output))
		require.NoError(t, openai.ParseRequest(&req, engine.APICompletions, appendBody(nil, "m", &r, 0), openai.Limits{}))
		require.Equal(t, r.Output, req.MaxTokens)
		require.NotContains(t, string(req.Body), "xargs")
	}
}

// The slowest of speeds must not turn into the fastest by overflow.
func TestSlowestSpeed(t *testing.T) {
	require.Equal(t, 2*time.Second, after(time.Second, .5))
	require.Equal(t, maxWait, after(time.Hour, 1e-300))
	require.Zero(t, after(0, 1e-300))
}

func TestPlay(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt    []uint32 `json:"prompt"`
			MaxTokens int      `json:"max_tokens"`
		}
		raw, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(raw, &body)
		mu.Lock()
		seen[r.Header.Get("X-Request-Id")] = len(body.Prompt)
		mu.Unlock()
		if body.MaxTokens == 13 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"message":"no worker"}}`)
			return
		}
		for i := range body.MaxTokens {
			finish := ""
			if i == body.MaxTokens-1 {
				finish = "length"
			}
			_, _ = io.WriteString(w, event1("t", finish))
		}
		_, _ = io.WriteString(w, fmt.Sprintf(usage, body.MaxTokens)+done)
	}))
	defer srv.Close()
	reqs := []trace.Request{
		{At: 5 * time.Second, Input: 700, Output: 4, Blocks: []uint32{1, 2}},
		{At: 6 * time.Second, Input: 700, Output: 1, Blocks: []uint32{1, 3}},
		{At: 7 * time.Second, Input: 700, Output: 13, Blocks: []uint32{1, 4}},
	}
	var answered []int
	out, err := Play(context.Background(), Options{
		URL: srv.URL, Model: "m", Speed: 1000, Requests: reqs,
		Cold:     func(n int) time.Duration { return time.Duration(n) },
		Answered: func(n int) { mu.Lock(); answered = append(answered, n); mu.Unlock() },
	})
	require.NoError(t, err)
	require.Len(t, out, 3)
	for i, o := range out[:2] {
		require.NoError(t, o.Err)
		require.Equal(t, 700, o.Prompt)
		require.Equal(t, 512, o.Cached)
		require.Equal(t, time.Duration(700), o.Cold)
		require.Positive(t, o.Late)
		require.Greater(t, o.TTFT, o.Late)
		require.Equal(t, i == 0, o.HasITL)
	}
	require.True(t, out[2].Failed)
	require.EqualError(t, out[2].Err, "request 3: status 503: no worker")
	require.Equal(t, map[string]int{"trace-00001": 700, "trace-00002": 700, "trace-00003": 700}, seen)
	require.Len(t, answered, 3)
}

// A cancelled play must come back at once and leave nothing behind.
func TestPlayCancelled(t *testing.T) {
	entered := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(entered)
		<-r.Context().Done()
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-entered; cancel() }()
	out, err := Play(ctx, Options{URL: srv.URL, Requests: []trace.Request{
		{Input: 1, Output: 1, Blocks: []uint32{1}}, {At: time.Hour, Input: 1, Output: 1, Blocks: []uint32{1}},
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, out[0].Err, context.Canceled)
}
