package zmtp

import "context"

// A Sub is a subscriber's connection to one publisher. Its methods are those of
// its [Conn]: ReadMessage returns what the publisher sends.
type Sub struct{ *Conn }

// DialSub connects to a publisher and subscribes to the topics; none named
// means everything. A topic matches every message whose first frame begins
// with it. Messages published before the publisher has seen the subscription
// are not delivered.
func DialSub(ctx context.Context, dial DialFunc, endpoint string, lim Limits, topics ...string) (*Sub, error) {
	c, err := Dial(ctx, dial, endpoint, "SUB", lim)
	if err != nil {
		return nil, err
	}
	s := &Sub{c}
	if len(topics) == 0 {
		topics = []string{""}
	}
	for _, t := range topics {
		if err := s.Subscribe(t); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return s, nil
}

// Subscribe adds a topic.
func (s *Sub) Subscribe(topic string) error { return s.subscription(1, topic) }

// Unsubscribe takes a topic back.
func (s *Sub) Unsubscribe(topic string) error { return s.subscription(0, topic) }

func (s *Sub) subscription(first byte, topic string) error {
	return s.WriteMessage(append([]byte{first}, topic...))
}

// ParseSubscription reads a message that a publisher received: the topic, and
// whether it is added or taken back. Other messages are not ok and are to be
// ignored.
func ParseSubscription(frames [][]byte) (topic []byte, add, ok bool) {
	if len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] > 1 {
		return nil, false, false
	}
	return frames[0][1:], frames[0][0] == 1, true
}
