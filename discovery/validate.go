package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a list of workers.
const (
	MaxWorkers   = 10_000    // workers in a list
	MaxName      = 253       // bytes of a name, incarnation or engine kind
	MaxRanks     = 1024      // data-parallel ranks of a worker
	MaxValues    = 1024      // labels, models, adapters of a worker, each
	MaxValue     = 1024      // bytes of a URL, label, model or adapter
	MaxKVBlocks  = 1<<31 - 1 // KV blocks of a worker
	MaxBlockSize = 1 << 16   // tokens of an engine block
)

// ErrInvalid is wrapped by every [*FieldError].
var ErrInvalid = errors.New("discovery: invalid worker")

// A FieldError says which field of which worker is wrong, and what is allowed.
type FieldError struct {
	Index  int    // place in the list, from 0; -1 for the list itself
	Worker string // its name, if it has a usable one
	Field  string // as in JSON: "endpoints.http"
	Got    string // what stands there, cut short
	Limit  string // what may stand there
}

// Error names worker, field, value and limit.
func (e *FieldError) Error() string {
	who := "list"
	if e.Index >= 0 {
		who = fmt.Sprintf("worker %d", e.Index)
		if e.Worker != "" {
			who += fmt.Sprintf(" (%s)", e.Worker)
		}
	}
	return fmt.Sprintf("discovery: %s: %s: have %s, want %s", who, e.Field, e.Got, e.Limit)
}

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// maxFaults bounds how many faults of one list are told.
const maxFaults = 100

// faults collects them.
type faults struct {
	index  int
	worker string
	errs   []error
}

func (f *faults) add(field, got, limit string) {
	if len(f.errs) < maxFaults {
		f.errs = append(f.errs, &FieldError{Index: f.index, Worker: f.worker, Field: field, Got: got, Limit: limit})
	}
}

// Validate reports the faults of a list, at most 100, each a [*FieldError].
func Validate(workers []Worker) error {
	f := faults{index: -1}
	if len(workers) > MaxWorkers {
		f.add("workers", strconv.Itoa(len(workers)), fmt.Sprintf("at most %d", MaxWorkers))
		return errors.Join(f.errs...)
	}
	first := make(map[string]int, len(workers))
	for i := range workers {
		w := &workers[i]
		f.index, f.worker = i, ""
		if checkText(&f, "name", w.Name, MaxName, true) {
			f.worker = w.Name
		}
		if j, ok := first[w.Name]; ok {
			f.add("name", quote(w.Name), fmt.Sprintf("a name of its own, worker %d has this one", j))
		} else {
			first[w.Name] = i
		}
		w.check(&f)
	}
	return errors.Join(f.errs...)
}

func (w *Worker) check(f *faults) {
	checkText(f, "incarnation", w.Incarnation, MaxName, false)
	checkText(f, "engine", w.Engine, MaxName, false)
	switch w.Role {
	case RoleBoth, RolePrefill, RoleDecode:
	default:
		f.add("role", quote(string(w.Role)), `"prefill", "decode" or nothing for both`)
	}
	checkRange(f, "ranks", w.Ranks, MaxRanks)
	checkRange(f, "capacity.kv_blocks", w.Capacity.KVBlocks, MaxKVBlocks)
	checkRange(f, "capacity.block_size", w.Capacity.BlockSize, MaxBlockSize)
	e := &w.Endpoints
	if checkText(f, "endpoints.http", e.HTTP, MaxValue, true) && !isBaseURL(e.HTTP) {
		f.add("endpoints.http", quote(e.HTTP), "http://host[:port][/path] or https, without query")
	}
	last := max(w.Ranks, 1) - 1 // each rank listens one port higher
	for _, p := range [...]struct{ field, value string }{{"endpoints.events", e.Events}, {"endpoints.replay", e.Replay}} {
		rest, ok := strings.CutPrefix(p.value, "tcp://")
		if p.value != "" && (!ok || !isHostPort(rest, last)) {
			f.add(p.field, quote(p.value), "tcp://host:port with a port for each rank")
		}
	}
	if e.Transfer != "" && !isHostPort(e.Transfer, 0) {
		f.add("endpoints.transfer", quote(e.Transfer), "host:port")
	}
	checkList(f, "models", w.Models)
	checkList(f, "adapters", w.Adapters)
	if len(w.Labels) > MaxValues {
		f.add("labels", strconv.Itoa(len(w.Labels)), fmt.Sprintf("at most %d", MaxValues))
		return
	}
	for k, v := range w.Labels {
		if k == "" || len(k) > MaxValue || len(v) > MaxValue {
			f.add("labels", quote(k), fmt.Sprintf("a key of 1 to %d bytes and a value of at most %d", MaxValue, MaxValue))
		}
	}
}

// checkText accepts printable UTF-8 of bounded length.
func checkText(f *faults, field, s string, limit int, need bool) bool {
	bad := len(s) > limit || need && s == "" || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
	if bad {
		f.add(field, quote(s), fmt.Sprintf("%d to %d printable bytes", btoi(need), limit))
	}
	return !bad
}

func checkRange(f *faults, field string, n, limit int) {
	if n < 0 || n > limit {
		f.add(field, strconv.Itoa(n), fmt.Sprintf("0 to %d", limit))
	}
}

func checkList(f *faults, field string, list []string) {
	if len(list) > MaxValues {
		f.add(field, strconv.Itoa(len(list)), fmt.Sprintf("at most %d", MaxValues))
		return
	}
	for _, s := range list {
		checkText(f, field, s, MaxValue, true)
	}
}

func isBaseURL(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return false
	}
	if u.Hostname() == "" {
		return false
	}
	p := u.Port()
	return p == "" && !strings.HasSuffix(u.Host, ":") || isPort(p, 0)
}

// isHostPort accepts host:port when the ports up to `more` higher exist too.
func isHostPort(s string, more int) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && !strings.ContainsAny(host, "/ *@") && isPort(port, more)
}

func isPort(s string, more int) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && int(n)+more <= 65535
}

// quote shows a value on one line, cut short.
func quote(s string) string {
	const limit = 80
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "…"
	}
	return strconv.Quote(s)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
