package router

import (
	"errors"
	"fmt"
	"time"
)

// Reasons why a sound request was given no worker, for errors.Is. Each comes
// wrapped in a [*RejectError].
var (
	// ErrNoWorker: the router has no workers at all.
	ErrNoWorker = errors.New("router: no worker")
	// ErrNotAllowed: there are workers, but none that the request's Role, Only
	// and Not leave.
	ErrNotAllowed = errors.New("router: no worker allowed for the request")
	// ErrDraining: every worker that the request may use is draining.
	ErrDraining = errors.New("router: all workers draining")
	// ErrOverloaded: every worker that the request may use is over a limit of
	// [Limits]. Try again after RetryAfter.
	ErrOverloaded = errors.New("router: all workers overloaded")
	// ErrVetoed: the policy gave no finite score to any worker.
	ErrVetoed = errors.New("router: policy refuses all workers")
	// ErrDeadline: the request's deadline had passed when it was to be placed.
	ErrDeadline = errors.New("router: deadline passed")
)

// Faults of what the router was given, for errors.Is. They come wrapped in a text
// that names the field, never in a [*RejectError].
var (
	// ErrRequest: the request is malformed; nothing was counted against a worker.
	ErrRequest = errors.New("router: bad request")
	// ErrWorkers: a list of workers is inconsistent; the old one stays in use.
	ErrWorkers = errors.New("router: bad worker list")
	// ErrPolicy: no policy of that name, or an option it does not have.
	ErrPolicy = errors.New("router: bad policy name")
)

// A Reason is why a pick was refused, in the order of the checks.
type Reason uint8

// Reasons; each has the sentinel error of the same name.
const (
	ReasonDeadline Reason = iota
	ReasonNoWorker
	ReasonNotAllowed
	ReasonDraining
	ReasonOverloaded
	ReasonVetoed

	// Reasons is the number of reasons.
	Reasons = 6
)

var reasons = [Reasons]struct {
	name string
	err  error
}{
	{"deadline", ErrDeadline},
	{"no_worker", ErrNoWorker},
	{"not_allowed", ErrNotAllowed},
	{"draining", ErrDraining},
	{"overloaded", ErrOverloaded},
	{"vetoed", ErrVetoed},
}

// String is a short name, fit for a metric label.
func (r Reason) String() string {
	if int(r) < Reasons {
		return reasons[r].name
	}
	return "unknown"
}

// A RejectError says why no worker was picked. It unwraps to the sentinel of
// its Reason.
type RejectError struct {
	Reason Reason
	// Workers is the number of workers the router had, Allowed how many of them
	// the request's Role, Only and Not left, and Draining and Overloaded how many
	// of those were refused for that cause.
	Workers, Allowed, Draining, Overloaded int
	// RetryAfter is a hint for overload: the shortest estimated time until a
	// worker has got through what waits there now. 0 = none.
	RetryAfter time.Duration
}

// Error describes the refusal with its counts.
func (e *RejectError) Error() string {
	msg := e.Reason.String()
	if int(e.Reason) < Reasons {
		msg = reasons[e.Reason].err.Error()
	}
	return fmt.Sprintf("%s (%d workers, %d allowed, %d draining, %d overloaded)",
		msg, e.Workers, e.Allowed, e.Draining, e.Overloaded)
}

// Unwrap is the sentinel of the reason.
func (e *RejectError) Unwrap() error {
	if int(e.Reason) < Reasons {
		return reasons[e.Reason].err
	}
	return nil
}
