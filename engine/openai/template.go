package openai

import (
	"github.com/stator-go/stator/engine"
	"github.com/stator-go/stator/internal/jsonedit"
)

// A template is a stream's last ordinary event, cut at the values that change
// from one event to the next. An event that differs from it in those values
// only needs no parser: every other byte has been read before and means what it
// meant then. That makes reading such an event a few comparisons of memory.
//
// An event is ordinary when it has one choice without a finish reason, no usage
// and no error, and it must have been read in full to become the template. A
// value that changes in some other way than the ones named here (log
// probabilities, the arguments of a tool call, usage in every event) makes the
// bytes around it differ, and the event is read in full again.
type template struct {
	data  []byte // a copy of the event, empty = none
	holes [maxHoles]hole
	n     int
	said  bool // something outside the holes must have cost a token
}

// A hole is a value of a template that may differ: data[start:end].
type hole struct {
	kind       holeKind
	start, end int
}

type holeKind uint8

const (
	holeIndex holeKind = iota // the choice's index
	holeText                  // a string that becomes Chunk.Text
	holeSaid                  // a string that does not, such as reasoning
	holeIDs                   // token_ids, not empty
)

// Bounds of a template. An event beyond them is read in full each time.
const (
	maxHoles    = 4
	maxTemplate = 4 << 10
)

// mark notes that the value of the event's data from start to end is a hole.
func (t *template) mark(kind holeKind, start, end int) {
	if t.n < maxHoles {
		t.holes[t.n] = hole{kind, start, end}
		t.n++
	} else {
		t.n = maxHoles + 1
	}
}

// learn makes data, which p has just read in full into c, the template for the
// next events, if it is ordinary.
func (p *parser) learn(data []byte, c *engine.Chunk) {
	t := &p.like
	t.data = t.data[:0]
	if len(data) <= maxTemplate && t.n <= maxHoles && p.read == 1 && p.choices.Last() && c.Finish == "" && !p.hasUse && p.failure == nil {
		t.data = append(t.data, data...)
	}
}

// same reads an event that follows the template into c, in the manner of
// [parser.next]. It returns false when the event has to be read in full; c is
// then in no particular state.
func (p *parser) same(data []byte, c *engine.Chunk) bool {
	t := &p.like
	if len(t.data) == 0 {
		return false
	}
	c.Choice, c.Text, c.TokenIDs, c.Tokens, c.Finish = 0, "", nil, 0, ""
	said := t.said
	i, from := 0, 0 // in data, and in the template
	for k := range t.n {
		h := &t.holes[k]
		fixed := t.data[from:h.start]
		if len(data)-i < len(fixed) || string(data[i:i+len(fixed)]) != string(fixed) {
			return false
		}
		i += len(fixed)
		from = h.end
		start := i
		switch h.kind {
		case holeIndex:
			if c.Choice, i = shortIndex(data, i); i < 0 {
				return false
			}
		case holeText, holeSaid:
			if i = simpleString(data, i); i < 0 {
				return false
			}
			if h.kind == holeText {
				said = p.says(c, data[start:i]) || said
			} else {
				said = i-start > 2 || said
			}
		case holeIDs:
			if p.ids, i = shortIDs(p.ids[:0], data, i); i < 0 {
				return false
			}
			c.TokenIDs = p.ids
		}
	}
	if string(data[i:]) != string(t.data[from:]) {
		return false
	}
	switch {
	case c.TokenIDs != nil:
		c.Tokens = len(c.TokenIDs)
	case said:
		c.Tokens = 1
	}
	return true
}

// simpleString returns the index after the JSON string that begins at b[i], and
// -1 when there is none or it has an escape of more than two characters.
func simpleString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c == '\\':
			if i++; i >= len(b) {
				return -1
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			default:
				return -1
			}
		}
	}
	return -1
}

// shortIndex reads the number of a choice at b[i] and returns the index after
// it, or -1 when it is none or is out of range.
func shortIndex(b []byte, i int) (choice, end int) {
	start := i
	for i < len(b) && b[i]-'0' <= 9 && i-start < 6 {
		choice = choice*10 + int(b[i]-'0')
		i++
	}
	if i == start || choice >= maxChoices || b[start] == '0' && i > start+1 {
		return 0, -1
	}
	return choice, i
}

// shortIDs appends the token ids of the array that begins at b[i] to dst and
// returns the index after it, or -1 for one that is empty or in any way unusual.
func shortIDs(dst []uint32, b []byte, i int) ([]uint32, int) {
	if i >= len(b) || b[i] != '[' {
		return dst, -1
	}
	for i++; ; i++ {
		start, id := i, uint32(0)
		for i < len(b) && b[i]-'0' <= 9 && i-start < 9 { // nine digits fit
			id = id*10 + uint32(b[i]-'0')
			i++
		}
		if i == start || i >= len(b) || b[start] == '0' && i > start+1 {
			return dst, -1
		}
		dst = append(dst, id)
		switch b[i] {
		case ']':
			return dst, i + 1
		case ',':
		default:
			return dst, -1
		}
	}
}

// stringHole marks a string value, which stands at base of the event's data.
func (p *parser) stringHole(kind holeKind, f *jsonedit.Fields, base int) {
	if f.Value[0] == '"' {
		p.like.mark(kind, base+f.ValueStart, base+f.End)
	}
}
