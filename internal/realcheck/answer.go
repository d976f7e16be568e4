package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// An answer is what must be equal, whatever the transport.
type answer struct {
	choices            []choice
	prompt, completion int
	cached             int
	started            bool // at least one chunk with a choice arrived
	id                 string
}

type choice struct {
	text   string
	ids    []int
	finish string
}

// body is the union of the forms of completions, chat, and their chunks.
type body struct {
	Choices []struct {
		Index    int
		Text     string
		Message  struct{ Content string }
		Delta    struct{ Content string }
		TokenIDs []int  `json:"token_ids"`
		Finish   string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct{ Message string }
}

// ask sends a request to a base URL and reads the whole answer.
func ask(ctx context.Context, client *http.Client, base string, r *request) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+r.path, bytes.NewReader(r.json()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", r.name)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{choices: make([]choice, 1), cached: -1, id: resp.Header.Get("X-Request-Id")}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 400))
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	if !r.stream {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return a, err
		}
		return a, a.add(b)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<22)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return a, nil
		}
		if err := a.add([]byte(data)); err != nil {
			return a, err
		}
	}
	if err := sc.Err(); err != nil {
		return a, err
	}
	return a, errors.New("stream ended without [DONE]")
}

func (a *answer) add(raw []byte) error {
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return fmt.Errorf("%w in %.200s", err, raw)
	}
	if b.Error != nil {
		return errors.New(b.Error.Message)
	}
	for _, c := range b.Choices {
		if c.Index < 0 || c.Index >= len(a.choices) {
			return fmt.Errorf("choice %d of %d", c.Index, len(a.choices))
		}
		a.started = true
		d := &a.choices[c.Index]
		d.text += c.Text + c.Message.Content + c.Delta.Content
		d.ids = append(d.ids, c.TokenIDs...)
		if c.Finish != "" {
			d.finish = c.Finish
		}
	}
	if u := b.Usage; u != nil {
		a.prompt, a.completion = u.Prompt, u.Completion
		if u.Details != nil && u.Details.Cached != nil {
			a.cached = *u.Details.Cached
		}
	}
	return nil
}

// differs says how two answers differ, "" if they do not.
func (a *answer) differs(b *answer) string {
	for i := range a.choices {
		x, y := &a.choices[i], &b.choices[i]
		switch {
		case !slices.Equal(x.ids, y.ids):
			return fmt.Sprintf("choice %d: ids %v and %v", i, x.ids, y.ids)
		case x.text != y.text:
			return fmt.Sprintf("choice %d: text %q and %q", i, x.text, y.text)
		case x.finish != y.finish:
			return fmt.Sprintf("choice %d: finish %q and %q", i, x.finish, y.finish)
		case len(x.ids) == 0:
			return fmt.Sprintf("choice %d: no token ids", i)
		}
	}
	if a.prompt != b.prompt || a.completion != b.completion {
		return fmt.Sprintf("usage %d+%d and %d+%d", a.prompt, a.completion, b.prompt, b.completion)
	}
	return ""
}
