package sim_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/stator-go/stator/engine/sim"
)

// Two requests share a prefix of three blocks; the second one finds it cached.
func ExampleCore() {
	core, err := sim.NewCore(sim.H100TP4("dram"))
	if err != nil {
		fmt.Println(err)
		return
	}
	reqs := []*sim.Req{
		{ID: 1, Prompt: 2000, Chain: []uint64{11, 12, 13}, Out: 20},
		{ID: 2, Prompt: 2600, Chain: []uint64{11, 12, 13, 14, 15}, Out: 5},
	}
	now := 0.0
	for _, r := range reqs {
		if err := core.Add(r); err != nil {
			fmt.Println(err)
			return
		}
		for {
			next, out := core.Step(now)
			for _, tok := range out.Tokens {
				fmt.Printf("%.3f s: request %d, token %d, %d cached\n", out.At, tok.Req.ID, tok.Count, tok.Cached)
			}
			if math.IsInf(next, 1) {
				break
			}
			now = next
		}
	}
	st := core.Stats()
	fmt.Println(st.Hits, "of", st.Queries, "prompt tokens were cached")
	// Output:
	// 0.143 s: request 1, token 1, 0 cached
	// 0.468 s: request 1, token 20, 0 cached
	// 0.567 s: request 2, token 1, 1536 cached
	// 0.635 s: request 2, token 5, 1536 cached
	// 1536 of 4600 prompt tokens were cached
}

// A simulated engine with a hundred times a real one's speed, asked as any
// OpenAI-compatible server is.
func ExampleServer() {
	engine, err := sim.NewServer(&sim.Options{Model: "demo", Speed: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 2 {
		resp, err := client.Post(engine.URL()+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"demo","prompt":"`+strings.Repeat("once upon a time ", 20)+`","max_tokens":4}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		var answer struct {
			Choices []struct{ Text string }
			Usage   struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&answer)
		_ = resp.Body.Close()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%q, %d of %d prompt tokens cached\n", answer.Choices[0].Text, answer.Usage.Details.Cached, answer.Usage.Prompt)
	}
	// Output:
	// " t645 t392 t523 t329", 0 of 80 prompt tokens cached
	// " t645 t392 t523 t329", 64 of 80 prompt tokens cached
}
