package vllm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/stator-go/stator/internal/zmtp"
	"github.com/stator-go/stator/kvindex"
)

// want takes note of a replay. It replaces one that waits or runs, unless that
// one has the same beginning and has brought nothing yet.
func (r *runner) want(req kvindex.ReplayRequest) {
	if r.running && !r.delivered && r.from == req.From {
		return
	}
	if r.running {
		r.stop()
		r.running = false
	}
	r.from = req.From
	wait := req.After
	if !r.lastStart.IsZero() {
		wait = max(wait, r.s.opts.ReplayCooldown-time.Since(r.lastStart))
	}
	r.timer.Reset(max(wait, 0))
}

// startReplay begins the replay that is wanted. The one before has been told to
// stop and is waited for by the new one, so that one runs at a time.
func (r *runner) startReplay() {
	r.gen++
	r.running, r.delivered = true, false
	r.lastStart = time.Now()
	r.s.replays.Add(1)
	ctx, stop := context.WithCancel(r.ctx)
	before, done := r.done, make(chan struct{})
	r.stop, r.done = stop, done
	gen, from := r.gen, r.from
	go func() {
		defer close(done)
		defer stop()
		if before != nil {
			<-before
		}
		r.s.replay(ctx, gen, from, r.in, r.replayFree)
	}()
}

// stopReplay ends a running replay and waits for it.
func (r *runner) stopReplay() {
	if r.done != nil {
		r.stop()
		<-r.done
	}
}

// replay fetches the messages from a number on and hands them over, with the
// end.
func (s *Subscriber) replay(ctx context.Context, gen, from uint64, out chan<- *message, free chan *message) {
	n, err := s.fetch(ctx, gen, from, out, free)
	if ctx.Err() != nil {
		return // replaced, or over
	}
	m := take(ctx, free)
	if m == nil {
		return
	}
	m.kind, m.gen, m.count, m.err = isReplayEnd, gen, n, err
	if !give(ctx, out, m) {
		free <- m
	}
}

// fetch asks the replay socket and hands over its answer, n messages.
func (s *Subscriber) fetch(ctx context.Context, gen, from uint64, out chan<- *message, free chan *message) (n int, err error) {
	if g := s.opts.Gate; g != nil {
		select {
		case g <- struct{}{}:
			defer func() { <-g }()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReplayTimeout)
	defer cancel()
	dctx, dcancel := context.WithTimeout(ctx, s.opts.DialTimeout)
	d, err := zmtp.DialDealer(dctx, s.opts.Dial, s.opts.Replay, s.limits())
	dcancel()
	if err != nil {
		return 0, err
	}
	defer d.Close()
	defer context.AfterFunc(ctx, func() { _ = d.Close() })()
	if err := d.Request(binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return 0, err
	}
	var frames [][]byte
	next := from
	for {
		if err := d.SetReadDeadline(time.Now().Add(s.opts.ReplayIdle)); err != nil {
			return n, err
		}
		if frames, err = d.Reply(frames[:0]); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return n, err
		}
		// [topic,] seq, payload; the topic came with vLLM pull request 45177
		if len(frames) == 3 {
			frames = frames[1:]
		}
		if len(frames) != 2 || len(frames[0]) != 8 {
			return n, fmt.Errorf("%w: reply to a replay of %d", ErrFrames, len(frames))
		}
		seq := binary.BigEndian.Uint64(frames[0])
		if seq == math.MaxUint64 {
			return n, nil
		}
		if seq < next {
			return n, fmt.Errorf("%w: replay goes back from %d to %d", ErrFrames, next, seq)
		}
		next = seq + 1
		m := take(ctx, free)
		if m == nil {
			return n, ctx.Err()
		}
		m.kind, m.gen = isReplay, gen
		if !s.decode(m, frames[0], frames[1]) {
			free <- m
			continue
		}
		if !give(ctx, out, m) {
			free <- m
			return n, ctx.Err()
		}
		n++
	}
}
