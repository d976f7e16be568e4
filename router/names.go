package router

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// namedPolicies is the table behind PolicyByName and PolicyNames, by name.
var namedPolicies = []struct {
	name    string
	options string // for messages
	build   func(o *policyOptions) Policy
}{
	{"conductor", "pend=0|1", func(o *policyOptions) Policy { return Conductor{NoInFlight: !o.flag("pend", true)} }},
	{"dynamo", "w=NUMBER, pend=0|1, lmetric=0|1", func(o *policyOptions) Policy {
		return Dynamo{Weight: o.positive("w", 1), InFlight: o.flag("pend", false), LMetric: o.flag("lmetric", false)}
	}},
	{"expected", "decode=target|full|off, price=0|1", func(o *policyOptions) Policy {
		p := Expected{NoPrice: !o.flag("price", true)}
		switch o.word("decode", "target", "full", "off") {
		case "full":
			p.Decode = DecodeFull
		case "off":
			p.Decode = DecodeOff
		}
		return p
	}},
	{"leastloaded", "", func(*policyOptions) Policy { return LeastLoaded{} }},
	{"llmd", "q=NUMBER, k=NUMBER, p=NUMBER, exact=0|1, blocks=NUMBER", func(o *policyOptions) Policy {
		p := &LLMD{Queue: o.number("q", 2), KV: o.number("k", 2), Prefix: o.number("p", 3),
			Exact: o.flag("exact", false), Blocks: int(o.positive("blocks", llmdBlocks))}
		if p.Queue == 0 && p.KV == 0 && p.Prefix == 0 || p.Blocks == 0 { // they would mean the defaults
			o.bad = append(o.bad, "weights or blocks of 0")
		}
		return p
	}},
	{"lmetric", "pend=0|1", func(o *policyOptions) Policy { return LMetric{NoPending: !o.flag("pend", true)} }},
	{"poweroftwo", "", func(*policyOptions) Policy { return PowerOfTwo{} }},
	{"random", "", func(*policyOptions) Policy { return Random{} }},
	{"roundrobin", "", func(*policyOptions) Policy { return &RoundRobin{} }},
}

// PolicyNames lists the names that PolicyByName knows, sorted.
func PolicyNames() []string {
	var names []string
	for _, p := range namedPolicies {
		names = append(names, p.name)
	}
	return names
}

// PolicyByName makes the policy of a name, with options after a colon:
//
//	expected
//	dynamo:w=4;pend=1
//	llmd:q=1;k=1;p=2;exact=1
//
// Each call makes a new value, so that no two routers share one. Errors are
// ErrPolicy and list what is known.
func PolicyByName(name string) (Policy, error) {
	base, rest, _ := strings.Cut(name, ":")
	for _, p := range namedPolicies {
		if p.name != base {
			continue
		}
		o := policyOptions{given: map[string]string{}}
		for _, kv := range strings.FieldsFunc(rest, func(c rune) bool { return c == ';' }) {
			k, v, ok := strings.Cut(kv, "=")
			k = strings.TrimSpace(k)
			if _, twice := o.given[k]; twice || !ok {
				o.bad = append(o.bad, kv)
			}
			o.given[k] = strings.TrimSpace(v)
		}
		policy := p.build(&o)
		for k := range o.given {
			o.bad = append(o.bad, k)
		}
		if len(o.bad) > 0 {
			slices.Sort(o.bad)
			known := p.options
			if known == "" {
				known = "none"
			}
			return nil, fmt.Errorf("%w: %q: cannot use %s (options of %s: %s)", ErrPolicy, name,
				strings.Join(slices.Compact(o.bad), ", "), base, known)
		}
		return policy, nil
	}
	return nil, fmt.Errorf("%w: %q is none of %s", ErrPolicy, name, strings.Join(PolicyNames(), ", "))
}

// policyOptions hands out the options given and keeps those that are wrong.
type policyOptions struct {
	given map[string]string
	bad   []string
}

func (o *policyOptions) take(k string) (string, bool) {
	v, ok := o.given[k]
	delete(o.given, k)
	return v, ok
}

func (o *policyOptions) number(k string, preset float64) float64 {
	s, ok := o.take(k)
	if !ok {
		return preset
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v < 1e9) {
		o.bad = append(o.bad, k+"="+s)
	}
	return v
}

// positive is number for options of which 0 would mean the default.
func (o *policyOptions) positive(k string, preset float64) float64 {
	v := o.number(k, preset)
	if v == 0 && len(o.bad) == 0 {
		o.bad = append(o.bad, k+"=0")
	}
	return v
}

func (o *policyOptions) flag(k string, preset bool) bool {
	s, ok := o.take(k)
	if !ok {
		return preset
	}
	v, err := strconv.ParseBool(s)
	if err != nil {
		o.bad = append(o.bad, k+"="+s)
	}
	return v
}

// word takes one of the words; the first is the preset.
func (o *policyOptions) word(k string, words ...string) string {
	s, ok := o.take(k)
	if !ok {
		return words[0]
	}
	if !slices.Contains(words, s) {
		o.bad = append(o.bad, k+"="+s)
	}
	return s
}
