package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxEvent bounds one event of an answer.
const maxEvent = 1 << 20

var (
	errCut    = errors.New("answer cut off before its end")
	errFinish = errors.New("answer has no finish reason")
	errUsage  = errors.New("answer has no usage")
)

// An answer reads a streamed completion. Of the many events only the first and
// the last few are looked at: the first token's time, the finish reason and the
// usage. It is reused.
type answer struct {
	first, last                time.Time // first and last token
	prompt, completion, cached int

	br   *bufio.Reader
	kept [2]event // the last two events, newest in kept[0]
}

type event struct {
	at   time.Time
	data []byte
}

// chunk is what matters of an event.
type chunk struct {
	Choices []struct {
		Finish *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// read takes the answer to its end.
func (a *answer) read(r io.Reader) error {
	if a.br == nil {
		a.br = bufio.NewReaderSize(r, 8<<10)
	} else {
		a.br.Reset(r)
	}
	defer a.br.Reset(nil)
	a.first, a.last = time.Time{}, time.Time{}
	a.prompt, a.completion, a.cached = 0, 0, -1
	a.kept[0].data, a.kept[1].data = a.kept[0].data[:0], a.kept[1].data[:0]
	for {
		line, err := a.br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			line, err = a.long(line)
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return errCut
			}
			return err
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue // blank lines and comments
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			return a.end()
		}
		a.kept[0], a.kept[1] = a.kept[1], a.kept[0]
		a.kept[0].at, a.kept[0].data = time.Now(), append(a.kept[0].data[:0], data...)
		if a.first.IsZero() {
			var c chunk
			if err := json.Unmarshal(data, &c); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
			if len(c.Choices) > 0 {
				a.first = a.kept[0].at
			}
		}
	}
}

// long collects a line that is larger than the buffer.
func (a *answer) long(head []byte) ([]byte, error) {
	line := bytes.Clone(head)
	for {
		part, err := a.br.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxEvent {
			return nil, fmt.Errorf("answer: an event of more than %d bytes", maxEvent)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// end looks at the last events: the usage stands alone behind the choice that
// finishes, or with it.
func (a *answer) end() error {
	finish, usage := "", false
	for i := range a.kept {
		if len(a.kept[i].data) == 0 {
			continue
		}
		var c chunk
		if err := json.Unmarshal(a.kept[i].data, &c); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		if c.Error != nil {
			return errors.New(c.Error.Message)
		}
		if c.Usage != nil && !usage {
			usage = true
			a.prompt, a.completion = c.Usage.Prompt, c.Usage.Completion
			if c.Usage.Details != nil {
				a.cached = c.Usage.Details.Cached
			}
		}
		if len(c.Choices) > 0 && finish == "" {
			if f := c.Choices[0].Finish; f != nil {
				finish = *f
			}
			a.last = a.kept[i].at
			break
		}
	}
	switch {
	case finish == "":
		return errFinish
	case finish != "length" && finish != "stop":
		return fmt.Errorf("answer ended with finish reason %q", finish)
	case !usage:
		return errUsage
	}
	return nil
}

// statusError is a refusal in the server's words.
func statusError(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	var c chunk
	if json.Unmarshal(body, &c) == nil && c.Error != nil {
		return fmt.Errorf("status %d: %s", resp.StatusCode, c.Error.Message)
	}
	return fmt.Errorf("status %d", resp.StatusCode)
}
