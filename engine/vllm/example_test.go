package vllm_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/engine/vllm"
	"github.com/stator-go/stator/kvindex"
)

// The payload is the third frame of a message from an engine's publisher.
func ExampleDecoder() {
	payload, _ := hex.DecodeString("93cb41d954fc400000009181a474797065b0416c6c426c6f636b73436c656172656400")
	d := vllm.NewDecoder()
	var b kvindex.Batch
	if err := d.Decode(&b, 7, payload); err != nil {
		fmt.Println(err)
	}
	fmt.Println(b.Seq, b.Rank, len(b.Events), b.Events[0].Kind == kvindex.EventCleared)
	// Output: 7 0 1 true
}

func ExampleParseLoad() {
	page := `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1001"} 1.0
`
	load, err := vllm.ParseLoad(nil, []byte(page), time.Now())
	if err != nil {
		fmt.Println(err)
	}
	l := load[0]
	fmt.Println(l.Running, l.Waiting, l.HasQueue, l.KVBlocks, l.BlockSize, l.HasKV)
	// Output: 2 5 true 1000 16 false
}

func ExampleRankEndpoint() {
	// As it stands in --kv-events-config, for the third data-parallel rank.
	fmt.Println(vllm.RankEndpoint("tcp://*:5557", "10.0.0.7", 2))
	// Output: tcp://10.0.0.7:5559 <nil>
}

func ExampleNewSubscriber() {
	s, err := vllm.NewSubscriber("tcp://10.0.0.7:5557", &vllm.SubscriberOptions{Replay: "tcp://10.0.0.7:5558"})
	if err != nil {
		fmt.Println(err)
	}
	// Run follows the engine until its context ends, and feeds the stream of the
	// engine's slot: s.Run(ctx, stream).
	fmt.Println(s.Stats().Connected)
	// Output: false
}

func ExampleWorker_Tokenize() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tokenize" { // rendering is not allowed on this engine
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, `{"count":3,"tokens":[101,7,102]}`)
	}))
	defer srv.Close()
	w, err := vllm.NewWorker(srv.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	req := &engine.Request{API: engine.APICompletions, Body: []byte(`{"model":"m","prompt":"hello"}`)}
	fmt.Println(w.Tokenize(context.Background(), nil, req))
	// Output: [101 7 102] <nil>
}
