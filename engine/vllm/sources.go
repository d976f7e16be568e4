package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-go/stator/engine"
)

// ErrNoEventSources says that the engine has no endpoint that names its event
// publishers: its release is older. Configure the addresses; see [RankEndpoint].
var ErrNoEventSources = errors.New("vllm: the engine does not name its event sources")

// An EventSource is where one data-parallel rank publishes its KV events.
type EventSource struct {
	Rank int
	// Endpoint and Replay can be dialled. Replay is empty when the engine has no
	// replay socket.
	Endpoint, Replay string
	Topic            string
	// BufferSteps is the number of messages that a replay reaches back.
	BufferSteps int
}

// NewSubscriber returns a Subscriber to this source. Replay and Topic come from
// the source, all else from opts.
func (s EventSource) NewSubscriber(opts *SubscriberOptions) (*Subscriber, error) {
	var o SubscriberOptions
	if opts != nil {
		o = *opts
	}
	o.Replay, o.Topic = s.Replay, s.Topic
	return NewSubscriber(s.Endpoint, &o)
}

// EventSources asks the engine where it publishes, one entry a rank in the order
// of ranks. Events that are switched off are an empty list.
func (w *Worker) EventSources(ctx context.Context) ([]EventSource, error) {
	body, err := w.client.Call(ctx, http.MethodGet, "/kv_event_sources", nil)
	if err != nil {
		if status(err) == http.StatusNotFound {
			return nil, ErrNoEventSources
		}
		return nil, err
	}
	return ParseEventSources(body, w.host)
}

// ParseEventSources reads the answer of vLLM's /kv_event_sources. host is the
// host by which the engine is reached: it stands for the wildcards in the
// engine's own words.
func ParseEventSources(body []byte, host string) ([]EventSource, error) {
	var raw map[string]struct {
		Enabled     bool    `json:"enable_kv_cache_events"`
		Publisher   *string `json:"publisher"`
		Endpoint    string  `json:"endpoint"`
		Replay      *string `json:"replay_endpoint"`
		Topic       string  `json:"topic"`
		BufferSteps int     `json:"buffer_steps"`
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, fmt.Errorf("%w: event sources: %w", engine.ErrProtocol, err)
	}
	var out []EventSource
	for key, r := range raw {
		rank, err := strconv.Atoi(key)
		if err != nil || rank < 0 || rank >= maxRanks || strconv.Itoa(rank) != key {
			return nil, fmt.Errorf("%w: event sources: rank %q", engine.ErrProtocol, key)
		}
		if !r.Enabled || r.Publisher != nil && *r.Publisher != "zmq" {
			continue
		}
		// The ports are shifted by the rank already.
		s := EventSource{Rank: rank, Topic: r.Topic, BufferSteps: r.BufferSteps}
		if s.Endpoint, err = RankEndpoint(r.Endpoint, host, 0); err != nil {
			return nil, err
		}
		if r.Replay != nil && *r.Replay != "" {
			if s.Replay, err = RankEndpoint(*r.Replay, host, 0); err != nil {
				return nil, err
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b EventSource) int { return a.Rank - b.Rank })
	return out, nil
}

// RankEndpoint turns an endpoint as it stands in an engine's configuration, such
// as "tcp://*:5557", into the one to dial for a data-parallel rank: a wildcard
// becomes host, and the port moves up by the rank, as vLLM and SGLang do it.
func RankEndpoint(endpoint, host string, rank int) (string, error) {
	if strings.HasPrefix(endpoint, "ipc://") && rank == 0 {
		return endpoint, nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 {
		return "", fmt.Errorf("vllm: event endpoint %q: want tcp://host:port", endpoint)
	}
	port, err := strconv.Atoi(rest[i+1:])
	if err != nil || port < 1 || rank < 0 || rank > 65535-port {
		return "", fmt.Errorf("vllm: event endpoint %q, rank %d: no such port", endpoint, rank)
	}
	name := strings.TrimSuffix(strings.TrimPrefix(rest[:i], "["), "]")
	switch name {
	case "*", "", "0.0.0.0", "::":
		name = host
	}
	if name == "" {
		return "", fmt.Errorf("vllm: event endpoint %q: the engine's host is not known", endpoint)
	}
	return "tcp://" + net.JoinHostPort(name, strconv.Itoa(port+rank)), nil
}

// status is the HTTP status that an engine refused with, 0 for other errors.
func status(err error) int {
	var e *engine.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}
