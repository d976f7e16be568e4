package vllm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/stator-go/stator/internal/zmtp"
)

// ErrFrames says that a message does not have the frames that it must have.
var ErrFrames = errors.New("vllm: bad frames of an event message")

func (s *Subscriber) limits() zmtp.Limits {
	return zmtp.Limits{MaxMessage: s.opts.MaxMessage, MaxFrames: 8}
}

// live keeps the live channel up until ctx ends.
func (s *Subscriber) live(ctx context.Context, out chan<- *message, free chan *message) {
	wait := s.opts.MinBackoff
	for {
		got, err := s.session(ctx, out, free)
		s.connected.Store(false)
		if ctx.Err() != nil {
			return
		}
		s.failures.Add(1)
		text := err.Error()
		s.lastErr.Store(&text)
		if f := s.opts.Hooks.Disconnected; f != nil {
			f(err)
		}
		if got { // it worked for a while: begin the waits anew
			wait = s.opts.MinBackoff
		}
		t := time.NewTimer(time.Duration(float64(wait) * (1 - s.opts.Rand()/2)))
		wait = min(2*wait, s.opts.MaxBackoff)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// session is the life of one connection. got says that a message came.
func (s *Subscriber) session(ctx context.Context, out chan<- *message, free chan *message) (got bool, err error) {
	dctx, cancel := context.WithTimeout(ctx, s.opts.DialTimeout)
	sub, err := zmtp.DialSub(dctx, s.opts.Dial, s.endpoint, s.limits(), s.opts.Topic)
	cancel()
	if err != nil {
		return false, err
	}
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	s.connects.Add(1)
	s.connected.Store(true)
	if f := s.opts.Hooks.Connected; f != nil {
		f()
	}
	m := take(ctx, free)
	if m == nil {
		return false, ctx.Err()
	}
	m.kind = isConnected
	if !give(ctx, out, m) {
		return false, ctx.Err()
	}
	var frames [][]byte
	for {
		if frames, err = sub.ReadMessage(frames[:0]); err != nil {
			return got, err
		}
		got = true
		if len(frames) != 3 || len(frames[1]) != 8 {
			s.badMessage(fmt.Errorf("%w: %d frames", ErrFrames, len(frames)))
			continue
		}
		if m = take(ctx, free); m == nil {
			return got, ctx.Err()
		}
		m.kind = isLive
		if !s.decode(m, frames[1], frames[2]) {
			free <- m
			continue
		}
		if !give(ctx, out, m) {
			return got, ctx.Err()
		}
	}
}

// decode fills m and says whether it is for the Sink. A payload that cannot be
// read is left out, so that its number is missing in the sequence: what it said
// is lost, and the Sink must know.
func (s *Subscriber) decode(m *message, seq, payload []byte) bool {
	if err := m.dec.Decode(&m.batch, binary.BigEndian.Uint64(seq), payload); err != nil {
		s.badMessage(err)
		return false
	}
	if s.opts.OnlyRank && m.batch.Rank >= 0 && m.batch.Rank != s.opts.Rank {
		s.otherRank.Add(1)
		return false
	}
	return true
}

func (s *Subscriber) badMessage(err error) {
	s.bad.Add(1)
	if f := s.opts.Hooks.BadMessage; f != nil {
		f(err)
	}
}

func take(ctx context.Context, free <-chan *message) *message {
	select {
	case m := <-free:
		return m
	case <-ctx.Done():
		return nil
	}
}

func give(ctx context.Context, out chan<- *message, m *message) bool {
	select {
	case out <- m:
		return true
	case <-ctx.Done():
		return false
	}
}
