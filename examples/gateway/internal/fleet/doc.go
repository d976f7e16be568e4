// Package fleet keeps a set of vLLM workers ready for routing: what discovery
// tells exists is probed, its KV events are followed into an index, its load is
// scraped, and the router's list holds exactly the workers that answer.
//
//	discovery.Source -> vllm.Worker -> vllm.Subscriber a rank -> kvindex.Stream -> index
//	                               \-> load from /metrics      -> router
//
// # Use
//
// [New] makes the index, the router and the pool over them; [Fleet.Run] drives
// all until its context ends; [Fleet.Engine] answers requests meanwhile.
//
// # Life of a worker
//
// A worker is probed until it answers. Then each of its data-parallel ranks gets
// a slot in the index and a subscriber, and the router may pick it. When it fails
// several checks in a row, changes its address or incarnation, or is gone from
// discovery, it leaves the router's list first and its slots are detached after,
// so no pick sees blocks of a worker that is not there. A worker that comes back
// gets new slots: what it held before counts for nothing until its events, which
// are replayed from their beginning, have told it again.
//
// # Promises
//
// Run leaves nothing running. Everything is bounded by the number of workers.
// Requests do not wait for anything here but the router's own mutex.
//
// # Limits
//
// /health of a vLLM that drains or is paused is 200, so such a worker is noticed
// by requests that fail on it, not here.
package fleet
