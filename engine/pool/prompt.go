package pool

import (
	"context"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
	"github.com/stator-go/stator/kvindex/block"
)

// prepare finds the prompt's tokens and hashes it, once.
func (c *call) prepare(ctx context.Context) error {
	p, req := c.p, c.req
	start := time.Now()
	tokens := c.tokenize(ctx)
	c.ids = tokens
	if ctx.Err() != nil {
		return ctx.Err()
	}
	hashed := time.Now()
	req.Timeline.Add("tokenise", engine.Control, start, hashed)

	h, err := p.hasher(c.scope())
	if err != nil {
		return &engine.Error{Status: 400, Type: "invalid_request_error", Message: err.Error()}
	}
	p.stats.hashings.Add(1)
	if tokens != nil {
		c.prompt, c.chain = len(tokens), c.chain[:0]
		if h.CheckMedia(req.Media) == nil { // else nothing is known but the length
			c.chain = h.AppendHashes(c.chain, tokens, req.Media)
		}
	} else {
		// 4 bytes a token is what block.Hasher assumes, too.
		text := promptBytes(req)
		c.chain = h.AppendBytes(c.chain[:0], text, nil)
		c.prompt, c.bytes = (len(text)+3)/4, true
		p.stats.byBytes.Add(1)
	}
	p.stats.promptTokens.Add(uint64(c.prompt))
	req.Timeline.Add("hash", engine.Control, hashed, time.Now())
	return nil
}

// tokenize is the prompt's ids, nil when they cannot be had.
func (c *call) tokenize(ctx context.Context) []uint32 {
	p, req := c.p, c.req
	if len(req.Tokens) > 0 {
		p.stats.clientIDs.Add(1)
		return req.Tokens
	}
	all := p.members.Load().tokenizers
	if len(all) == 0 || p.opts.Bytes || req.Prompts > 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.TokenizeTimeout)
	defer cancel()
	first := int(p.next.Add(1))
	for i := range min(len(all), 2) {
		ids, err := all[(first+i)%len(all)].Tokenize(ctx, c.tokens[:0], req)
		if err == nil && len(ids) > 0 {
			c.tokens = ids
			p.stats.tokenized.Add(1)
			return ids
		}
		if ctx.Err() != nil {
			break
		}
	}
	p.stats.untokenized.Add(1)
	return nil
}

// scope is what besides tokens makes the request's KV its own.
func (c *call) scope() block.Scope {
	s := c.p.opts.Scope
	base, adapter := c.req.Base, c.req.Adapter
	if base == "" {
		base = c.req.Model
		if parent, ok := (*c.p.models.Load())[base]; ok {
			base, adapter = parent, base
		}
	}
	if s.Model == "" {
		s.Model = base
	}
	s.Adapter, s.Tenant = adapter, c.req.Salt
	return s
}

// promptBytes is the part of a body that stands for the prompt, such that a
// conversation that goes on begins with the same bytes: the prompt as it is
// spelled in JSON without its closing quote, or the messages without the
// closing bracket. A body that is no object has none.
func promptBytes(req *engine.Request) []byte {
	name := "prompt"
	if req.API == engine.APIChat {
		name = "messages"
	}
	v, ok, err := jsonedit.Get(req.Body, name)
	if !ok || err != nil || len(v) < 2 {
		return nil
	}
	if k := jsonedit.KindOf(v); k == jsonedit.String || k == jsonedit.ArrayKind {
		v = v[1 : len(v)-1]
	}
	return v
}
