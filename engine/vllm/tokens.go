package vllm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// TokenStats counts what became of prompts; totals, of the control path.
type TokenStats struct {
	Given   uint64 // prompts that were ids already
	Hits    uint64 // prompts found in the cache
	Asked   uint64 // prompts that the engine was asked for in full
	Reused  uint64 // prompts put together from known messages
	Checked uint64 // of these, compared with the engine's own answer
	Wrong   uint64 // of these, found to differ
	Failed  uint64 // prompts without an answer
	Calls   uint64 // requests to the engine, small ones for reuse included
}

type tokenCounters struct {
	given, hits, asked, reused, checked, wrong, failed, calls atomic.Uint64
}

// TokenStats may be called at any time.
func (w *Worker) TokenStats() TokenStats {
	c := &w.stats
	return TokenStats{c.given.Load(), c.hits.Load(), c.asked.Load(), c.reused.Load(), c.checked.Load(), c.wrong.Load(), c.failed.Load(), c.calls.Load()}
}

// Tokenize appends the ids of the request's prompt to dst.
//
// The engine is asked by its render endpoint, which sees the request as it is,
// or, where that is not allowed (vLLM needs --enable-scale-out), by /tokenize.
// What /tokenize cannot express, media, and bodies with several prompts are
// ErrNoTokens: the request is to be routed without ids.
//
// Answers are cached by all that can matter to the ids: the model, the prompt,
// and every field that is not known to be idle. A conversation that goes on is
// put together from what is known; see reuse for the rule, and
// WorkerOptions.NoPrefixReuse to switch it off.
func (w *Worker) Tokenize(ctx context.Context, dst []uint32, req *engine.Request) ([]uint32, error) {
	if len(req.Tokens) > 0 {
		w.stats.given.Add(1)
		return append(dst, req.Tokens...), nil
	}
	ids, err := w.tokenize(ctx, req)
	if err != nil {
		w.stats.failed.Add(1)
		return dst, err
	}
	return append(dst, ids...), nil
}

func (w *Worker) tokenize(ctx context.Context, req *engine.Request) ([]uint32, error) {
	p, err := parsePrompt(req)
	if err != nil {
		return nil, err
	}
	if p.ids != nil && p.inexact == "" {
		ids, err := jsonedit.AppendUint32s(nil, p.ids)
		if err != nil {
			return nil, fmt.Errorf("%w: prompt: %w", ErrNoTokens, err)
		}
		w.stats.given.Add(1)
		return ids, nil
	}
	if e, ok := w.lookup(p.key); ok {
		w.stats.hits.Add(1)
		return e.ids, nil
	}
	q := question{p: p, body: req.Body}
	if ids, ok, err := w.reuse(ctx, &q); ok || err != nil {
		return ids, err
	}
	w.stats.asked.Add(1)
	ids, err := w.askTokens(ctx, &q)
	if err != nil {
		return nil, err
	}
	w.tokens.put(p.key, ids, nil)
	return ids, nil
}

// lookup finds ids in the cache. Such as were put together under a rule that
// has meanwhile failed are not believed.
func (w *Worker) lookup(k promptKey) (tokenEntry, bool) {
	e, ok := w.tokens.get(k)
	if ok && e.by != nil && w.tokens.learn.doubts(e.by) {
		return tokenEntry{}, false
	}
	return e, ok
}

// A question is what the engine is asked: the ids of a prompt, or of one like it
// with other messages.
type question struct {
	p        *prompt
	body     []byte // the request's own body
	messages []byte // raw array that stands for the request's messages; nil for its own
	open     bool   // with messages: whether the generation prompt is added
}

// askTokens asks the engine.
func (w *Worker) askTokens(ctx context.Context, q *question) ([]uint32, error) {
	if w.render.Load() != refused {
		ids, err := w.askRender(ctx, q)
		if !closedEndpoint(err) {
			if err == nil {
				w.render.Store(allowed)
			}
			return ids, err
		}
		w.render.Store(refused)
	}
	return w.askTokenize(ctx, q)
}

// closedEndpoint says whether an engine answered that it has no such endpoint or
// does not allow it. A model that is not known is 404 too, but in the API's own
// form.
func closedEndpoint(err error) bool {
	var e *engine.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Status {
	case http.StatusForbidden, http.StatusMethodNotAllowed:
		return true
	case http.StatusNotFound:
		_, ok, _ := jsonedit.Get(e.Body, "error")
		return !ok
	}
	return false
}

func (w *Worker) askRender(ctx context.Context, q *question) ([]uint32, error) {
	body, path := q.body, "/v1/completions/render"
	if q.p.chat {
		path = "/v1/chat/completions/render"
	}
	if q.messages != nil {
		var err error
		if body, err = jsonedit.Set(nil, q.body, "messages", q.messages); err == nil {
			body, err = jsonedit.Set(nil, body, "add_generation_prompt", boolean(q.open))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: body: %w", ErrNoTokens, err)
		}
	}
	w.stats.calls.Add(1)
	out, err := w.client.Call(ctx, http.MethodPost, path, body)
	if err != nil {
		return nil, err
	}
	one := out
	if !q.p.chat { // an array of one object a prompt
		e := jsonedit.Array(out)
		if !e.Next() {
			return nil, fmt.Errorf("%w: empty render", engine.ErrProtocol)
		}
		one = e.Value
		if e.Next() {
			return nil, fmt.Errorf("%w: more than one prompt", ErrNoTokens)
		}
	}
	if features, ok, _ := jsonedit.Get(one, "features"); ok && jsonedit.KindOf(features) != jsonedit.Null {
		// Ids alone would let two images pass for one.
		return nil, fmt.Errorf("%w: the prompt has media", ErrNoTokens)
	}
	return idsOf(one, "token_ids")
}

func (w *Worker) askTokenize(ctx context.Context, q *question) ([]uint32, error) {
	p := q.p
	if p.inexact != "" {
		return nil, fmt.Errorf("%w: field %q, which /tokenize does not take", ErrNoTokens, p.inexact)
	}
	body := append([]byte(`{"model":`), p.model...)
	body = append(body, p.pass...)
	switch {
	case q.messages != nil:
		body = append(append(body, `,"messages":`...), q.messages...)
		body = append(append(body, `,"add_generation_prompt":`...), boolean(q.open)...)
	case p.chat:
		body = append(body, `,"messages":[`...)
		for i, m := range p.messages {
			if hasMedia(m) {
				return nil, fmt.Errorf("%w: the prompt has media", ErrNoTokens)
			}
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, m...)
		}
		body = append(body, ']')
	case p.text != nil:
		body = append(append(body, `,"prompt":`...), p.text...)
	default:
		return nil, fmt.Errorf("%w: no text in the prompt", ErrNoTokens)
	}
	body = append(body, '}')
	w.stats.calls.Add(1)
	out, err := w.client.Call(ctx, http.MethodPost, "/tokenize", body)
	if err != nil {
		return nil, err
	}
	return idsOf(out, "tokens")
}

func boolean(v bool) []byte {
	if v {
		return []byte("true")
	}
	return []byte("false")
}

// idsOf reads the ids in a field of an answer.
func idsOf(answer []byte, name string) ([]uint32, error) {
	v, ok, err := jsonedit.Get(answer, name)
	if err == nil && !ok {
		err = fmt.Errorf("no %q", name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: token ids: %w", engine.ErrProtocol, err)
	}
	// "[1,2" has at most one id for each two bytes
	ids, err := jsonedit.AppendUint32s(make([]uint32, 0, len(v)/4), v)
	if err != nil {
		return nil, fmt.Errorf("%w: token ids: %w", engine.ErrProtocol, err)
	}
	return ids, nil
}
