package openai

import (
	"context"
	"fmt"

	"github.com/stator-go/stator/engine"
)

// A form is where the JSON of an answer comes from.
type form uint8

const (
	formUnknown  form = iota
	formRelayed       // the engine's own, in Chunk.Raw
	formComposed      // made here of the chunks' fields
)

// ends follows what an answer must have had when it ends well: a finish of
// every choice, and one form throughout. An engine is not believed to have kept
// its promises: what a client is told depends on them.
type ends struct {
	form    form
	parts   bool   // a Part came whose Raw did not yet
	whole   bool   // the body of an answer that does not stream came
	aborted bool   // a choice ended with "abort" or "error"
	done    []bool // by choice
	open    int    // choices not done
}

func (e *ends) begin(req *engine.Request) {
	n := max(req.N, 1) * max(req.Prompts, 1)
	done := e.done[:0]
	if cap(done) < n {
		done = make([]bool, 0, n)
	}
	*e = ends{done: done[:n], open: n}
	clear(e.done)
}

// follow takes note of a chunk. A hidden one says nothing of the form: it is
// not sent.
func (e *ends) follow(chunk *engine.Chunk) error {
	if !chunk.Hidden {
		f := formComposed
		if chunk.Part || len(chunk.Raw) > 0 {
			f = formRelayed
			e.parts = chunk.Part
		}
		if f != e.form {
			if e.form != formUnknown {
				return fmt.Errorf("%w: chunks with Raw and chunks without it in one answer", engine.ErrProtocol)
			}
			e.form = f
		}
	}
	if chunk.Choice >= len(e.done) {
		if err := e.grow(chunk.Choice); err != nil {
			return err
		}
	}
	if chunk.Finish != "" {
		return e.finish(chunk)
	}
	return nil
}

// grow makes room for a choice that the request did not announce to us: there
// may be fields that make an engine give more, and it must finish like the
// others. What is composed here knows no such field.
func (e *ends) grow(choice int) error {
	if e.form == formComposed || choice >= maxChoices {
		return fmt.Errorf("%w: choice %d of %d", engine.ErrProtocol, choice, len(e.done))
	}
	more := choice + 1 - len(e.done)
	e.done = append(e.done, make([]bool, more)...)
	e.open += more
	return nil
}

func (e *ends) finish(chunk *engine.Chunk) error {
	switch {
	case chunk.Choice < 0:
		return fmt.Errorf("%w: a finish reason without a choice", engine.ErrProtocol)
	case failed(chunk.Finish):
		e.aborted = true
	case !e.done[chunk.Choice]:
		e.done[chunk.Choice] = true
		e.open--
	}
	return nil
}

// judge says whether an answer that ended without an error may.
func (e *ends) judge(ctx context.Context, stream bool) error {
	var err error
	switch {
	case e.aborted:
		err = fmt.Errorf("%w: its sequence ended without an error", engine.ErrAborted)
	case e.open > 0:
		err = fmt.Errorf("%w: the sequence ended with %d of %d choices unfinished", engine.ErrCut, e.open, len(e.done))
	case e.parts:
		err = fmt.Errorf("%w: parts without their Raw", engine.ErrProtocol)
	case !stream && e.form != formComposed && !e.whole:
		err = fmt.Errorf("%w: no body", engine.ErrProtocol)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the engine stopped because it was told to, and kept quiet
	}
	return err
}
