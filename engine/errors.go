package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The ways a generation fails. Engines wrap them; compare with errors.Is.
var (
	// ErrAborted: the engine ended the request on its own (finish reason
	// "abort" or "error") after part of the answer.
	ErrAborted = errors.New("engine: aborted by the engine")
	// ErrCut: the answer stopped without its end, as when a process is killed.
	ErrCut = errors.New("engine: answer cut off")
	// ErrNotServed: the engine answered politely and generated nothing, as a
	// draining vLLM does. Nothing of the answer exists.
	ErrNotServed = errors.New("engine: answered without serving the request")
	// ErrTimeout: the engine was silent longer than the caller's limit for the
	// first byte or between bytes.
	ErrTimeout = errors.New("engine: no answer in time")
	// ErrUnreachable: the request could not be sent, or the connection went
	// before the answer began.
	ErrUnreachable = errors.New("engine: unreachable")
	// ErrUnavailable: no worker can take the request now.
	ErrUnavailable = errors.New("engine: no worker available")
	// ErrProtocol: the engine sent something that is no answer.
	ErrProtocol = errors.New("engine: malformed answer")
)

// An Error is an engine's refusal or failure in its own words.
type Error struct {
	// Status is the HTTP status, or the code of an error event in a stream.
	Status int
	// Message, Type, Param and Code are the fields of the OpenAI error object;
	// Code is raw JSON, nil when absent.
	Message, Type, Param string
	Code                 []byte
	// RetryAfter is how long the engine asked to be left alone, 0 if it did not.
	RetryAfter time.Duration
	// Body is the answer's body as received, bounded; it belongs to the error.
	Body []byte
}

// Error names the status and the engine's message.
func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("engine: status %d", e.Status)
	}
	return fmt.Sprintf("engine: status %d: %s", e.Status, e.Message)
}

// A StreamError wraps the failure of an answer of which part was yielded.
type StreamError struct {
	Err    error
	Chunks int // chunks yielded before
	Tokens int // output tokens in them, as far as they can be told
}

// Error tells how far the answer had come.
func (e *StreamError) Error() string {
	return fmt.Sprintf("%v (after %d chunks, %d tokens)", e.Err, e.Chunks, e.Tokens)
}

// Unwrap is the failure itself.
func (e *StreamError) Unwrap() error { return e.Err }

// Delivered reports whether part of the answer had been yielded when err came:
// sending the request again would then repeat it.
func Delivered(err error) bool {
	var s *StreamError
	return errors.As(err, &s) && s.Chunks > 0
}

// Retryable reports whether the same request may succeed on another worker,
// judged by the cause alone: a caller must see for itself that nothing of the
// answer has been passed on. Requests that are at fault themselves (most 4xx)
// and those whose own context ended are not retryable. An error of an unknown
// kind is: a generation has no effect beside its answer.
func Retryable(err error) bool {
	if err == nil {
		return false
	}
	var e *Error
	if errors.As(err, &e) {
		switch e.Status {
		case 408, 429, 500, 502, 503, 504:
			return true
		}
		return false
	}
	for _, own := range []error{ErrTimeout, ErrCut, ErrUnreachable, ErrNotServed, ErrAborted} {
		if errors.Is(err, own) {
			return true
		}
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable)
}

// RetryAfter is how long the engine that failed with err asked to be left
// alone, 0 if it did not say.
func RetryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}
