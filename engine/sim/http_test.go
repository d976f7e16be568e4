package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shape writes a JSON value with its keys in order and kinds in place of
// values, lists by their distinct elements.
func shape(t *testing.T, d *json.Decoder) string {
	tok, err := d.Token()
	require.NoError(t, err)
	switch v := tok.(type) {
	case json.Delim:
		var parts []string
		if v == '{' {
			for d.More() {
				key, err := d.Token()
				require.NoError(t, err)
				part := fmt.Sprintf("%s:%s", key, shape(t, d))
				if key == "top_logprobs" {
					part = tokenKey.ReplaceAllString(part, "{<token>:float64}")
				}
				parts = append(parts, part)
			}
		} else {
			for d.More() {
				if s := shape(t, d); !slices.Contains(parts, s) {
					parts = append(parts, s)
				}
			}
		}
		_, err = d.Token()
		require.NoError(t, err)
		if v == '{' {
			return "{" + strings.Join(parts, ",") + "}"
		}
		return "[" + strings.Join(parts, ",") + "]"
	case nil:
		return "null"
	default:
		return fmt.Sprintf("%T", v)
	}
}

// tokenKey matches an entry of completions' top_logprobs, whose keys are tokens.
var tokenKey = regexp.MustCompile(`\{[^{}]*\}(,\{[^{}]*\})*`)

func shapeOf(t *testing.T, b string) string {
	if b == "" {
		return ""
	}
	return shape(t, json.NewDecoder(strings.NewReader(b)))
}

// streamShape is the shapes of a stream's chunks, without repetitions, and the
// number of chunks.
func streamShape(t *testing.T, body string) (shapes []string, chunks int) {
	for _, ev := range strings.SplitAfter(body, "\n\n") {
		if ev == "" {
			continue
		}
		data, ok := strings.CutPrefix(ev, "data: ")
		require.True(t, ok, "%q", ev)
		data = strings.TrimSuffix(data, "\n\n")
		s := data
		if data != "[DONE]" {
			s = shapeOf(t, data)
			chunks++
		}
		if !slices.Contains(shapes, s) {
			shapes = append(shapes, s)
		}
	}
	return shapes, chunks
}

// exchange is one recorded request and answer, see testdata/README.md.
type exchange struct {
	Name, Method, Path string
	Headers            map[string]string
	Body               json.RawMessage
	BodyText           *string `json:"body_text"`
	Status             int
	ContentType        string `json:"content_type"`
	Answer             string
}

// do sends a recorded request to the simulator.
func (r *rig) do(t *testing.T, x *exchange) (status int, contentType, answer string) {
	body := []byte(x.Body)
	if x.BodyText != nil {
		body = []byte(*x.BodyText)
	}
	if string(body) == "null" {
		body = nil
	}
	req, err := http.NewRequestWithContext(t.Context(), x.Method, r.URL()+x.Path, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for k, v := range x.Headers {
		req.Header.Set(k, v)
	}
	resp, err := r.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(b)
}

// Every recorded request gets an answer with the recorded one's status, content
// type, fields and their order; of errors also type, parameter and code.
func TestAnswersAsRecorded(t *testing.T) {
	r := newRig(t, &Options{
		Config: recordedEngine(), Speed: 50, MaxModelLen: 1024, Model: "tiny",
		Adapters: []Adapter{{Name: "lora-x", Path: "lora-x"}},
	}, nil)
	defer r.close()
	lines(t, "http.jsonl", func(b []byte) {
		var x exchange
		require.NoError(t, json.Unmarshal(b, &x))
		t.Run(x.Name, func(t *testing.T) {
			if x.Name == "get_models" {
				// Recorded from an engine without adapters: the list has one entry.
				x.Answer = strings.Replace(x.Answer, `}]}]}`, `}]},`+adapterEntry+`]}`, 1)
			}
			// The stop string of the recording is in no word of the simulator.
			x.Body = bytes.Replace(x.Body, []byte(`"stop":["e"]`), []byte(`"stop":["1"]`), 1)
			status, ct, answer := r.do(t, &x)
			require.Equal(t, x.Status, status, answer)
			require.Equal(t, x.ContentType, ct)
			if strings.HasPrefix(ct, "text/event-stream") {
				want, n := streamShape(t, x.Answer)
				got, m := streamShape(t, answer)
				// A real tokenizer has tokens without text of their own, for which a
				// chat's chunk has no content or is left out; the simulator has none.
				want = slices.DeleteFunc(want, func(s string) bool { return strings.Contains(s, "delta:{}") })
				require.Equal(t, want, got)
				if !strings.HasPrefix(x.Name, "chat") && !strings.Contains(x.Name, "stop") {
					require.Equal(t, n, m, "number of chunks")
				}
				return
			}
			require.Equal(t, shapeOf(t, x.Answer), shapeOf(t, answer))
			if x.Status >= 400 {
				require.Equal(t, errorOf(t, x.Answer), errorOf(t, answer))
			}
			if x.Status == 200 && x.Method == "POST" && strings.Contains(x.Answer, `"usage"`) {
				var want, got completion
				require.NoError(t, json.Unmarshal([]byte(x.Answer), &want))
				require.NoError(t, json.Unmarshal([]byte(answer), &got))
				require.Equal(t, want.Object, got.Object)
				require.Len(t, got.Choices, len(want.Choices))
				if strings.HasPrefix(x.Path, "/v1/completions") {
					require.Equal(t, want.Usage.Prompt, got.Usage.Prompt, "a word is a token")
				}
				if !strings.Contains(x.Name, "stop") {
					require.Equal(t, want.Usage.Completion, got.Usage.Completion)
				}
			}
		})
	})
}

const adapterEntry = `{"id":"lora-x","object":"model","created":1,"owned_by":"vllm","root":"lora-x","parent":"tiny","max_model_len":null,"permission":[{"id":"m","object":"model_permission","created":1,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`

func errorOf(t *testing.T, body string) any {
	var e struct {
		Error *struct {
			Type  string
			Param any
			Code  int
		}
		Detail string
	}
	require.NoError(t, json.Unmarshal([]byte(body), &e))
	return e
}

// Faulty bodies are refused with the field named; nothing reaches the engine.
func TestRefusals(t *testing.T) {
	r := newRig(t, &Options{Config: recordedEngine(), Speed: 50, MaxModelLen: 1024, MaxBody: 1 << 16}, nil)
	defer r.close()
	for _, c := range []struct {
		path, body string
		status     int
		param      string
	}{
		{"/v1/completions", `[]`, 400, "body.0"},
		{"/v1/completions", `{"prompt":"a",}`, 400, "body.14"},
		{"/v1/completions", `{}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":null}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":7}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":[]}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":["a",""]}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":["a",[1]]}`, 400, "body.prompt"},
		{"/v1/completions", `{"prompt":[[1],"a"]}`, 400, "body.prompt"},
		{"/v1/completions", `{"prompt":[1,-1]}`, 400, "body.prompt"},
		{"/v1/completions", `{"prompt":[1,1.5]}`, 400, "body.prompt"},
		{"/v1/completions", `{"prompt":[2147483648]}`, 400, ""},
		{"/v1/completions", `{"prompt":"a","n":5000}`, 400, ""},
		{"/v1/completions", `{"prompt":["a","a","a","a","a"],"n":1000}`, 400, "prompt"},
		{"/v1/completions", `{"prompt":"a","n":"2"}`, 400, "body.n"},
		{"/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "max_tokens"},
		{"/v1/completions", `{"prompt":"a","max_tokens":1e3}`, 400, "body.max_tokens"},
		{"/v1/completions", `{"prompt":"a","stream":1}`, 400, "body.stream"},
		{"/v1/completions", `{"prompt":"a","stream":true,"stream_options":7}`, 400, "body.stream_options"},
		{"/v1/completions", `{"prompt":"a","stream":true,"stream_interval":0}`, 400, "stream_interval"},
		{"/v1/completions", `{"prompt":"a","stop":[""]}`, 400, "stop"},
		{"/v1/completions", `{"prompt":"a","stop":[1]}`, 400, "body.stop"},
		{"/v1/completions", `{"prompt":"a","stop":{}}`, 400, "body.stop"},
		{"/v1/completions", `{"prompt":"a","stop_token_ids":["x"]}`, 400, "body.stop_token_ids"},
		{"/v1/completions", `{"prompt":"a","temperature":"hot"}`, 400, "body.temperature"},
		{"/v1/completions", `{"prompt":"a","cache_salt":1}`, 400, "body.cache_salt"},
		{"/v1/completions", `{"prompt":"a","vllm_xargs":[]}`, 400, "body.vllm_xargs"},
		{"/v1/completions", `{"prompt":"a","vllm_xargs":{"sim_output_tokens":0}}`, 400, "body.vllm_xargs.sim_output_tokens"},
		{"/v1/completions", `{"prompt":"a","priority":0.5}`, 400, "body.priority"},
		{"/v1/completions", `{"prompt":"a","model":7}`, 400, "body.model"},
		{"/v1/completions", `{"prompt":"` + strings.Repeat("a", 1<<16) + `"}`, 413, ""},
		{"/v1/chat/completions", `{"messages":7}`, 400, "body.messages"},
		{"/v1/chat/completions", `{"messages":[{"content":"a"}]}`, 400, "body.messages"},
		{"/tokenize", `{"prompt":`, 400, "body.10"},
		{"/tokenize", ``, 400, "body"},
		{"/detokenize", `{}`, 400, "body.tokens"},
		{"/detokenize", `{"tokens":["a"]}`, 400, "body.tokens"},
		{"/inference/v1/abort_requests", `{"request_ids":`, 400, "body.15"},
	} {
		code, answer := r.post(t, c.path, nil, []byte(c.body))
		require.Equal(t, c.status, code, "%s: %s", c.body[:min(99, len(c.body))], answer)
		var e struct {
			Error struct {
				Message, Type string
				Param         *string
				Code          int
			}
		}
		require.NoError(t, json.Unmarshal(answer, &e), "%s", answer)
		require.Equal(t, c.status, e.Error.Code)
		require.NotEmpty(t, e.Error.Message)
		if c.param == "" {
			require.Nil(t, e.Error.Param)
		} else {
			require.NotNil(t, e.Error.Param, "%s", answer)
			require.Equal(t, c.param, *e.Error.Param, "%s", answer)
		}
	}
	require.Zero(t, r.Stats().Steps)
}

// A body that breaks off is a fault of the request, whether its length was told
// or not; one over the limit is too large either way.
func TestBrokenBodies(t *testing.T) {
	r := newRig(t, &Options{Config: recordedEngine(), Speed: 50, MaxModelLen: 1024, MaxBody: 1 << 10}, nil)
	defer r.close()
	long := strings.Repeat(" ", 1<<10+1)
	for raw, status := range map[string]int{
		"Content-Length: 9\r\n\r\n{":                                     400,
		"Transfer-Encoding: chunked\r\n\r\nzz\r\n":                       400,
		"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n":                   400,
		"Content-Length: 1025\r\n\r\n" + long:                            413,
		"Transfer-Encoding: chunked\r\n\r\n401\r\n" + long + "\r\n0\r\n": 413,
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.URL(), "http://"))
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\n"+raw)
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, status, resp.StatusCode, "%.40q", raw)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, conn.Close())
	}
}
