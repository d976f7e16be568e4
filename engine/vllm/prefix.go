package vllm

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stator-go/stator/internal/jsonedit"
)

const (
	// learnAfter is the number of conversations in a row for which the rule must
	// have given the engine's own ids before it is relied on.
	learnAfter = 8
	// checkEvery is how often it is compared again after that.
	checkEvery = 16
	// learnMisfits is how often in a row the rule may not be applicable before it
	// is no longer tried.
	learnMisfits = 3
	// learnContexts bounds the models, tools and template arguments that are
	// learned about.
	learnContexts = 1024
)

// reuse makes the ids of a conversation that goes on, B = A + Y, of which A has
// been asked before. Chat templates need not be concatenative, so the engine is
// asked how it renders Y after other messages of the same roles, S + Y, and
//
//	ids(B) = ids(A) less its generation prompt + ids(S + Y) less ids(S)
//
// is used when the engine's answers show that ids(S) begins ids(S + Y), and that
// ids(A) ends with what the generation prompt adds to ids(S). That proves the
// rule for S, not for A. Three things stand between it and a wrong answer:
//
//   - it is applied to plain conversations only, see plain;
//   - for each context (model, tools, template arguments: everything but the
//     messages) it must first have given the engine's own ids learnAfter times
//     in a row, and is compared again every checkEvery times;
//   - one difference ends it for the context, with all that it made. What is
//     known of a context is kept for the learnContexts used last; one that is
//     forgotten begins anew, and what the rule had made there is not believed.
//
// Short conversations are asked for in full. ok says that ids are the answer.
func (w *Worker) reuse(ctx context.Context, q *question) (ids []uint32, ok bool, err error) {
	p := q.p
	if w.opts.NoPrefixReuse || !p.chat || p.flags || p.inexact != "" || len(p.messages) < 2 || w.tokens.learn.broken(p.context) {
		return nil, false, nil
	}
	known, n := w.longestKnown(p)
	size := 0
	for _, m := range p.messages[:n] {
		size += len(m)
	}
	if n == 0 || size < w.opts.MinReuse {
		return nil, false, nil
	}
	roles := make([]byte, 0, 64)
	roles = append(roles, '[')
	for i, m := range p.messages {
		role, ok := plain(m)
		if !ok {
			return nil, false, nil
		}
		if i < n {
			roles = append(roles, `{"role":`...)
			roles = append(roles, role...)
			roles = append(roles, `,"content":"x"},`...)
		}
	}
	ids, fits, err := w.assemble(ctx, q, known, roles, n)
	if err != nil {
		return nil, false, err
	}
	by, check := w.tokens.learn.next(p.context, fits)
	if !fits {
		return nil, false, nil
	}
	if !check {
		w.stats.reused.Add(1)
		w.tokens.put(p.key, ids, by)
		return ids, true, nil
	}
	w.stats.asked.Add(1)
	told, err := w.askTokens(ctx, q)
	if err != nil {
		return nil, false, err
	}
	w.stats.checked.Add(1)
	same := slices.Equal(ids, told)
	if !same {
		w.stats.wrong.Add(1)
	}
	w.tokens.learn.verdict(p.context, same)
	w.tokens.put(p.key, told, nil)
	return told, true, nil
}

// longestKnown finds the longest proper prefix of the messages whose ids are
// known, n messages.
func (w *Worker) longestKnown(p *prompt) (ids []uint32, n int) {
	for n = len(p.messages) - 1; n > 0; n-- {
		if e, ok := w.lookup(p.chain[n]); ok {
			return e.ids, n
		}
	}
	return nil, 0
}

// assemble applies the rule. standIn is the open array of the messages S, with a
// comma at its end.
func (w *Worker) assemble(ctx context.Context, q *question, known []uint32, standIn []byte, n int) (ids []uint32, fits bool, err error) {
	p := q.p
	short := append(bytes.Clone(standIn[:len(standIn)-1]), ']')
	closed, err := w.askStandIn(ctx, q, short, false)
	if err != nil {
		return nil, false, err
	}
	open, err := w.askStandIn(ctx, q, short, true)
	if err != nil {
		return nil, false, err
	}
	for i, m := range p.messages[n:] {
		if i > 0 {
			standIn = append(standIn, ',')
		}
		standIn = append(standIn, m...)
	}
	whole, err := w.askTokens(ctx, &question{p: p, body: q.body, messages: append(standIn, ']'), open: true})
	if err != nil {
		return nil, false, err
	}
	if len(closed) == 0 || !begins(open, closed) || !begins(whole, closed) {
		return nil, false, nil
	}
	generation := open[len(closed):]
	cut := len(known) - len(generation)
	if cut < 0 || !slices.Equal(known[cut:], generation) {
		return nil, false, nil
	}
	return slices.Concat(known[:cut], whole[len(closed):]), true, nil
}

func begins(s, prefix []uint32) bool {
	return len(s) >= len(prefix) && slices.Equal(s[:len(prefix)], prefix)
}

// askStandIn asks for the ids of stand-in messages. They are few and the same
// for all conversations of one shape, so that they come from the cache mostly.
func (w *Worker) askStandIn(ctx context.Context, q *question, messages []byte, open bool) ([]uint32, error) {
	k := link(link(q.p.context, boolean(open)), messages)
	if e, ok := w.tokens.get(k); ok {
		return e.ids, nil
	}
	ids, err := w.askTokens(ctx, &question{p: q.p, body: q.body, messages: messages, open: open})
	if err != nil {
		return nil, err
	}
	w.tokens.put(k, ids, nil)
	return ids, nil
}

// plain says whether a message is one that templates have no reason to treat
// by its content: a usual role and a text and nothing else, no space at its
// ends, where tokens could grow together with what stands around, and none of
// the marks of reasoning, which templates cut out of earlier turns. role is raw
// JSON.
func plain(message []byte) (role []byte, ok bool) {
	var content []byte
	f := jsonedit.Object(message)
	for f.Next() {
		switch string(f.Key) {
		case "role":
			role = f.Value
		case "content":
			content = f.Value
		default:
			return nil, false
		}
	}
	switch string(role) {
	case `"system"`, `"developer"`, `"user"`, `"assistant"`:
	default:
		return nil, false
	}
	if f.Err() != nil || jsonedit.KindOf(content) != jsonedit.String {
		return nil, false
	}
	text, fine := jsonedit.AppendText(nil, content)
	if !fine || len(text) == 0 || len(bytes.TrimSpace(text)) != len(text) {
		return nil, false
	}
	for _, mark := range []string{"<|", "think>", "THINK]", "reasoning>"} {
		if bytes.Contains(text, []byte(mark)) {
			return nil, false
		}
	}
	return role, true
}

// A learner keeps what is known of the rule in each context.
type learner struct {
	mu  sync.Mutex
	lru *simplelru.LRU[promptKey, *lesson]
}

type lesson struct {
	good, misfits, uses int
	broken              bool
}

func (l *learner) at(k promptKey) *lesson {
	s, ok := l.lru.Get(k)
	if !ok {
		s = new(lesson)
		l.lru.Add(k, s)
	}
	return s
}

func (l *learner) broken(k promptKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at(k).broken
}

// doubts says whether what a lesson made is no longer to be believed.
func (l *learner) doubts(s *lesson) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.broken
}

// next counts one use of the rule. It gives what is known of it, and says whether
// this use is to be compared.
func (l *learner) next(k promptKey, fits bool) (s *lesson, check bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = l.at(k)
	if !fits {
		s.misfits++
		s.broken = s.broken || s.misfits >= learnMisfits
		return s, true
	}
	s.misfits = 0
	s.uses++
	return s, s.good < learnAfter || s.uses%checkEvery == 0
}

func (l *learner) verdict(k promptKey, same bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.at(k)
	s.good++
	s.broken = s.broken || !same
}
