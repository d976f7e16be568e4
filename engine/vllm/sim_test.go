package vllm_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/openai"
	"github.com/stator-go/stator/engine/sim"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
)

// TestPredictsWhatTheEngineFinds puts the whole adapter on a simulated engine's
// sockets: the index, fed by its events, must predict for each prompt the cached
// tokens that the engine then reports. The engine was warm before.
func TestPredictsWhatTheEngineFinds(t *testing.T) {
	for _, render := range []bool{true, false} {
		t.Run(fmt.Sprintf("render=%v", render), func(t *testing.T) {
			srv, err := sim.NewServer(&sim.Options{Speed: 1000, NoRender: !render, Adapters: []sim.Adapter{{Name: "lora-x"}}})
			require.NoError(t, err)
			defer srv.Close()
			w, err := vllm.NewWorker(srv.URL(), &vllm.WorkerOptions{MinReuse: 1})
			require.NoError(t, err)
			defer w.Close()
			p, err := w.Probe(t.Context())
			require.NoError(t, err)
			require.Equal(t, render, p.Render)
			require.Len(t, p.Events, 1)
			require.Equal(t, 16, p.BlockSize)
			if render {
				require.Empty(t, p.Missing)
			}

			g := &gatewaySide{t: t, w: w}
			long := strings.Repeat("the same words again and again ", 20)
			g.ask(engine.APICompletions, "sim", "", `"prompt":"`+long+`"`) // before anybody listens
			g.listen(p)
			g.ask(engine.APICompletions, "sim", "", `"prompt":"`+long+`"`)
			g.ask(engine.APICompletions, "sim", "", `"prompt":"`+long+` and something new"`)
			g.ask(engine.APICompletions, "sim", "salt-a", `"prompt":"`+long+`"`)
			g.ask(engine.APICompletions, "sim", "salt-a", `"prompt":"`+long+`"`)
			g.ask(engine.APICompletions, "lora-x", "", `"prompt":"`+long+`"`)
			g.ask(engine.APICompletions, "lora-x", "salt-a", `"prompt":"`+long+`"`)
			g.ask(engine.APICompletions, "lora-x", "salt-a", `"prompt":"`+long+`"`)
			for c := range 4 { // conversations that go on
				messages := ""
				for turn := range 4 {
					messages += fmt.Sprintf(`{"role":"user","content":"%s question %d of conversation %d"}`, strings.TrimSpace(long), turn, c)
					g.ask(engine.APIChat, "sim", "", `"messages":[`+messages+`]`)
					messages += `,{"role":"assistant","content":"an answer"},`
				}
			}
			require.Zero(t, w.TokenStats().Wrong)
			if g.hits == 0 {
				t.Error("nothing was ever cached")
			}
			g.stop()
		})
	}
}

// gatewaySide is what a gateway keeps of one engine.
type gatewaySide struct {
	t    *testing.T
	w    *vllm.Worker
	x    *kvindex.Index
	slot kvindex.Slot
	sub  *vllm.Subscriber
	done chan error
	end  context.CancelFunc
	hits int
}

func (g *gatewaySide) listen(p *vllm.Probe) {
	var err error
	g.x, err = kvindex.New(&kvindex.Options{BlockTokens: p.BlockSize})
	require.NoError(g.t, err)
	g.slot = g.x.Attach("w", 0)
	st, err := g.x.NewStream(g.slot, kvindex.StreamConfig{Scope: block.Scope{Model: "sim"}})
	require.NoError(g.t, err)
	replayed := make(chan error, 16)
	g.sub, err = p.Events[0].NewSubscriber(&vllm.SubscriberOptions{Hooks: vllm.SubscriberHooks{
		Replayed: func(_ uint64, _ int, err error) { replayed <- err }}})
	require.NoError(g.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	g.end, g.done = cancel, make(chan error, 1)
	go func() { g.done <- g.sub.Run(ctx, st) }()
	require.NoError(g.t, <-replayed)
}

func (g *gatewaySide) stop() {
	g.end()
	require.Equal(g.t, context.Canceled, <-g.done)
}

// predict is the number of prompt tokens that the index holds of a request.
func (g *gatewaySide) predict(req *engine.Request, adapter string) int {
	ids, err := g.w.Tokenize(g.t.Context(), nil, req)
	require.NoError(g.t, err)
	if g.x == nil {
		return 0
	}
	h, err := block.NewHasher(block.Scope{Model: "sim", Adapter: adapter, Tenant: req.Salt}, g.x.BlockTokens(), nil)
	require.NoError(g.t, err)
	var o kvindex.Overlap
	// At least one token is always computed, so the last block of a prompt of
	// whole blocks is never found.
	g.x.Lookup(&o, h.AppendHashes(nil, ids[:len(ids)-1], nil))
	return o.Depth(g.slot, kvindex.TierGPU) * g.x.BlockTokens()
}

func (g *gatewaySide) ask(api engine.API, model, salt, prompt string) {
	g.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"max_tokens":3,"stream":true,%s`, model, prompt)
	if salt != "" {
		body += fmt.Sprintf(`,"cache_salt":%q`, salt)
	}
	req := &engine.Request{}
	require.NoError(g.t, openai.ParseRequest(req, api, []byte(body+"}"), openai.Limits{}))
	req.Rank = -1
	adapter := ""
	if model != "sim" {
		adapter = model
	}
	want := g.predict(req, adapter)
	var usage *engine.Usage
	for c, err := range g.w.Generate(g.t.Context(), req) {
		require.NoError(g.t, err)
		if c.Usage != nil {
			u := *c.Usage
			usage = &u
		}
	}
	require.NotNil(g.t, usage)
	ids, err := g.w.Tokenize(g.t.Context(), nil, req)
	require.NoError(g.t, err)
	require.Len(g.t, ids, usage.Prompt, "token ids are the engine's")
	if g.x == nil {
		return
	}
	require.Equal(g.t, want, usage.Cached, body)
	g.hits += usage.Cached
	// The event trails the answer: wait until the prompt's whole blocks are in.
	whole := (len(ids) - 1) / g.x.BlockTokens() * g.x.BlockTokens()
	require.Eventually(g.t, func() bool { return g.predict(req, adapter) == whole }, 10*time.Second, time.Millisecond)
}
