// Command realcheck drives a gateway that stands before two real vLLM engines
// and compares what comes out with the engines' own answers.
//
// It runs four parts and exits non-zero when one fails:
//
//   - reference: every request alone on a cold engine, asked directly;
//   - mixed: the same requests through the gateway, several at a time; text,
//     token ids, finish reasons and token counts must be equal;
//   - alone: fresh requests through the gateway one after the other; the index's
//     predicted overlap must equal the engine's reported cached tokens;
//   - kill: one engine is killed under load; no request that had not started to
//     stream may fail, and the dead engine's blocks must leave the index.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	gateway := flag.String("gateway", "http://127.0.0.1:8080", "base URL of the gateway")
	engines := flag.String("engines", "http://127.0.0.1:8001,http://127.0.0.1:8002", "base URLs of the engines, comma separated; the second one is killed")
	pid := flag.Int("kill", 0, "process group of the second engine; 0 leaves the kill part out")
	n := flag.Int("n", 300, "requests of the mixed part")
	seed := flag.Uint64("seed", 1, "seed of the requests")
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
	defer cancel()
	c := &check{gateway: *gateway, engines: strings.Split(*engines, ","), kill: *pid, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: width, IdleConnTimeout: 3 * time.Second}}}
	if err := c.run(ctx, *n, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "realcheck:", err)
		os.Exit(1)
	}
	fmt.Println("realcheck: all parts passed")
}
