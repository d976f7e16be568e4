package openai_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
)

func parse(t testing.TB, body string) *engine.Request {
	req := &engine.Request{}
	require.NoError(t, openai.ParseRequest(req, engine.APICompletions, []byte(body), openai.Limits{}), body)
	return req
}

// One such field ends a vLLM's process, so none may pass, however it is spelled.
func TestForbiddenFieldsAreTakenOut(t *testing.T) {
	const kill = `{"do_remote_prefill":true}`
	for _, tc := range []struct{ name, in, want string }{
		{"plain", `{"model":"m","prompt":"x","kv_transfer_params":` + kill + `}`, `{"model":"m","prompt":"x"}`},
		{"first", `{"kv_transfer_params":` + kill + `,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"twice", `{"kv_transfer_params":null,"model":"m","kv_transfer_params":` + kill + `,"prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"escaped", `{"\u006bv_transfer_par\u0061ms":` + kill + `,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"all escaped", `{"` + escapeAll("kv_transfer_params") + `":1,"` + escapeAll("disaggregated_params") + `":1,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"escaped upper-case hex", `{"\u006B\u0056_transfer_params":1,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"case", `{"KV_Transfer_Params":1,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"letters that fold", `{"Kv_tranſfer_params":1,"\u212av_transfer_params":1,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"spaces stay", "{ \"model\" : \"m\" ,\n\"ec_transfer_params\":{},\n \"prompt\":\"x\" }", "{ \"model\" : \"m\",\n \"prompt\":\"x\" }"},
		{"the others", `{"disaggregated_params":1,"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":2,"data_parallel_rank":0,"routed_dp_rank":1,"disagg_prefill_dp_rank":1,"remote_host":"h","remote_block_ids":[1],"do_remote_decode":true,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
		{"in xargs", `{"model":"m","prompt":"x","vllm_xargs":{"a":1,"kv_transfer_params":"x","b":[2]}}`, `{"model":"m","prompt":"x","vllm_xargs":{"a":1,"b":[2]}}`},
		{"in escaped xargs", `{"model":"m","prompt":"x","vllm_x\u0061rgs":{"kv_transfer_params":1}}`, `{"model":"m","prompt":"x","vllm_x\u0061rgs":{}}`},
		{"two levels", `{"model":"m","prompt":"x","sampling_params":{"extra_args":{"kv_transfer_params":1,"k":2}}}`, `{"model":"m","prompt":"x","sampling_params":{"extra_args":{"k":2}}}`},
		{"too many levels", `{"model":"m","prompt":"x","extra_body":{"extra_body":{"extra_body":{"extra_body":{"a":1}}}}}`, `{"model":"m","prompt":"x","extra_body":{"extra_body":{"extra_body":{}}}}`},
		{"long name", `{"remote_` + strings.Repeat("a", 5000) + `":1,"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := tc.in
			require.Equal(t, tc.want, string(parse(t, in).Body))
			require.Equal(t, tc.in, in)
		})
	}
	// What only looks like it stays, and the body is not even copied.
	for _, in := range []string{
		`{"model":"m","prompt":"kv_transfer_params"}`,
		`{"model":"m","prompt":"x","metadata":{"kv_transfer_params":1},"kv_cache":1,"remote":2,"data":3}`,
		`{"model":"m","prompt":"x","vllm_xargs":{"kv_cache_report_mode":"full"},"tools":[{"function":{"parameters":{"remote_host":{}}}}]}`,
	} {
		body := []byte(in)
		req := &engine.Request{}
		require.NoError(t, openai.ParseRequest(req, engine.APICompletions, body, openai.Limits{}))
		require.Same(t, &body[0], &req.Body[0])
		require.Equal(t, in, string(req.Body))
	}
	require.NotEmpty(t, openai.Stripped())
}

func escapeAll(s string) string {
	var b strings.Builder
	for _, r := range s {
		fmt.Fprintf(&b, "\\u%04x", r)
	}
	return b.String()
}

func TestPromptForms(t *testing.T) {
	for _, tc := range []struct {
		prompt  string
		prompts int
		tokens  []uint32
	}{
		{`"text"`, 1, nil},
		{`""`, 1, nil},
		{`["a","b","c"]`, 3, nil},
		{`[1,2,4294967295]`, 1, []uint32{1, 2, 4294967295}},
		{` [ 1 , 2 ] `, 1, []uint32{1, 2}},
		{`[[1,2],[3]]`, 2, nil},
		{`[[7,8]]`, 1, []uint32{7, 8}},
		{`["only"]`, 1, nil},
	} {
		req := parse(t, `{"model":"m","prompt":`+tc.prompt+`,"n":2}`)
		require.Equal(t, tc.prompts, req.Prompts, tc.prompt)
		require.Equal(t, tc.tokens, req.Tokens, tc.prompt)
		require.Equal(t, 2, req.N)
	}
	require.Equal(t, 2, parse(t, `{"model":"m","prompt_embeds":["a","b"]}`).Prompts)
	require.Equal(t, 1, parse(t, `{"model":"m","prompt_embeds":"a","prompt":null}`).Prompts)
	// The last of several members counts, as it does for an engine.
	req := parse(t, `{"model":"a","prompt":[1],"stream":false,"\u006dodel":"m","prompt":"x","stream":true,"stream_options":{"include_usage":true}}`)
	require.Equal(t, "m", req.Model)
	require.Nil(t, req.Tokens)
	require.True(t, req.Stream)
	require.True(t, req.IncludeUsage)
}

func TestHundredThousandIDs(t *testing.T) {
	ids := make([]uint32, 100_000)
	for i := range ids {
		ids[i] = uint32(i * 7)
	}
	enc, err := json.Marshal(ids)
	require.NoError(t, err)
	body := `{"model":"m","prompt":` + string(enc) + `}`
	req := parse(t, body)
	require.Equal(t, ids, req.Tokens)
	raw := []byte(body)
	allocs := testing.AllocsPerRun(5, func() {
		if openai.ParseRequest(req, engine.APICompletions, raw, openai.Limits{}) != nil {
			panic("refused")
		}
	})
	require.LessOrEqual(t, allocs, 1.0, "the model's name alone")
}

// FuzzBody: no body makes the parser panic, what passes is JSON without a
// forbidden name where an engine would look, and all other members are intact.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":"x"}`, `{"model":"m","prompt":[1,2,3],"n":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"m","messages":[{"role":"user","content":"x"}],"kv_transfer_params":{"do_remote_prefill":true}}`,
		`{"model":"m","prompt":[[1],[2]],"vllm_xargs":{"kv_transfer_params":1,"a":2},"\u006bv_transfer_params":0}`,
		`{"model":"m","prompt":"x","KV_TRANSFER_PARAMS":1,"K":2,"extra_args":{"extra_args":{"remote_x":1}}}`,
		`{"model":"m","prompt":`, `{"model":"m","prompt":"\ud800","remote_\u0000":[]}`, `[]`, ``, `{"model":"m","prompt":[1.5e3]}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		api := engine.APICompletions
		if chat {
			api = engine.APIChat
		}
		before := string(body)
		req := &engine.Request{}
		err := openai.ParseRequest(req, api, body, openai.Limits{MaxChoices: 100})
		if string(body) != before {
			t.Fatal("the client's bytes were changed")
		}
		if err != nil {
			var e *engine.Error
			if !errors.As(err, &e) || e.Status != 400 || e.Message == "" {
				t.Fatalf("error %v", err)
			}
			return
		}
		if req.N < 1 || req.Prompts < 1 || req.N*req.Prompts > 100 || req.Rank != -1 || req.Model == "" {
			t.Fatalf("%+v", req)
		}
		var in, out map[string]any
		if err := json.Unmarshal(body, &in); err != nil {
			if strings.Contains(err.Error(), "cannot unmarshal number") {
				return // 1e999 is JSON, but no float64
			}
			t.Fatalf("passed %q: %v", body, err)
		}
		if err := json.Unmarshal(req.Body, &out); err != nil {
			t.Fatalf("made %q of %q: %v", req.Body, body, err)
		}
		noHandoff(t, out, 0)
		for k, v := range in {
			if handoff(k) || container(k) {
				continue
			}
			a, _ := json.Marshal(v)
			b, _ := json.Marshal(out[k])
			if string(a) != string(b) {
				t.Fatalf("%q changed from %s to %s", k, a, b)
			}
		}
	})
}

// folded is how Go's JSON reader compares names.
func folded(s string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case 'ſ':
			return 's'
		case '\u212a':
			return 'k'
		}
		if r < 128 {
			return unicode.ToLower(r)
		}
		return r
	}, s)
}

func handoff(name string) bool {
	for _, s := range openai.Stripped() {
		p, wild := strings.CutSuffix(s, "*")
		if n := folded(name); n == p || wild && strings.HasPrefix(n, p) {
			return true
		}
	}
	return false
}

func container(name string) bool {
	switch folded(name) {
	case "vllm_xargs", "extra_args", "sampling_params", "custom_params", "extra_body", "nvext":
		return true
	}
	return false
}

func noHandoff(t *testing.T, v map[string]any, depth int) {
	for k, x := range v {
		if handoff(k) {
			t.Fatalf("%q is still there", k)
		}
		if m, ok := x.(map[string]any); ok && container(k) {
			if depth >= 3 {
				t.Fatal("containers too deep")
			}
			noHandoff(t, m, depth+1)
		}
	}
}

func BenchmarkParseRequest(b *testing.B) {
	var ids []byte
	for i := range 100_000 {
		ids = fmt.Appendf(ids, "%d,", i)
	}
	for _, tc := range []struct{ name, body string }{
		{"ids=100000", `{"model":"m","prompt":[` + string(ids[:len(ids)-1]) + `]}`},
		{"chat=8KiB", `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum dolor ", 455) + `"}],"stream":true,"temperature":0.7,"max_tokens":100}`},
	} {
		b.Run(tc.name, func(b *testing.B) {
			api := engine.APICompletions
			if strings.HasPrefix(tc.name, "chat") {
				api = engine.APIChat
			}
			body, req := []byte(tc.body), &engine.Request{}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := openai.ParseRequest(req, api, body, openai.Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
