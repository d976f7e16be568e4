package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// TestScripts plays the histories in testdata. Commands:
//
//	new policy=NAME                     a router with fixed constants and a clock at 0
//	workers                             lines "NUM [GEN] [role=..] [blocks=N] [draining]"
//	hold slot=NUM tier=T chain=CHAIN    the index learns blocks
//	pick name=L tokens=N chain=CHAIN [only=(..)] [not=(..)] [role=..]
//	retry name=L as=L2                  ends L as failed, picks anew
//	first|done|fail name=L
//	report slot=NUM waiting=N running=N kv=F
//	after ms=N
//	ledger
//
// A CHAIN is letters, one a block; a block is named by all letters up to it.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t, leases: map[string]*Lease{}, reqs: map[string]*Request{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t      *testing.T
	r      *Router
	c      *clock
	index  fakeIndex
	leases map[string]*Lease
	reqs   map[string]*Request
}

func letters(s string) []block.Hash {
	var out []block.Hash
	h := uint64(14695981039346656037)
	for _, c := range s {
		h = (h ^ uint64(c)) * 1099511628211
		out = append(out, block.Hash(h))
	}
	return out
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	num := func(key string) (n int) {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &n)
		}
		return n
	}
	str := func(key string) (v string) {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &v)
		}
		return v
	}
	slots := func(key string) (out []kvindex.Slot) {
		for _, a := range d.CmdArgs {
			for _, v := range a.Vals {
				var n int
				if a.Key == key {
					_, err := fmt.Sscan(v, &n)
					require.NoError(t, err)
					out = append(out, slotOf(n))
				}
			}
		}
		return out
	}
	lease := func() *Lease {
		l := s.leases[str("name")]
		require.NotNil(t, l, "%s: no lease %q", d.Pos, str("name"))
		return l
	}
	switch d.Cmd {
	case "new":
		policy, err := PolicyByName(str("policy"))
		require.NoError(t, err)
		s.c, s.index = newClock(), fakeIndex{}
		s.r, err = New(s.index, &Options{Policy: policy, Now: s.c.now, Rand: seeded(1), FixedTiming: true})
		require.NoError(t, err)
	case "workers":
		var ws []Worker
		for _, line := range strings.Split(d.Input, "\n") {
			w := Worker{}
			n, gen := 0, 1
			for i, f := range strings.Fields(line) {
				switch v, ok := strings.CutPrefix(f, "blocks="); {
				case ok:
					fmt.Sscan(v, &w.KVBlocks)
				case f == "role=prefill":
					w.Role = RolePrefill
				case f == "role=decode":
					w.Role = RoleDecode
				case f == "draining":
					w.Draining = true
				case i == 0:
					fmt.Sscan(f, &n)
				default:
					fmt.Sscan(f, &gen)
				}
			}
			w.Slot = kvindex.MakeSlot(uint32(n), uint32(gen))
			ws = append(ws, w)
		}
		if err := s.r.SetWorkers(ws); err != nil {
			return err.Error() + "\n"
		}
	case "hold":
		tiers := map[string]kvindex.Tier{"": 0, "gpu": 0, "cpu": 1, "disk": 2, "object": 3}
		s.index.hold(uint32(num("slot")), tiers[str("tier")], letters(str("chain"))...)
	case "pick":
		roles := map[string]Role{"": RoleAny, "prefill": RolePrefill, "decode": RoleDecode}
		req := &Request{Chain: letters(str("chain")), Tokens: num("tokens"), Only: slots("only"), Not: slots("not"), Role: roles[str("role")]}
		l, err := s.r.Pick(req)
		return s.picked(str("name"), req, l, err)
	case "retry":
		req := s.reqs[str("name")]
		l, err := lease().Retry(req, errors.New("refused"))
		return s.picked(str("as"), req, l, err)
	case "first":
		lease().FirstToken()
	case "done":
		lease().Tokens(num("tokens"))
		lease().Done(nil)
	case "fail":
		lease().Done(errors.New("failed"))
	case "report":
		var kv float64
		if d.HasArg("kv") {
			_, err := fmt.Sscan(str("kv"), &kv)
			require.NoError(t, err)
		}
		s.r.Report(slotOf(num("slot")), Load{Waiting: num("waiting"), Running: num("running"), HasQueue: d.HasArg("waiting"), KVUsage: kv, HasKV: d.HasArg("kv")})
	case "after":
		s.c.advance(time.Duration(num("ms")) * time.Millisecond)
	case "ledger":
		var b strings.Builder
		st := s.r.Stats()
		for _, w := range st.Workers {
			fmt.Fprintf(&b, "%v: out %d, decoding %d, pending %d with %d tokens, queue %.0f ms, blocks %d+%d",
				w.Slot, w.Outstanding, w.Decoding, w.Pending, w.PendingTokens, w.Queue.Seconds()*1000, w.ActiveBlocks, w.PrivateBlocks)
			if w.HasLoad {
				fmt.Fprintf(&b, ", reports %d waiting %d running, others %d", w.Load.Waiting, w.Load.Running, w.OtherRequests)
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%d leases, %d on gone workers, %d runs\n", st.Outstanding, st.GoneLeases, st.TrieNodes)
		return b.String()
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return ""
}

func (s *script) picked(name string, req *Request, l *Lease, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	s.leases[name], s.reqs[name] = l, req
	d := l.Decision()
	var b strings.Builder
	ms := func(v float64) string { return fmt.Sprintf("%.1f", v*1000) }
	c := d.Cost
	fmt.Fprintf(&b, "%v: reused %v, in flight %d, hit %d of %d tokens\n", d.Slot, d.Reused, d.InFlight, d.Hit, d.Tokens)
	fmt.Fprintf(&b, "  cost %s ms = queue %s, prefill %s, load %s, memory %s, price %s, decode %s\n",
		ms(c.Total), ms(c.Queue), ms(c.Prefill), ms(c.Load), ms(c.Memory), ms(c.Price), ms(c.Decode))
	for _, a := range d.Alternates {
		fmt.Fprintf(&b, "  then %v: %s ms\n", a.Slot, ms(a.Cost.Total))
	}
	return b.String()
}
