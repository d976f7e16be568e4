package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stator-go/stator/discovery"
	"github.com/stator-go/stator/router"
)

// config is what the command line says.
type config struct {
	listen  string
	engines []discovery.Worker // given by -engine
	workers string             // file
	policy  string
	compare []string // policies to play before policy
	trace   string
	speed   float64
	once    bool
	json    string

	simulated int           // engines to simulate; 8 but in tests
	drain     time.Duration // for requests at work at the end; 10 s but in tests
}

// real says that the engines are somebody's own and not simulated here.
func (c *config) real() bool { return len(c.engines) > 0 || c.workers != "" }

// play says that a trace is played at the start.
func (c *config) play() bool { return !c.real() || c.trace != "" }

const usageText = `Usage: gateway [flags]

An OpenAI-compatible gateway that sends each request to the engine that is
expected to answer it first, given what each engine holds in its KV cache. The
live page is at / and its figures are at /debug/state.

Without flags it starts eight simulated engines on loopback, plays ten minutes of
a public chat trace at 20x speed, first with round robin and then, caches emptied,
KV-aware, prints one table and keeps serving:

  go run ./examples/gateway
  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \
    -d '{"model":"sim","prompt":"hello there","max_tokens":16}'

Flags:

  -listen ADDRESS
        Where to serve; port 0 takes a free one. Default 127.0.0.1:8080.
          -listen :8000
  -engine vllm=URL[,events=ADDRESS][,replay=ADDRESS][,name=NAME]
        A running engine, in place of simulated ones; repeat it for each. events
        and replay are its ZeroMQ endpoints of KV events (--kv-events-config);
        without events the gateway counts only on what it sent itself. An engine
        that tells its endpoints at /kv_event_sources needs neither.
          -engine vllm=http://10.0.0.7:8000,events=tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558
  -workers FILE
        A JSON file of workers, watched for changes, in place of -engine.
          -workers workers.json
          {"workers":[{"name":"a","engine":"vllm","endpoints":{"http":"http://10.0.0.7:8000"}}]}
  -policy NAME
        How to pick; some policies take options. Default expected. One of
        POLICIES.
          -policy "dynamo:w=4;pend=1"
  -compare NAME[,NAME...]
        Policies to play the trace with first, for comparison; none for none.
        Default roundrobin with simulated engines, none with others.
          -compare roundrobin,leastloaded
  -trace FILE
        A trace in Mooncake's JSON lines, plain or gzip'd, to play in place of
        the bundled one. With -engine or -workers it is played on those.
          -trace conversation_trace.jsonl
  -speed X
        Play X times as fast, 0.01 to 1000. Simulated engines run as much faster and
        all printed times are trace time; others are only offered the load sooner.
        Default 20, with -engine or -workers 1.
          -speed 5
  -once
        End after the table.
          -once -json run.json
  -json FILE
        Also write the table as JSON; - for standard output.
          -json run.json
`

// Bounds of -speed: a trace of an hour takes four days or four seconds.
const minSpeed, maxSpeed = 0.01, 1000.0

// errHelp is returned for -h; the text is on w then.
var errHelp = errors.New("help")

// parse reads the command line. Its errors are one line each.
func parse(args []string, w io.Writer) (*config, error) {
	c := &config{simulated: 8, drain: 10 * time.Second}
	f := flag.NewFlagSet("gateway", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.listen, "listen", "127.0.0.1:8080", "")
	var named []string
	f.Func("engine", "", func(s string) error {
		named = append(named, s) // read below: package flag would quote a password
		return nil
	})
	f.StringVar(&c.workers, "workers", "", "")
	f.StringVar(&c.policy, "policy", "expected", "")
	compare := f.String("compare", "", "")
	f.StringVar(&c.trace, "trace", "", "")
	f.Float64Var(&c.speed, "speed", 0, "")
	f.BoolVar(&c.once, "once", false, "")
	f.StringVar(&c.json, "json", "", "")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = io.WriteString(w, strings.Replace(usageText, "POLICIES", strings.Join(router.PolicyNames(), ", "), 1))
			return nil, errHelp
		}
		return nil, fmt.Errorf("%w (gateway -h explains the flags)", err)
	}
	for _, s := range named {
		e, err := parseEngine(s)
		if err == nil && slices.ContainsFunc(c.engines, func(o discovery.Worker) bool { return o.Name == e.Name }) {
			err = fmt.Errorf("a second engine of the name %s", e.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("-engine: %w (gateway -h explains the flags)", err)
		}
		c.engines = append(c.engines, e)
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q (gateway -h explains the flags)", f.Arg(0))
	case len(c.engines) > 0 && c.workers != "":
		return nil, errors.New("-engine and -workers exclude each other")
	case given["speed"] && !(c.speed >= minSpeed && c.speed <= maxSpeed):
		return nil, fmt.Errorf("-speed is %v, want %v to %v", c.speed, minSpeed, maxSpeed)
	case c.once && !c.play():
		return nil, errors.New("-once ends after a played trace: give -trace, or leave out -engine and -workers")
	case c.json != "" && !c.play():
		return nil, errors.New("-json writes the figures of a played trace: give -trace, or leave out -engine and -workers")
	}
	if _, _, err := net.SplitHostPort(c.listen); err != nil {
		return nil, fmt.Errorf("-listen %q is no address: want host:port", c.listen)
	}
	if !given["speed"] {
		c.speed = 20
		if c.real() {
			c.speed = 1
		}
	}
	if !given["compare"] && !c.real() {
		*compare = "roundrobin"
	}
	if *compare != "" && *compare != "none" {
		c.compare = strings.Split(*compare, ",")
	}
	for _, name := range append([]string{c.policy}, c.compare...) {
		if _, err := router.PolicyByName(name); err != nil {
			return nil, fmt.Errorf("policy %q: %w", name, err)
		}
	}
	// The policy that serves need not be played twice.
	c.compare = slices.DeleteFunc(c.compare, func(n string) bool { return n == c.policy })
	return c, nil
}

// parseEngine reads kind=URL[,key=value...].
func parseEngine(s string) (discovery.Worker, error) {
	parts := strings.Split(s, ",")
	kind, base, ok := strings.Cut(parts[0], "=")
	w := discovery.Worker{Engine: kind}
	if !ok {
		return w, errors.New("want vllm=URL[,events=ADDRESS][,replay=ADDRESS]")
	}
	if kind != "vllm" {
		return w, fmt.Errorf("unknown kind of engine %q, want vllm", kind)
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return w, fmt.Errorf("%q is no URL of the form http://host:port", redacted(base))
	}
	if u.User != nil {
		return w, fmt.Errorf("the URL of %s holds a user or password, which engines are not sent", u.Host)
	}
	w.Name, w.Endpoints.HTTP = u.Host, strings.TrimRight(base, "/")
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		switch key {
		case "events", "replay":
			if h, ok := strings.CutPrefix(value, "tcp://"); !ok || !hostPort(h) {
				return w, fmt.Errorf("%s %q is no address of the form tcp://host:port", key, value)
			}
			if key == "events" {
				w.Endpoints.Events = value
			} else {
				w.Endpoints.Replay = value
			}
		case "name":
			if value == "" {
				return w, errors.New("name is empty")
			}
			w.Name = value
		default:
			return w, fmt.Errorf("unknown part %q, want events, replay or name", key)
		}
	}
	if w.Endpoints.Replay != "" && w.Endpoints.Events == "" {
		return w, errors.New("replay is of no use without events")
	}
	return w, nil
}

// redacted is an address without a password that somebody wrote into it.
func redacted(address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		return u.Redacted()
	}
	if i := strings.LastIndexByte(address, '@'); i >= 0 {
		return "..." + address[i:]
	}
	return address
}

func hostPort(s string) bool {
	h, p, err := net.SplitHostPort(s)
	return err == nil && h != "" && p != ""
}
