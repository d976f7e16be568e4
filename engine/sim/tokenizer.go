package sim

import (
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// A Tokenizer is the simulator's: one token a word, words being separated by
// white space. The word "t" followed by a decimal number without leading zeros,
// below [MaxTokenID], is the token of that number. Any other word is hashed to
// an id of at least [firstHashed], the same on every simulator, and remembered
// so that the id can be written as that word again; an id whose word is unknown
// is written as t and its number, which is a word for the same id. So ids
// survive a trip through text on any simulator, and text on one that saw it.
//
// It is safe for concurrent use.
type Tokenizer struct {
	mu    sync.RWMutex
	words map[uint32]string // of hashed ids
}

// Bounds of token ids: given ids are below MaxTokenID, ids of words from
// firstHashed on.
const (
	MaxTokenID  = 1 << 31
	firstHashed = 1 << 24
	// maxWords bounds the words that a tokenizer remembers, maxWordLen the bytes
	// of one; further words are tokens like others and come back as numbers.
	maxWords   = 1 << 16
	maxWordLen = 64
)

// NewTokenizer makes a tokenizer that knows no words yet.
func NewTokenizer() *Tokenizer { return &Tokenizer{words: map[uint32]string{}} }

// Encode appends the ids of a text to dst.
func (z *Tokenizer) Encode(dst []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		// ASCII by hand, everything else as Unicode says.
		start := i
		for i < len(text) && text[i] < utf8.RuneSelf && !asciiSpace(text[i]) {
			i++
		}
		if i < len(text) && text[i] >= utf8.RuneSelf {
			n := strings.IndexFunc(text[i:], unicode.IsSpace)
			if n < 0 {
				n = len(text) - i
			}
			i += n
		}
		if i > start {
			dst = append(dst, z.id(text[start:i]))
		}
		if i < len(text) {
			_, n := utf8.DecodeRuneInString(text[i:])
			i += n
		}
	}
	return dst
}

func asciiSpace(c byte) bool { return c == ' ' || c-'\t' <= '\r'-'\t' }

// id is the token of a word.
func (z *Tokenizer) id(w string) uint32 {
	if n, ok := numbered(w); ok {
		return n
	}
	id := firstHashed + uint32(hashString(3, w)%(MaxTokenID-firstHashed))
	if len(w) > maxWordLen {
		return id
	}
	z.mu.RLock()
	_, known := z.words[id]
	full := len(z.words) >= maxWords
	z.mu.RUnlock()
	if !known && !full {
		z.mu.Lock()
		z.words[id] = strings.Clone(w)
		z.mu.Unlock()
	}
	return id
}

// numbered reads a word of the form t123.
func numbered(w string) (uint32, bool) {
	if len(w) < 2 || len(w) > 11 || w[0] != 't' || w[1] == '0' && len(w) > 2 {
		return 0, false
	}
	n := uint64(0)
	for i := 1; i < len(w); i++ {
		c := w[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return uint32(n), n < MaxTokenID
}

// AppendWord appends the word of a token.
func (z *Tokenizer) AppendWord(dst []byte, id uint32) []byte {
	if id >= firstHashed {
		z.mu.RLock()
		w, ok := z.words[id]
		z.mu.RUnlock()
		if ok {
			return append(dst, w...)
		}
	}
	return strconv.AppendUint(append(dst, 't'), uint64(id), 10)
}

// Decode is the text of ids: their words with spaces between them.
func (z *Tokenizer) Decode(ids []uint32) string {
	var b []byte
	for i, id := range ids {
		if i > 0 {
			b = append(b, ' ')
		}
		b = z.AppendWord(b, id)
	}
	return string(b)
}

// A Message is one turn of a chat.
type Message struct{ Role, Content string }

// chatEnd is the word that ends a turn.
const chatEnd = "<|end|>"

// EncodeChat appends the ids of a chat to dst: for every message the word
// <|role|>, the content's words and the word <|end|>; then, if an answer is to
// follow, <|assistant|>. The template only ever appends, so the prompt of a
// later turn begins with the prompt and the answer of the one before. Content
// that has these words in it is not told apart from the template's own.
func (z *Tokenizer) EncodeChat(dst []uint32, messages []Message, answer bool) []uint32 {
	for _, m := range messages {
		dst = z.Encode(dst, "<|"+m.Role+"|>")
		dst = z.Encode(dst, m.Content)
		dst = z.Encode(dst, chatEnd)
	}
	if answer {
		dst = z.Encode(dst, "<|assistant|>")
	}
	return dst
}
