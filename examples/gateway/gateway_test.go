package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/examples/gateway/internal/page"
	"github.com/stator-go/stator/internal/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tinyTrace writes a trace of n requests, 200 ms apart, in conversations of four
// turns over a common first block.
func tinyTrace(t *testing.T, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 1400, "output_length": %d, "hash_ids": [0, %d, %d]}`+"\n", i*200, 5+i%20, 1+i/4, 1000+i)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// buffer may be written and read at once.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs the program with two simulated engines and waits for want on its
// standard error. The result is the page's address and the exit code's channel.
func start(t *testing.T, args, want string, drain ...string) (url string, stdout, stderr *buffer, stop func() int) {
	stdout, stderr = &buffer{}, &buffer{}
	c, err := parse(strings.Fields(args), stdout)
	require.NoError(t, err)
	c.simulated = 2
	for _, d := range drain {
		c.drain, err = time.ParseDuration(d)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&gateway{config: c, stdout: stdout, stderr: stderr}).run(ctx) }()
	var end error
	var once sync.Once
	stop = func() int {
		once.Do(func() { cancel(); end = <-done })
		if end != nil {
			fmt.Fprintln(stderr, "gateway:", oneLine(end.Error()))
			return 1
		}
		return 0
	}
	t.Cleanup(func() { stop() })
	var m []string
	require.Eventually(t, func() bool {
		m = regexp.MustCompile(`(http://\S+)/\n`).FindStringSubmatch(stderr.String())
		return m != nil && strings.Contains(stderr.String(), want)
	}, 60*time.Second, 10*time.Millisecond, "%s", stderr)
	return m[1], stdout, stderr, stop
}

func fetch(t *testing.T, client *http.Client, url string, body string) (int, string) {
	var resp *http.Response
	var err error
	if body == "" {
		resp, err = client.Get(url)
	} else {
		resp, err = client.Post(url, "application/json", strings.NewReader(body))
	}
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

// The whole program over real sockets: both policies play the trace, the table
// and the file tell of it, and afterwards requests and the page are served.
func TestPlaysAndServes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	url, stdout, stderr, stop := start(t, "-listen 127.0.0.1:0 -speed 50 -trace "+tinyTrace(t, 60)+" -json "+file, "serving sim")
	require.Regexp(t, `roundrobin +60 +0 `, stdout.String())
	require.Regexp(t, `expected +60 +0 `, stdout.String())
	require.Contains(t, stdout.String(), "Times in the table are trace time, wall clock x 50")
	require.NotContains(t, stderr.String(), "failure")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var runs struct{ Runs []report.Row }
	require.NoError(t, json.Unmarshal(data, &runs))
	require.Len(t, runs.Runs, 2)
	for _, r := range runs.Runs {
		require.Equal(t, 60, r.Requests)
		require.Zero(t, r.Errors)
		require.Equal(t, 2, r.Workers)
		require.Positive(t, r.TTFT.Mean)
		require.Positive(t, r.ITL.P95)
		// Block 0 is common and a conversation has four turns: 2 of 3 blocks at best.
		require.Greater(t, r.Reuse, .2)
		require.Less(t, r.Reuse, .75)
	}
	require.Greater(t, runs.Runs[1].Reuse, runs.Runs[0].Reuse, "KV-aware must reuse more")

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	code, body := fetch(t, client, url+"/v1/completions", `{"model":"sim","prompt":"hello there","max_tokens":4}`)
	require.Equal(t, 200, code, body)
	require.Contains(t, body, `"completion_tokens":4`)
	code, body = fetch(t, client, url+"/v1/chat/completions", `{"model":"sim","messages":[{"role":"user","content":"hello"}],"max_tokens":3,"stream":true}`)
	require.Equal(t, 200, code, body)
	require.Contains(t, body, "data: [DONE]")
	code, body = fetch(t, client, url+"/v1/models", "")
	require.Equal(t, 200, code)
	require.Contains(t, body, `"id":"sim"`)
	code, body = fetch(t, client, url+"/", "")
	require.Equal(t, 200, code)
	require.Contains(t, body, "<title>Stator gateway</title>")

	var s page.State
	require.Eventually(t, func() bool { // an answer ends a moment before it is written down
		code, body = fetch(t, client, url+"/debug/state", "")
		return code == 200 && json.Unmarshal([]byte(body), &s) == nil && s.Totals.Requests == 62
	}, 10*time.Second, 5*time.Millisecond)
	require.Len(t, s.Results, 2)
	require.Len(t, s.Workers, 2)
	requests, reuse := 0, false // a worker that served nothing has none to tell
	for _, w := range s.Workers {
		require.Equal(t, "up", w.State)
		require.NotNil(t, w.Running)
		require.NotNil(t, w.KV)
		requests += w.Requests
		reuse = reuse || w.Reuse != nil
	}
	require.True(t, reuse)
	require.Equal(t, 62, requests)
	require.NotEmpty(t, s.Decisions)
	require.Positive(t, s.Decisions[0].Cost.Prefill)
	require.Positive(t, s.Decisions[0].Total)
	trip := s.Requests[0]
	require.NotEmpty(t, trip.Worker)
	require.NotNil(t, trip.Predicted)
	require.Equal(t, trip.Cached, trip.Predicted)
	require.NotNil(t, trip.TTFT)
	classes := map[string]bool{}
	for _, span := range trip.Spans {
		classes[span.Class] = true
	}
	require.Equal(t, map[string]bool{"control": true, "data": true, "compute": true}, classes)
	require.Zero(t, stop())
}

func TestOnceEnds(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), strings.Fields("-listen 127.0.0.1:0 -once -compare none -policy leastloaded -speed 50 -json - -trace "+tinyTrace(t, 20)), &stdout, &stderr)
	require.Zero(t, code, stderr.String())
	var runs struct{ Runs []report.Row }
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &runs), "-json - writes nothing but JSON")
	require.Len(t, runs.Runs, 1)
	require.Equal(t, "leastloaded", runs.Runs[0].Policy)
	require.Equal(t, 20, runs.Runs[0].Requests)
}

// Engines that are somebody's own, given by flag and by file.
func TestRealEngines(t *testing.T) {
	servers := make([]*sim.Server, 2)
	for i := range servers {
		s, err := sim.NewServer(&sim.Options{Config: engineConfig(), Speed: 50, Model: "theirs"})
		require.NoError(t, err)
		defer s.Close()
		servers[i] = s
	}
	file := filepath.Join(t.TempDir(), "workers.json")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"workers":[{"name":"a","endpoints":{"http":%q}},{"name":"b","endpoints":{"http":%q}}]}`, servers[0].URL(), servers[1].URL()), 0o600))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, args := range []string{
		"-workers " + file,
		fmt.Sprintf("-engine vllm=%s,events=%s,replay=%s -engine vllm=%s,name=second", servers[0].URL(), servers[0].EventsEndpoint(), servers[0].ReplayEndpoint(), servers[1].URL()),
	} {
		url, stdout, stderr, stop := start(t, "-listen 127.0.0.1:0 "+args, "serving theirs")
		code, body := fetch(t, client, url+"/v1/completions", `{"model":"theirs","prompt":[5,6,7],"max_tokens":2}`)
		require.Equal(t, 200, code, body)
		require.Empty(t, stdout.String(), "nothing was played")
		require.Equal(t, 2, strings.Count(stderr.String(), " is up: vLLM"))
		client.CloseIdleConnections()
		require.Zero(t, stop(), stderr.String())
	}
}

// Each fault is one line on standard error and a status that says so.
func TestFaultsAreOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := free.Addr().String()
	require.NoError(t, free.Close())
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := `{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}` + "\n"
	for args, want := range map[string]string{
		"-listen " + taken.Addr().String():                          "gateway: " + taken.Addr().String() + " is in use: choose another address with -listen",
		"-listen 127.0.0.1:0 -engine vllm=http://" + nobody:         "gateway: engine " + nobody + " at http://" + nobody + ": probe: engine: unreachable",
		"-trace " + write("bad.jsonl", good+"\n{oops\n"):            "bad.jsonl: line 3: invalid character",
		"-trace " + write("empty.jsonl", ""):                        "empty.jsonl: the trace is empty",
		"-trace " + dir + "/none.jsonl":                             "none.jsonl: no such file",
		"-workers " + write("w.json", `{"workers":[{"name":"a"}]}`): "gateway: -workers ",
		"-workers " + dir + "/none.json":                            "none.json: no such file",
		"-once -listen 127.0.0.1:0 -json " + dir + "/no/such/dir -compare none -speed 1000 -trace " + write("good.jsonl", good): "gateway: -json: open ",
		"-policy none": `gateway: policy "none": `,
		"-listen 127.0.0.1:0 -workers " + write("no.json", `{"workers":[]}`) + " -trace " + write("good.jsonl", good): "gateway: no worker is listed to play the trace on",
	} {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), strings.Fields(args), &stdout, &stderr)
		require.NotZero(t, code, args)
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		require.Contains(t, lines[len(lines)-1], want, args)
		require.NotContains(t, stderr.String(), "goroutine", args)
		require.LessOrEqual(t, len(lines), 4, args) // the page's address and the bar may stand before
	}
}

// An interrupt ends a run at once. Whoever waits for its figures must not take
// that for success; who only stops a server is told of none.
func TestInterruptedRun(t *testing.T) {
	for args, code := range map[string]int{"-once": 1, "-json " + filepath.Join(t.TempDir(), "r.json"): 1, "": 0} {
		url, stdout, stderr, stop := start(t, "-listen 127.0.0.1:0 -compare none -speed 0.01 -trace "+tinyTrace(t, 40)+" "+args, "live page")
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		require.Eventually(t, func() bool {
			_, body := fetch(t, client, url+"/debug/state", "")
			return strings.Contains(body, `"total":40`) // it plays
		}, 10*time.Second, 5*time.Millisecond)
		require.Equal(t, code, stop(), args)
		require.Empty(t, stdout.String())
		if code != 0 {
			require.Contains(t, stderr.String(), "gateway: interrupted before the table\n")
		}
	}
}

// An answer that is being sent when the program is told to end arrives whole, or
// says that it does not; either way the body ends as HTTP bodies end.
func TestEndsAnswersProperly(t *testing.T) {
	for _, c := range []struct {
		drain        string
		tokens, code int
		says         string
	}{{"10s", 1000, 0, `"finish_reason":"length"`}, {"20ms", 100_000, 1, "server is shutting down"}} {
		url, _, stderr, stop := start(t, "-listen 127.0.0.1:0 -compare none -speed 100 -trace "+tinyTrace(t, 2), "serving sim", c.drain)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		const clients = 8
		began, ended := make(chan error, clients), make(chan error, clients)
		ask := func(i int) (err error) {
			resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(
				fmt.Sprintf(`{"model":"sim","prompt":"hello %d","max_tokens":%d,"stream":true}`, i, c.tokens+i*100)))
			if err == nil {
				defer resp.Body.Close()
				_, err = io.ReadFull(resp.Body, make([]byte, 10))
			}
			if began <- err; err != nil {
				return err
			}
			b, err := io.ReadAll(resp.Body)
			if end := string(b[max(0, len(b)-500):]); err == nil && !(strings.Contains(end, c.says) && strings.HasSuffix(end, "data: [DONE]\n\n")) {
				err = fmt.Errorf("ended with %s", end)
			}
			return err
		}
		for i := range clients {
			go func() { ended <- ask(i) }()
		}
		for range clients {
			require.NoError(t, <-began)
		}
		require.Equal(t, c.code, stop())
		for range clients {
			require.NoError(t, <-ended)
		}
		if c.code != 0 {
			require.Contains(t, stderr.String(), "gateway: openai: drain: 8 requests cut off: context deadline exceeded\n")
		}
	}
}

// A gateway may start before its workers and outlive them; whoever asks for its
// health is told.
func TestNoWorkerYet(t *testing.T) {
	engine, err := sim.NewServer(&sim.Options{Config: engineConfig(), Speed: 50, Model: "the\x1b[2Jirs"})
	require.NoError(t, err)
	defer engine.Close()
	file := filepath.Join(t.TempDir(), "workers.json")
	write := func(list string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(`{"workers":[`+list+`]}`), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	write("")
	url, _, stderr, stop := start(t, "-listen 127.0.0.1:0 -workers "+file, "serving no model yet")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	health := func(want int) {
		require.Eventually(t, func() bool {
			code, _ := fetch(t, client, url+"/health", "")
			return code == want
		}, 20*time.Second, 10*time.Millisecond)
	}
	health(503)
	write(fmt.Sprintf(`{"name":"a","endpoints":{"http":%q}}`, engine.URL()))
	health(200)
	_, body := fetch(t, client, url+"/debug/state", "")
	var s page.State
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	require.Equal(t, engine.Model(), s.Model)
	require.NotContains(t, stderr.String(), "\x1b", "an engine must not steer the terminal")
	write("")
	health(503)
	require.Zero(t, stop())
}

func TestProgressLines(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, "x", 40)
	for i := range 40 {
		p.step(i + 1)
	}
	p.step(3) // late news
	p.finish()
	require.Equal(t, 10, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), "x              [===============               ] 20/40")
}
