package router_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-go/stator/kvindex"
	"github.com/stator-go/stator/kvindex/block"
	"github.com/stator-go/stator/router"
)

// prefixes is a small index of one's own: which slot number holds which blocks.
type prefixes map[uint32]map[block.Hash]bool

func (p prefixes) Lookup(dst *kvindex.Overlap, chain []block.Hash) {
	dst.Reset()
	for num, blocks := range p {
		depth := uint32(0)
		for _, h := range chain {
			if !blocks[h] {
				break
			}
			depth++
		}
		if depth > 0 {
			dst.AddPair(kvindex.TierGPU, num, depth)
		}
	}
}

func workers() []router.Worker {
	return []router.Worker{
		{Slot: kvindex.MakeSlot(1, 1), Name: "a"},
		{Slot: kvindex.MakeSlot(2, 1), Name: "b"},
	}
}

func ExampleNew() {
	_, err := router.New(nil, &router.Options{BlockTokens: -16, TPOTTarget: -time.Second})
	fmt.Println(err)
	// Output:
	// router: Options.BlockTokens is -16, want 1 to 65536, or 0 for the index's
	// router: Options.TPOTTarget is -1s, want > 0, or 0 for 50 ms
}

func ExampleRouter_Pick() {
	// Worker 2 has the first two blocks of the prompt.
	index := prefixes{2: {11: true, 12: true}}
	r, err := router.New(index, nil)
	if err != nil {
		panic(err)
	}
	if err := r.SetWorkers(workers()); err != nil {
		panic(err)
	}
	lease, err := r.Pick(&router.Request{Chain: []block.Hash{11, 12, 13}, Tokens: 1000})
	if err != nil {
		panic(err)
	}
	defer lease.Done(nil)

	d := lease.Decision()
	fmt.Println("send to slot", lease.Slot())
	fmt.Printf("reuse %d blocks, %d of %d tokens\n", d.Reuse(), d.Hit, d.Tokens)
	fmt.Printf("first token expected in %.0f ms, on the other worker in %.0f ms\n",
		d.Cost.TTFT()*1000, d.Alternates[0].Cost.TTFT()*1000)
	// Output:
	// send to slot 2.1
	// reuse 2 blocks, 32 of 1000 tokens
	// first token expected in 69 ms, on the other worker in 71 ms
}

func ExampleLease_Retry() {
	r, err := router.New(nil, &router.Options{Policy: &router.RoundRobin{}})
	if err != nil {
		panic(err)
	}
	if err := r.SetWorkers(workers()); err != nil {
		panic(err)
	}
	req := &router.Request{Tokens: 100}
	lease, err := r.Pick(req)
	for err == nil {
		fmt.Println("try", lease.Slot())
		req.Not = append(req.Not, lease.Slot())
		lease, err = lease.Retry(req, errors.New("connection refused"))
	}
	fmt.Println(errors.Is(err, router.ErrNotAllowed))
	// Output:
	// try 1.1
	// try 2.1
	// true
}

// shortest is a policy of one's own: the worker with the fewest prompt tokens.
type shortest struct{}

func (shortest) Score(dst []float64, v *router.View, _ *router.Request) {
	for i := range dst {
		dst[i] = float64(v.PromptTokens(i))
	}
}

func ExamplePolicy() {
	r, err := router.New(nil, &router.Options{Policy: shortest{}})
	if err != nil {
		panic(err)
	}
	if err := r.SetWorkers(workers()); err != nil {
		panic(err)
	}
	long, _ := r.Pick(&router.Request{Tokens: 9000, Only: []kvindex.Slot{kvindex.MakeSlot(1, 1)}})
	lease, _ := r.Pick(&router.Request{Tokens: 10})
	fmt.Println(long.Slot(), lease.Slot())
	// Output: 1.1 2.1
}

func ExamplePolicyByName() {
	_, err := router.PolicyByName("fastest")
	fmt.Println(err)
	p, _ := router.PolicyByName("dynamo:w=4")
	fmt.Printf("%+v\n", p)
	// Output:
	// router: bad policy name: "fastest" is none of conductor, dynamo, expected, leastloaded, llmd, lmetric, poweroftwo, random, roundrobin
	// {Weight:4 InFlight:false LMetric:false}
}
