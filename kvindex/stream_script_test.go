package kvindex

import (
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stator-go/stator/kvindex/block"
)

// TestStreamScripts plays the scripts of testdata/stream, which README.txt
// explains, against the index.
func TestStreamScripts(t *testing.T) {
	for _, kind := range indexKinds {
		t.Run(kind.name, func(t *testing.T) {
			datadriven.Walk(t, "testdata/stream", func(t *testing.T, path string) {
				if strings.HasSuffix(path, "README.txt") {
					return
				}
				s := newScript(kind.make)
				datadriven.RunTest(t, path, s.run)
			})
		})
	}
}

// script is the state of one script: engines with their rings of messages, and
// the streams that listen to them.
type script struct {
	make    func(tokens int) testIndex
	ix      testIndex
	tokens  int
	chains  map[string]testChain
	workers map[string]*testWorker
	slots   []Slot
	clock   float64
	start   time.Time
	now     time.Time
}

type testWorker struct {
	st     *Stream
	slot   Slot
	engine int // tokens per block
	seed   uint64
	bare   bool // names do not depend on adapter and salt
	silent bool // messages have no time

	ring []*Batch
	next uint64
	from uint64 // of the replay wanted last
}

// A testChain is a sequence of tokens; its first at tokens are those of from.
type testChain struct {
	from string
	at   int
}

func newScript(make func(int) testIndex) *script {
	s := &script{make: make, start: time.Unix(1000, 0), clock: 1e6}
	s.now = s.start
	s.reset(16)
	return s
}

func (s *script) reset(tokens int) {
	s.ix, s.tokens = s.make(tokens), tokens
	s.chains, s.workers, s.slots = map[string]testChain{}, map[string]*testWorker{}, nil
}

// token is the token of a chain at a position.
func (s *script) token(chain string, pos int) uint32 {
	for {
		c, ok := s.chains[chain]
		if !ok || pos >= c.at {
			break
		}
		chain = c.from
	}
	h := fnv.New32a()
	fmt.Fprint(h, chain, " ", pos)
	return h.Sum32() & 0xffff
}

func (s *script) prompt(chain string, from, to int) (out []uint32) {
	for i := from; i < to; i++ {
		out = append(out, s.token(chain, i))
	}
	return out
}

// name is the engine's name of the tokens of a chain from lo up to hi: it covers
// all tokens up to hi, as engines' hashes do.
func (s *script) name(w *testWorker, chain string, lo, hi int, scope scopeName) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, w.seed, s.prompt(chain, 0, hi), lo)
	if !w.bare {
		fmt.Fprintf(h, "%q %q", scope.adapter, scope.tenant)
	}
	return h.Sum64()
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	arg := func(key, def string) string {
		for _, a := range d.CmdArgs {
			if a.Key == key {
				if len(a.Vals) == 0 {
					return "yes"
				}
				return strings.Join(a.Vals, ",")
			}
		}
		return def
	}
	num := func(key string, def int) int {
		v, err := strconv.Atoi(arg(key, strconv.Itoa(def)))
		if err != nil {
			d.Fatalf(t, "%s: %v", key, err)
		}
		return v
	}
	worker := func() *testWorker {
		w := s.workers[arg("w", "W1")]
		if w == nil {
			d.Fatalf(t, "no worker %s", arg("w", "W1"))
		}
		return w
	}
	switch d.Cmd {
	case "index":
		s.reset(num("tokens", 16))
		if x, ok := s.ix.(*naiveIndex); ok {
			x.budget = num("budget", 0)
		}
		return ""
	case "chain":
		s.chains[d.CmdArgs[0].Key] = testChain{arg("from", ""), num("at", 0)}
		return ""
	case "stream":
		name := arg("w", "W1")
		worker, rank, _ := strings.Cut(name, ".r")
		r, _ := strconv.Atoi(rank)
		w := &testWorker{engine: num("engine", 16), seed: uint64(num("seed", 0)),
			bare: arg("bare", "") != "", silent: arg("notime", "") != ""}
		w.slot = s.ix.Attach(worker, r)
		cfg := StreamConfig{
			Scope: block.Scope{Model: "m"}, NoReplay: arg("noreplay", "") != "",
			MaxBuffered: num("buffered", 0), MaxReplays: num("replays", 0),
			MaxOrphanBlocks: num("orphans", 0), MaxUnits: num("units", 0), MaxHashers: num("hashers", 0), MaxCopies: num("copies", 0),
			EngineBlock: num("size", 0),
		}
		st, err := newStream(s.ix, w.slot, cfg, nil)
		if err != nil {
			return err.Error()
		}
		w.st = st
		s.workers[name], s.slots = w, append(s.slots, w.slot)
		return ""
	case "emit":
		w := worker()
		s.clock++
		b := &Batch{Seq: w.next, Rank: -1, Time: s.clock}
		if w.silent {
			b.Time = 0
		}
		for line := range strings.Lines(d.Input) {
			s.event(t, d, w, b, strings.Fields(line))
		}
		w.next++
		w.ring = append(w.ring, b)
		if arg("lost", "") != "" {
			return ""
		}
		return s.show(w, w.st.Apply(b))
	case "redeliver":
		w := worker()
		for _, b := range w.ring {
			if b.Seq == uint64(num("seq", 0)) {
				return s.show(w, w.st.Apply(b))
			}
		}
		return "not in the ring"
	case "restart":
		w := worker()
		w.next, w.ring = uint64(num("seq", 0)), nil
		s.clock += float64(num("clock", 0))
		return ""
	case "replay":
		w := worker()
		from, first := uint64(num("from", int(w.from))), uint64(num("ring", 0))
		upto := uint64(num("upto", 1<<30))
		var out []string
		for _, b := range w.ring {
			if b.Seq >= max(from, first) && b.Seq < upto {
				out = append(out, fmt.Sprintf("%d: %s", b.Seq, s.show(w, w.st.Replay(b))))
			}
		}
		if end := arg("end", "ok"); end != "none" {
			out = append(out, "end: "+s.show(w, w.st.ReplayEnd(end == "ok")))
		}
		return strings.Join(out, "")
	case "reset":
		w, why := worker(), ResetCache
		if arg("engine", "") != "" {
			why = ResetEngine
		}
		return s.show(w, w.st.Reset(why))
	case "tick":
		s.now = s.now.Add(time.Duration(num("s", 0)) * time.Second)
		w := worker()
		return s.show(w, w.st.Tick(s.now))
	case "repeats":
		worker().st.IgnoreRepeats(arg("ignore", "") != "")
		return ""
	case "detach":
		s.ix.Detach(worker().slot)
		return ""
	case "lookup":
		chain := d.CmdArgs[0].Key
		h, err := block.NewHasher(block.Scope{Model: "m", Adapter: arg("adapter", ""), Tenant: arg("salt", "")}, s.tokens, nil)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return s.lookup(h.AppendHashes(nil, s.prompt(chain, 0, num("n", 128)), media(d, arg("media", ""))))
	case "stats":
		w := worker()
		return s.stats(w.st.Stats())
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

// event adds the event of a line.
func (s *script) event(t *testing.T, d *datadriven.TestData, w *testWorker, b *Batch, f []string) {
	e := Event{Group: -1}
	opt := map[string]string{}
	var blocks []string
	for _, v := range f[1:] {
		if k, val, ok := strings.Cut(v, "="); ok {
			opt[k] = val
		} else {
			blocks = append(blocks, v)
		}
	}
	num := func(key string, def int) int {
		if v, ok := opt[key]; ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				d.Fatalf(t, "%s: %v", key, err)
			}
			return n
		}
		return def
	}
	switch f[0] {
	case "S":
		e.Kind = EventStored
	case "R":
		e.Kind = EventRemoved
	case "C":
		e.Kind = EventCleared
	case "U":
		e.Kind = EventUnknown
	case "M":
		b.Malformed++
		return
	case "L":
		b.Malformed++
		e.Kind = EventLost
	default:
		d.Fatalf(t, "unknown event %q", f[0])
	}
	e.Tier = ParseTier(opt["tier"])
	e.Adapter, e.Salt = opt["adapter"], opt["salt"]
	e.Remote = opt["remote"] != ""
	e.Group = num("group", -1)
	if k := opt["kind"]; k != "" {
		e.GroupSaid, e.Prefix = true, k == "full"
	}
	for _, v := range strings.Split(opt["left"], ",") {
		if v != "" {
			n, _ := strconv.Atoi(v)
			e.Remaining = append(e.Remaining, n)
		}
	}
	size := num("size", w.engine)
	named := scopeName{e.Adapter, opt["under"]}
	if e.Salt != "" {
		named.tenant = e.Salt
	}
	for i, v := range blocks {
		chain, lo, hi := parseBlocks(d, t, v, size)
		for ; lo < hi; lo++ {
			from, to := lo*size, (lo+1)*size
			if cut := num("short", 0); cut > 0 {
				to = from + cut
			}
			e.Hashes = append(e.Hashes, s.name(w, chain, from, to, named))
			if e.Kind != EventStored {
				continue
			}
			if i == 0 && len(e.Hashes) == 1 && lo > 0 && opt["parent"] != "none" {
				e.HasParent = true
				psize := num("psize", size)
				e.Parent = s.name(w, chain, from-psize, from, named)
			}
			e.Tokens = append(e.Tokens, s.prompt(chain, from, to)...)
		}
	}
	if e.Kind == EventStored {
		e.BlockSize = size
		if short := num("short", 0); short > 0 {
			e.BlockSize = short
		}
		if opt["size"] == "0" || opt["nosize"] != "" {
			e.BlockSize = 0
		}
		e.Tokens = e.Tokens[:len(e.Tokens)-num("cut", 0)]
		if opt["tokens"] == "no" {
			e.Tokens, e.HasParent, e.BlockSize = nil, false, 0
		}
		if p := opt["parent"]; p != "" && p != "none" {
			chain, lo, hi := parseBlocks(d, t, p, size)
			e.HasParent, e.Parent = true, s.name(w, chain, lo*size, hi*size, named)
		}
		if opt["twice"] != "" {
			e.Hashes = append(e.Hashes, e.Hashes[0])
			e.Tokens = append(e.Tokens, e.Tokens[:size]...)
		}
		e.Media = media(d, opt["media"])
	}
	b.Events = append(b.Events, e)
}

// media reads id@offset+length.
func media(d *datadriven.TestData, v string) []block.Media {
	if v == "" {
		return nil
	}
	var m block.Media
	if _, err := fmt.Sscanf(strings.NewReplacer("@", " ", "+", " ").Replace(v), "%s %d %d", &m.ID, &m.Offset, &m.Length); err != nil {
		panic(fmt.Sprint(d.Pos, err))
	}
	return []block.Media{m}
}

// parseBlocks reads A3 or A0..A5.
func parseBlocks(d *datadriven.TestData, t *testing.T, v string, size int) (chain string, lo, hi int) {
	a, b, _ := strings.Cut(v, "..")
	one := func(v string) (string, int) {
		i := strings.IndexAny(v, "0123456789")
		if i < 1 {
			d.Fatalf(t, "bad block %q", v)
		}
		n, err := strconv.Atoi(v[i:])
		if err != nil {
			d.Fatalf(t, "bad block %q", v)
		}
		return v[:i], n
	}
	chain, lo = one(a)
	hi = lo + 1
	if b != "" {
		_, hi = one(b)
		hi++
	}
	return chain, lo, hi
}

// show prints a result: state, what was counted, the replay wanted.
func (s *script) show(w *testWorker, r Result) string {
	if r.Replay.Wanted {
		w.from = r.Replay.From
	}
	out := []string{r.State.String()}
	out = append(out, nonZero(reflect.ValueOf(r.Counts), "Messages", "Events")...)
	if r.Replay.Wanted {
		v := fmt.Sprintf("replay from %d", r.Replay.From)
		if r.Replay.After > 0 {
			v += " after " + r.Replay.After.String()
		}
		out = append(out, v)
	}
	if r.Err != nil {
		out = append(out, "error: "+r.Err.Error())
	}
	return strings.Join(out, ", ") + "\n"
}

func nonZero(v reflect.Value, but ...string) (out []string) {
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if f.IsZero() || slices.Contains(but, name) {
			continue
		}
		switch f.Kind() {
		case reflect.Struct:
			out = append(out, nonZero(f, but...)...)
		default:
			out = append(out, fmt.Sprintf("%s %v", strings.ToLower(name), f.Interface()))
		}
	}
	return out
}

func (s *script) stats(v StreamStats) string {
	return strings.Join(nonZero(reflect.ValueOf(v), "LastTime", "OrphanBytes", "BufferedBytes"), "\n") + "\n"
}

// lookup prints the depth of each worker by tier, in blocks.
func (s *script) lookup(chain []block.Hash) string {
	var o Overlap
	s.ix.Lookup(&o, chain)
	var out []string
	for _, slot := range slotsOf(s.ix, s.slots) {
		worker, rank, _ := s.ix.Worker(slot)
		line, depth := fmt.Sprintf("%s.r%d", worker, rank), 0
		for t := range Tier(Tiers) {
			if n := o.Depth(slot, t); n > depth {
				line += fmt.Sprintf(" %s=%d", t, n)
				depth = n
			}
		}
		if depth == 0 {
			line += " none"
		}
		out = append(out, line+"\n")
	}
	return strings.Join(out, "")
}
