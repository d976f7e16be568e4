// Command replay plays a whole request trace in virtual time through the
// library's own router and index, before simulated engines, and prints what
// each routing policy makes of it.
//
//	go run ./examples/replay -trace conversation_trace.jsonl -workers 8 -load 0.95
//
// Time is simulated: an hour of trace takes a second or two. The same seed gives
// the same bytes. A block is the trace's 512 tokens, and the first 15 % of the
// requests are left out of the figures.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/internal/report"
	"github.com/stator-go/stator/internal/trace"
	"github.com/stator-go/stator/router"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	trace    string
	policies []string
	workers  int
	load     float64
	cap      float64
	rate     float64
	tier     string
	seed     int64
	learn    bool
	json     string
}

const defaultPolicies = "roundrobin,leastloaded,dynamo,llmd,lmetric,conductor,expected"

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("replay", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, `Plays a whole request trace in virtual time through the router and index, before
simulated engines, and prints what each policy makes of it. The first 15 % of the
requests fill the caches and are not counted.

  go run ./examples/replay -trace conversation_trace.jsonl -load 0.95
  go run ./examples/replay -trace t.jsonl.gz -policies 'expected,dynamo:w=4,llmd:q=1;k=1;p=2;exact=1' -tier hbm

`)
		fs.PrintDefaults()
	}
	fs.StringVar(&o.trace, "trace", "", "trace file in Mooncake form, .jsonl or .jsonl.gz (required)")
	pol := fs.String("policies", defaultPolicies, "policies to compare, comma separated, options after a colon:\nexpected,dynamo:w=4,llmd:exact=1 (known: "+strings.Join(router.PolicyNames(), ", ")+")")
	fs.IntVar(&o.workers, "workers", 8, "number of engines")
	fs.Float64Var(&o.load, "load", 0.95, "share of the rate that the in-flight conductor sustains on a backlog")
	fs.Float64Var(&o.cap, "cap", 0, "that rate in requests per second; 0 measures it first")
	fs.Float64Var(&o.rate, "rate", 0, "requests per second; instead of -load")
	fs.StringVar(&o.tier, "tier", "dram", "prefix cache of an engine: hbm (400k tokens) or dram (3M tokens, 4 us a hit token)")
	fs.Int64Var(&o.seed, "seed", 1, "seed of the spread of equal time stamps and of ties")
	fs.BoolVar(&o.learn, "learn", false, "let the router learn the engines' timing and output lengths; default: they are given")
	fs.StringVar(&o.json, "json", "", "write the figures to this file too, - for standard output instead of the table")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	var errs []error
	bad := func(when bool, format string, a ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	bad(o.trace == "", "-trace is missing")
	bad(o.workers < 1 || o.workers > maxWorkers, "-workers is %d, want 1 to %d", o.workers, maxWorkers)
	bad(!(o.load > 0 && o.load <= 10), "-load is %g, want more than 0 and at most 10", o.load)
	bad(!(o.cap >= 0 && o.cap < 1e6), "-cap is %g, want 0 or requests per second", o.cap)
	bad(!(o.rate >= 0 && o.rate < 1e6), "-rate is %g, want 0 or requests per second", o.rate)
	bad(o.tier != "hbm" && o.tier != "dram", "-tier is %q, want hbm or dram", o.tier)
	for _, p := range strings.Split(*pol, ",") {
		p = strings.TrimSpace(p)
		_, err := router.PolicyByName(p)
		bad(err != nil, "-policies: %w", err)
		o.policies = append(o.policies, p)
	}
	return o, errors.Join(errs...)
}

const (
	maxWorkers = 4096
	// maxSpan is the longest replay, in virtual time.
	maxSpan = 10 * 365 * 24 * time.Hour
)

func run(args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.json != "" && o.json != "-" { // not to find out after all the work
		f, err := os.OpenFile(o.json, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	reqs, err := trace.Open(o.trace)
	if err != nil {
		return err
	}
	if len(reqs) < 2 || reqs[len(reqs)-1].At == reqs[0].At {
		return fmt.Errorf("%s: %d requests at one instant are no trace to replay", o.trace, len(reqs))
	}
	trace.Spread(reqs, o.seed)
	w := newWorkload(reqs)
	cfg := sim.H100TP4(o.tier)

	capacity, rate := o.cap, o.rate
	if rate == 0 {
		if capacity == 0 {
			if capacity, err = measureCapacity(w, cfg, o); err != nil {
				return err
			}
		}
		rate = o.load * capacity
	}
	if took := w.span() * w.rate() / rate; !(took < maxSpan.Seconds()) {
		return fmt.Errorf("at %g requests per second the trace takes %.3g hours, want at most %.3g", rate, took/3600, maxSpan.Hours())
	}
	fmt.Fprintf(stderr, "%d requests, %.3f per second in the trace, played at %.3f per second", len(reqs), w.rate(), rate)
	if capacity > 0 {
		fmt.Fprintf(stderr, " (capacity %.3f)", capacity)
	}
	fmt.Fprintf(stderr, "; the first %.0f %% are not counted\n", 100*warmShare)

	load := o.load
	if o.rate > 0 {
		load = 0
		if capacity > 0 {
			load = o.rate / capacity
		}
	}
	var rows []report.Row
	for _, p := range o.policies {
		start := time.Now()
		res, err := replay(w, cfg, settings{policy: p, workers: o.workers, speed: rate / w.rate(), seed: o.seed, learn: o.learn, warm: warmShare})
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		row := report.Summarise(res.samples)
		row.Policy, row.Workers, row.Load = p, o.workers, load
		rows = append(rows, row)
		fmt.Fprintf(stderr, "%s took %.1f s\n", p, time.Since(start).Seconds())
	}
	if o.json == "-" {
		return report.JSON(stdout, rows)
	}
	if o.json != "" {
		f, err := os.Create(o.json)
		if err != nil {
			return err
		}
		if err := errors.Join(report.JSON(f, rows), f.Close()); err != nil {
			return err
		}
	}
	return report.Table(stdout, rows)
}

// warmShare of the requests fill the caches and are not counted.
const warmShare = 0.15

// measureCapacity plays the whole trace as one backlog to the in-flight
// conductor and returns the rate at which it is worked off.
func measureCapacity(w *workload, cfg sim.Config, o *options) (float64, error) {
	res, err := replay(w, cfg, settings{policy: "conductor", workers: o.workers, speed: w.span(), seed: o.seed})
	if err != nil {
		return 0, err
	}
	return res.throughput, nil
}
