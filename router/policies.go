package router

// Conductor takes the worker with the least expected time to the first token:
// queue plus prefill, as the conductor of Mooncake does without its transfers.
type Conductor struct {
	// NoInFlight counts only what the index has as reusable, not what outstanding
	// requests are computing.
	NoInFlight bool
}

// Score is queue plus prefill in seconds.
func (p Conductor) Score(dst []float64, v *View, _ *Request) {
	for i := range dst {
		k := v.Held(i)
		if p.NoInFlight {
			k = v.Indexed(i)
		}
		dst[i] = v.Queue(i) + v.Prefill(i, k)
	}
}

// Dynamo is the block sum of NVIDIA Dynamo's KV router at temperature 0: prefill
// blocks that are pending or new, times a weight, plus the blocks that would be
// active. Tokens of a request stay pending at full value until its first token.
type Dynamo struct {
	// Weight of the prefill blocks; 0 = 1.
	Weight float64
	// InFlight also counts blocks of outstanding requests as reusable.
	InFlight bool
	// LMetric selects Dynamo's own lmetric option, which multiplies the pending and
	// new prefill tokens with the blocks that would be active.
	LMetric bool
}

// Score is in blocks, or in tokens x blocks for LMetric.
func (p Dynamo) Score(dst []float64, v *View, _ *Request) {
	weight := p.Weight
	if weight == 0 {
		weight = 1
	}
	unit := float64(v.BlockTokens())
	for i := range dst {
		k := v.Indexed(i)
		if p.InFlight || p.LMetric {
			k = v.Held(i)
		}
		prefill := float64(v.PendingTokens(i) + v.tokens - v.hit(k))
		active := float64(v.UsedBlocks(i) + v.complete - v.InFlight(i) + 1)
		if p.LMetric {
			dst[i] = prefill * (active + 1)
		} else {
			dst[i] = weight*(prefill/unit) + active
		}
	}
}

// LMetric multiplies the prefill tokens, pending and new, with the number of
// requests: no weights.
type LMetric struct {
	// NoPending leaves the pending tokens out.
	NoPending bool
}

// Score is in tokens x requests.
func (p LMetric) Score(dst []float64, v *View, _ *Request) {
	for i := range dst {
		q := float64(v.PendingTokens(i))
		if p.NoPending {
			q = 0
		}
		dst[i] = (q + float64(v.tokens-v.hit(v.Held(i)))) * float64(v.Outstanding(i)+1)
	}
}

// LeastLoaded takes the worker with the fewest outstanding requests.
type LeastLoaded struct{}

// Score is the number of outstanding requests.
func (LeastLoaded) Score(dst []float64, v *View, _ *Request) {
	for i := range dst {
		dst[i] = float64(v.Outstanding(i))
	}
}

// WholeList is true: a count is read quickly.
func (LeastLoaded) WholeList() bool { return true }

// PowerOfTwo draws two workers and takes the one with fewer outstanding
// requests.
type PowerOfTwo struct{}

// Score puts the two drawn rows before all others.
func (PowerOfTwo) Score(dst []float64, v *View, _ *Request) {
	const behind = 1 << 40
	for i := range dst {
		dst[i] = behind + float64(v.Outstanding(i))
	}
	if len(dst) < 2 {
		return
	}
	a, b := v.Intn(len(dst)), v.Intn(len(dst)-1)
	if b >= a {
		b++
	}
	dst[a] -= behind
	dst[b] -= behind
}

// WholeList is true, so that no worker is drawn more often for what it holds.
func (PowerOfTwo) WholeList() bool { return true }

// RoundRobin takes the workers in the order of the worker list. The zero value
// starts with the first. It has state: one router, one value.
type RoundRobin struct {
	next int
}

// Score is the distance from the worker whose turn it is.
func (p *RoundRobin) Score(dst []float64, v *View, _ *Request) {
	n := max(1, v.Workers())
	turn := p.next % n
	for i := range dst {
		dst[i] = float64((v.Position(i) - turn + n) % n)
	}
}

// WholeList is true: each worker has its turn.
func (p *RoundRobin) WholeList() bool { return true }

// Assigned passes the turn on.
func (p *RoundRobin) Assigned(v *View, i int, _ *Request) { p.next = v.Position(i) + 1 }

// Random takes any worker.
type Random struct{}

// Score is the same for all: ties are drawn at random.
func (Random) Score(dst []float64, _ *View, _ *Request) { clear(dst) }

// WholeList is true, so that no worker is drawn more often for what it holds.
func (Random) WholeList() bool { return true }
