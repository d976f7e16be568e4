package sim

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// generate answers POST /v1/completions and /v1/chat/completions.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, chat bool) {
	a, e := s.request(w, r, chat)
	if e != nil {
		writeError(w, e)
		return
	}
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = newID()
	}
	if chat {
		id = "chatcmpl-" + id
	} else {
		id = "cmpl-" + id
	}
	c := newCall(id, a)
	if a.echo {
		for i := range c.seqs {
			h := &c.seqs[i].choice
			h.text = append(h.text, a.texts[c.seqs[i].prompt]...)
			h.base = len(h.text)
		}
	}
	if s.isDraining() {
		if chat {
			writeError(w, &apiError{500, "InternalServerError", "cannot schedule new futures after shutdown", ""})
			return
		}
		s.answerNothing(w, c)
		return
	}
	switch err := s.submit(c); {
	case errors.Is(err, ErrTooLong):
		writeError(w, badRequest("", "%s", err))
		return
	case errors.Is(err, errBusy):
		writeError(w, &apiError{503, "ServiceUnavailableError", err.Error(), ""})
		return
	case err != nil:
		panic(http.ErrAbortHandler) // closed meanwhile: the connection just ends
	}
	// Whatever happens to the client ends the sequences with it.
	defer s.finish(c, finishAbort, nil)
	if a.stream {
		s.streamAnswer(w, r, c)
	} else {
		s.wholeAnswer(w, r, c)
	}
}

// request reads and checks the body and the headers that say something.
func (s *Server) request(w http.ResponseWriter, r *http.Request, chat bool) (*ask, *apiError) {
	body, e := s.body(w, r)
	if e != nil {
		return nil, e
	}
	a, e := s.parse(body, chat)
	if e != nil {
		return nil, e
	}
	if v := r.Header.Get("X-Session-ID"); v != "" {
		a.session = v
	}
	if v := r.Header.Get("X-data-parallel-rank"); v != "" {
		if n, err := strconv.Atoi(v); err != nil || n != 0 {
			return nil, badRequest("", "data_parallel_rank %s is out of range [0, 1).", short([]byte(v)))
		}
	}
	return a, nil
}

// body reads a request's JSON.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	if t := r.Header.Get("Content-Type"); t != "" {
		if t, _, _ = strings.Cut(t, ";"); strings.TrimSpace(strings.ToLower(t)) != "application/json" {
			return nil, &apiError{400, "Bad Request", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", ""}
		}
	}
	ended := badRequest("", "the body ended early or its encoding is broken")
	if n := r.ContentLength; n > 0 && n <= min(s.opts.MaxBody, 1<<20) { // more is not set aside on a promise
		body := make([]byte, n)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, ended
		}
		return body, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &apiError{413, "BadRequestError", "the body is too large", ""}
	case err != nil:
		return nil, ended
	}
	return body, nil
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // does not fail
	return hex.EncodeToString(b[:])
}

// collect takes the tokens that came and calls each for every choice that has
// news, until all choices have ended. It is false when the client went away, who
// gets not one more byte: the caller aborts the connection.
func (s *Server) collect(r *http.Request, c *call, each func(q *sequence, ids []uint32, finish string), flush func() error) bool {
	for open := len(c.seqs); open > 0; {
		select {
		case <-c.news:
		case <-r.Context().Done():
			return false
		}
		if _, dead := c.state(); dead {
			panic(http.ErrAbortHandler)
		}
		for i := range c.seqs {
			q := &c.seqs[i]
			if q.choice.finish != "" {
				continue
			}
			if ids, finish := c.take(q); len(ids) > 0 || finish != "" {
				each(q, ids, finish)
			}
			if q.choice.finish != "" {
				open--
			}
		}
		if flush() != nil {
			return false
		}
	}
	return true
}

// feed gives one token to a choice, and ends its sequence if that ended it.
func (s *Server) feed(c *call, q *sequence, id uint32) {
	if q.choice.feed(s.tok, c.ask, id) {
		s.finish(c, finishStop, func(x *sequence) bool { return x == q })
	}
}

func (s *Server) wholeAnswer(w http.ResponseWriter, r *http.Request, c *call) {
	ok := s.collect(r, c, func(q *sequence, ids []uint32, finish string) {
		for _, id := range ids {
			if s.feed(c, q, id); q.choice.finish != "" {
				return
			}
		}
		q.choice.finish = finish
	}, func() error { return nil })
	if !ok {
		panic(http.ErrAbortHandler)
	}
	s.writeWhole(w, c)
}

// writeWhole writes an answer that is not streamed.
func (s *Server) writeWhole(w http.ResponseWriter, c *call) {
	f := newForm(c, time.Now().Unix())
	b := append([]byte(nil), f.head...)
	for i := range c.seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = f.appendWhole(b, &c.seqs[i].choice, c.ask.prompts[c.seqs[i].prompt])
	}
	b = append(b, `],"service_tier":null`...)
	b = append(append(b, f.mark...), `,"usage":`...)
	b = c.usage().appendDetails(b, c.ask.chat, true)
	if c.ask.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...)
		b = f.appendIDs(b, c.ask.prompts[0])
		b = append(b, `,"prompt_text":null`...)
	}
	b = append(b, `,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
	writeJSON(w, http.StatusOK, b)
}

func (c *call) usage() usage {
	var u usage
	for _, p := range c.ask.prompts {
		u.prompt += len(p)
	}
	for i := range c.seqs {
		u.output += c.seqs[i].choice.count
	}
	u.cached, u.stored = c.counts()
	return u
}

func (s *Server) streamAnswer(w http.ResponseWriter, r *http.Request, c *call) {
	rc := http.NewResponseController(w)
	startStream(w)
	_ = rc.Flush() // the headers go out before the first token, as uvicorn's do
	f := newForm(c, time.Now().Unix())
	var b []byte
	left := len(c.seqs)
	chunk := func(q *sequence) {
		h := &q.choice
		prompt := c.ask.prompts[q.prompt]
		if h.finish != "" {
			left--
		}
		if c.ask.chat && !h.begun {
			b = f.appendRole(b, h, prompt)
		}
		b = f.appendChunk(b, h, prompt, left == 0)
		if c.ask.contin {
			u := usage{prompt: len(prompt), output: h.count}
			b = append(u.appendCounts(append(b, `,"usage":`...)), '}')
		}
		b = append(b, "}\n\n"...)
	}
	ok := s.collect(r, c, func(q *sequence, ids []uint32, finish string) {
		h := &q.choice
		for i, id := range ids {
			if s.feed(c, q, id); h.finish == "" && i == len(ids)-1 {
				h.finish = finish
			}
			if h.finish != "" || h.count == 1 || len(h.ids) >= c.ask.interval {
				chunk(q)
			}
			if h.finish != "" {
				return
			}
		}
		if finish != "" { // without a last token
			h.finish = finish
			chunk(q)
		}
	}, func() error {
		if len(b) == 0 {
			return nil
		}
		if left == 0 {
			b = f.appendEnd(b, c.usage())
		}
		_, err := w.Write(b)
		b = b[:0]
		return errors.Join(err, rc.Flush())
	})
	if !ok {
		panic(http.ErrAbortHandler)
	}
}

// appendEnd appends usage, if asked for, and the end of the stream.
func (f *form) appendEnd(b []byte, u usage) []byte {
	if f.ask.usage {
		b = append(f.open(b), `],"usage":`...)
		b = u.appendDetails(b, f.ask.chat, false)
		b = append(append(b, f.mark...), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

func startStream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
}

// answerNothing is what a draining engine says to a completion: 200, no token,
// and in a stream not even a choice.
func (s *Server) answerNothing(w http.ResponseWriter, c *call) {
	for i := range c.seqs {
		c.seqs[i].choice.finish = finishAbort
	}
	if !c.ask.stream {
		s.writeWhole(w, c)
		return
	}
	startStream(w)
	f := newForm(c, time.Now().Unix())
	_, _ = w.Write(f.appendEnd(nil, c.usage()))
}
