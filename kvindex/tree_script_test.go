package kvindex

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-go/stator/kvindex/block"
)

// TestIndexScripts runs testdata/index. A block is written A0, A1, and so on; A is
// a chain. Commands, with a tier's name where it is not gpu:
//
//	new [max-bytes=N]                     an empty index
//	fork B A 3                            chain B begins with A0 to A2
//	attach W, detach W, sweep
//	store W [tier=T] [A1 ->] A2..A5      below A1, or from the root
//	remove W [tier=T] A3 A2..A0
//	clear W [T ...]
//	lookup A0..A7                         the depth of every worker, by tier
//	stats                                 what is counted
//
// Every command checks the consistency of the index.
func TestIndexScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/index", func(t *testing.T, path string) {
		s := &treeScript{slots: map[string]Slot{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d)
			if s.x != nil {
				if err := s.x.check(); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			return out
		})
	})
}

type treeScript struct {
	x     *Index
	slots map[string]Slot
	names []string
	forks map[string]treeFork
}

type treeFork struct {
	of   string
	from int
}

func (s *treeScript) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		o := &Options{}
		if d.HasArg("max-bytes") {
			d.ScanArgs(t, "max-bytes", &o.MaxBytes)
		}
		var err error
		if s.x, err = New(o); err != nil {
			return err.Error()
		}
		s.slots, s.names, s.forks = map[string]Slot{}, nil, map[string]treeFork{}
		return ""
	case "lookup":
		return s.lookup(d)
	case "stats":
		st := s.x.Stats()
		return fmt.Sprintf("slots %d, dying %d, runs %d, blocks %d, holders %v, unknown %d, refused %d",
			st.Slots, st.Dying, st.Runs, st.Blocks, st.Holders, st.UnknownRemovals, st.Refused)
	}
	var out []string
	for _, line := range strings.Split(d.Input, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := s.do(strings.Fields(line)); err != nil {
			out = append(out, fmt.Sprintf("%s: %v", line, err))
		}
	}
	return strings.Join(out, "\n")
}

// do runs one line of a "do" command.
func (s *treeScript) do(f []string) error {
	if f[0] == "sweep" {
		s.x.Sweep()
		return nil
	}
	w, args, tier := f[1], f[2:], TierGPU
	if len(args) > 0 && strings.HasPrefix(args[0], "tier=") {
		tier = tierNamed(strings.TrimPrefix(args[0], "tier="))
		args = args[1:]
	}
	switch f[0] {
	case "fork":
		n, err := strconv.Atoi(args[1])
		s.forks[w] = treeFork{args[0], n}
		return err
	case "attach":
		s.slots[w] = s.x.Attach(w, 0)
		if !slices.Contains(s.names, w) {
			s.names = append(s.names, w)
		}
	case "detach":
		s.x.Detach(s.slots[w])
	case "store":
		var parent block.Hash
		if len(args) > 2 && args[1] == "->" {
			parent = s.blocks(args[0])[0]
			args = args[2:]
		}
		return s.x.Store(s.slots[w], tier, parent, s.blocks(args...))
	case "remove":
		s.x.Remove(s.slots[w], tier, s.blocks(args...))
	case "clear":
		var ts []Tier
		for _, a := range args {
			ts = append(ts, tierNamed(a))
		}
		s.x.Clear(s.slots[w], ts...)
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func tierNamed(name string) Tier {
	if i := slices.Index(tierNames[:], name); i >= 0 {
		return Tier(i)
	}
	return ParseTier(name)
}

// blocks reads A1 and A2..A5, also downwards.
func (s *treeScript) blocks(args ...string) (out []block.Hash) {
	for _, a := range args {
		from, to, ok := strings.Cut(a, "..")
		if !ok {
			to = from
		}
		c, i := blockName(from)
		_, j := blockName(to)
		for ; i != j; i += sign(j - i) {
			out = append(out, s.hash(c, i))
		}
		out = append(out, s.hash(c, j))
	}
	return out
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

func blockName(a string) (string, int) {
	c := strings.TrimRight(a, "0123456789")
	n, _ := strconv.Atoi(a[len(c):])
	return c, n
}

func (s *treeScript) hash(c string, i int) block.Hash {
	for f, ok := s.forks[c]; ok && i < f.from; f, ok = s.forks[c] {
		c = f.of
	}
	h := fnv.New64a()
	fmt.Fprint(h, c, i)
	return block.Hash(h.Sum64())
}

func (s *treeScript) lookup(d *datadriven.TestData) string {
	var args []string
	for _, a := range d.CmdArgs {
		args = append(args, a.Key)
	}
	var o Overlap
	q := s.blocks(args...)
	s.x.Lookup(&o, q)
	var b strings.Builder
	for _, w := range s.names {
		fmt.Fprintf(&b, "%s:", w)
		for t := TierGPU; t < Tiers; t++ {
			fmt.Fprintf(&b, " %d", o.Depth(s.slots[w], t))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
