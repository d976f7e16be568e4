package router

import "math"

// The learner fits the constants of Timing to what the router sees. Two kinds of
// row:
//
//	first tokens on a worker in a row, n prompt tokens computed for them:
//	  last - start   = T0*steps + B*n + C*sum n(h + n/2) + steps*(A + KV*kv + D*d) + load
//	  steps = max(1, n/Chunk); A, KV and D only when d > 0 sequences decode;
//	  start = when the first of them became the head of the queue; those of one
//	  instant always belong together, and more are added while the queue is not
//	  empty, up to rowChunks chunks, because a prefill shares its first and last
//	  step with its neighbours
//	a completion:
//	  finish - first = T0*mixed + B*p + C*sum n(h + n/2)
//	                 + plain*R + (tokens-1)*(A + KV*kv + D*d) + load
//	  p = prefill tokens done there meanwhile, mixed = p/Chunk the steps that had
//	  them, plain = tokens-1-mixed the steps that only decoded;
//	  kv, d = averages over that time
//
// R, the floor of a step that only decodes, tells engines that hide the reading
// of the weights behind a prefill from those that read them twice in a mixed
// step: the former have R and little A, the latter A and little R. T0 and W
// together are R in the form of Timing. On a busy pool something always decodes
// and T0 and A cannot be told apart; then A stays near its start, while T0, into
// which also goes what shared steps cost, is nearly free. Load is what loading reused blocks takes;
// it is given, not learned.
//
// Rows are divided by the time observed, or expected where that is more, so that
// short and long ones weigh the same and no row has a residual above 1. They are
// weighted against outliers after Huber: a residual of more than twice the mean
// absolute one counts less. Older rows are forgotten.
type learner struct {
	m    [unknowns][unknowns]float64 // normal equations in units of scale
	v    [unknowns]float64
	unit [unknowns]float64 // scale of each unknown
	at   [unknowns]float64 // where it starts, in units
	hold [unknowns]float64 // weight of the start, in rows
	x    [unknowns]float64 // the present solution, in units
	mean float64           // mean absolute residual
	rows uint64
}

const (
	kT0 = iota
	kB
	kC
	kA
	kKV
	kD
	kR
	unknowns

	// learnMemory is the number of rows after which a row counts 1/e.
	learnMemory = 2000
	// learnEvery is the number of rows between two solutions.
	learnEvery = 100
	// learnPrior is the weight of the start values, in rows, with the exceptions
	// of T0, and of A when it starts at 0: an engine is taken to hide the reading
	// of its weights until it plainly does not.
	learnPrior   = 0.1
	learnPriorT0 = 0.003
	learnPriorA  = 2
)

func newLearner(t *Timing) *learner {
	d := DefaultTiming()
	start := [unknowns]float64{t.T0, t.B, t.C, t.A, t.KV, t.D, t.T0 + t.W}
	usual := [unknowns]float64{d.T0, d.B, d.C, d.W, d.KV, d.D, d.T0 + d.W}
	l := &learner{}
	for i := range start {
		if l.unit[i] = start[i]; l.unit[i] <= 0 {
			l.unit[i] = usual[i]
		}
		l.at[i] = start[i] / l.unit[i]
		l.x[i] = l.at[i]
		l.hold[i] = learnPrior
	}
	l.hold[kT0] = learnPriorT0
	if t.A == 0 {
		l.hold[kA] = learnPriorA
	}
	return l
}

// add takes one row, y = known + sum of row[i]*unknown[i], and says whether the
// solution was renewed.
func (l *learner) add(row [unknowns]float64, y, known float64) bool {
	if !(y > 1e-6) || math.IsInf(y, 0) {
		return false
	}
	want := known
	for i := range row {
		row[i] *= l.unit[i]
		want += row[i] * l.x[i]
	}
	scale := max(y, want)
	for i := range row {
		row[i] /= scale
	}
	miss := math.Abs(y-want) / scale
	target := (y - known) / scale
	l.rows++
	l.mean += (miss - l.mean) * max(1/float64(l.rows), 1.0/learnMemory)
	weight := 1.0
	if limit := 2 * l.mean; miss > limit {
		weight = limit / miss
	}
	const keep = 1 - 1.0/learnMemory
	for i := range row {
		for j := range row {
			l.m[i][j] = l.m[i][j]*keep + weight*row[i]*row[j]
		}
		l.v[i] = l.v[i]*keep + weight*row[i]*target
	}
	if l.rows%learnEvery != 0 {
		return false
	}
	l.solve()
	return true
}

// solve finds the least squares solution with none of the unknowns negative:
// those that come out so are set to 0 and the rest is solved again.
func (l *learner) solve() {
	var zero [unknowns]bool
	for range unknowns + 1 {
		x, ok := l.eliminate(&zero)
		if !ok {
			return
		}
		negative := false
		for i := range x {
			if x[i] < 0 {
				zero[i], negative = true, true
			}
		}
		if !negative {
			l.x = x
			return
		}
	}
}

// eliminate solves the normal equations with the prior, leaving out the unknowns
// that are fixed at zero, by elimination with pivoting.
func (l *learner) eliminate(zero *[unknowns]bool) (x [unknowns]float64, ok bool) {
	var a [unknowns][unknowns + 1]float64
	for i := range a {
		for j := range l.m[i] {
			if !zero[i] && !zero[j] {
				a[i][j] = l.m[i][j]
			}
		}
		a[i][i] += l.hold[i]
		if !zero[i] {
			a[i][unknowns] = l.v[i] + l.hold[i]*l.at[i]
		}
	}
	for i := range a {
		p := i
		for k := i + 1; k < unknowns; k++ {
			if math.Abs(a[k][i]) > math.Abs(a[p][i]) {
				p = k
			}
		}
		a[i], a[p] = a[p], a[i]
		if !(math.Abs(a[i][i]) > 1e-300) {
			return x, false
		}
		for k := i + 1; k < unknowns; k++ {
			f := a[k][i] / a[i][i]
			for j := i; j <= unknowns; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	for i := unknowns - 1; i >= 0; i-- {
		s := a[i][unknowns]
		for j := i + 1; j < unknowns; j++ {
			s -= a[i][j] * x[j]
		}
		if x[i] = s / a[i][i]; math.IsNaN(x[i]) || math.IsInf(x[i], 0) {
			return x, false
		}
	}
	return x, true
}

// apply writes the solution over the learned constants of t.
func (l *learner) apply(t *Timing) {
	v := func(i int) float64 { return l.x[i] * l.unit[i] }
	t.T0, t.B, t.C, t.A, t.KV, t.D = v(kT0), v(kB), v(kC), v(kA), v(kKV), v(kD)
	t.W = max(0, v(kR)-t.T0)
	t.split = true
}

// A firstGroup gathers the first tokens that make one row.
type firstGroup struct {
	open        bool
	guessed     bool // start is an assumption
	start, at   float64
	tokens, ctx float64
	load        float64
	d, kv       float64
}

const (
	// groupWindow is how far apart the first tokens of one step may be seen, in
	// seconds; it is shorter than any step.
	groupWindow = 1e-3
	// rowChunks is the number of chunks of prefill after which a row is closed.
	rowChunks = 4
)

// ends says whether a first token at now belongs to another row.
func (g *firstGroup) ends(w *worker, now float64, chunk int) bool {
	if now-g.at <= groupWindow {
		return false
	}
	// The queue has run dry since when its head was not set by the group's last.
	dry := g.at != w.headAt
	return dry || g.guessed || g.tokens >= rowChunks*float64(chunk)
}

// observeFirst notes a first token; call it before firstToken changes the ledger.
func (r *Router) observeFirst(l *Lease, now float64) {
	b, w := &l.b, l.b.w
	n := float64(b.estNew)
	w.did.add(b)
	if r.learn == nil {
		return
	}
	g := &w.group
	if g.open && g.ends(w, now, r.timing.Chunk) {
		r.flush(w)
	}
	if !g.open {
		*g = firstGroup{open: true, guessed: w.guessed, start: w.headAt, at: now, d: float64(w.decoding), kv: w.context()}
	}
	g.at = now
	g.tokens += n
	g.ctx += n * (float64(b.estHit) + n/2)
	g.load += b.estLoad
}

// flush turns a worker's open group into a row.
func (r *Router) flush(w *worker) {
	g := &w.group
	g.open = false
	if g.guessed {
		return
	}
	steps := max(1, g.tokens/float64(r.timing.Chunk))
	row := [unknowns]float64{kT0: steps, kB: g.tokens, kC: g.ctx}
	if g.d > 0 {
		row[kA], row[kKV], row[kD] = steps, steps*g.kv, steps*g.d
	}
	r.learned(row, g.at-g.start, g.load)
}

// observeDone notes a completion of tokens output tokens; call it before unbook.
func (r *Router) observeDone(l *Lease, now float64, tokens int) {
	w := l.b.w
	span := now - l.firstAt
	if tokens < 2 || span <= 0 {
		return
	}
	w.advance(now)
	r.tpotCount++
	r.tpot += (span/float64(tokens-1) - r.tpot) * max(1/float64(r.tpotCount), 1.0/200)
	if r.learn == nil {
		return
	}
	steps := float64(tokens - 1)
	p := w.did.tokens - l.didAt.tokens
	mixed := p / float64(r.timing.Chunk)
	r.learned([unknowns]float64{
		kT0: mixed,
		kB:  p,
		kC:  w.did.ctx - l.didAt.ctx,
		kA:  steps,
		kKV: steps * (w.contextSec - l.contextAt) / span,
		kD:  steps * (w.decodeSec - l.decodeAt) / span,
		kR:  max(0, steps-mixed),
	}, span, w.did.load-l.didAt.load)
}

// prefilled sums the prefills a worker has done: tokens, tokens x context, and
// seconds of loading reused blocks.
type prefilled struct{ tokens, ctx, load float64 }

func (p *prefilled) add(b *booking) {
	n := float64(b.estNew)
	p.tokens += n
	p.ctx += n * (float64(b.estHit) + n/2)
	p.load += b.estLoad
}

func (r *Router) learned(row [unknowns]float64, y, known float64) {
	if r.learn.add(row, y, known) {
		r.learn.apply(&r.timing)
	}
}
