// Gateway is an OpenAI-compatible gateway that sends each request to the engine
// that is expected to answer it first, given what every engine holds in its KV
// cache. Without flags it brings its own simulated engines and a trace to play:
//
//	go run ./examples/gateway
//
// What it is made of is the library: engine/openai serves clients, engine/vllm
// follows the engines, kvindex knows their caches, router picks. The wiring
// between discovery and those stands in internal/fleet, the live page in
// internal/page, the client that plays a trace in internal/load.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: 0 when all went well, 1 on a failure and 2 on a bad command
// line, each told in one line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := parse(args, stdout)
	switch {
	case errors.Is(err, errHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "gateway:", oneLine(err.Error()))
		return 2
	}
	g := &gateway{config: c, stdout: stdout, stderr: stderr}
	if err := g.run(ctx); err != nil {
		fmt.Fprintln(stderr, "gateway:", oneLine(err.Error()))
		return 1
	}
	return 0
}

// oneLine makes text of others fit for a line on somebody's terminal: joined
// errors stay on one line, and names and answers of engines cannot steer it.
func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
