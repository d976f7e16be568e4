package sim

import "fmt"

// EOS is the id of the end token. The model produces it when an answer ends by
// itself; it is never part of the text.
const EOS = 2

// A Model produces output tokens. The next token is a function of Seed and of
// all ids before it, whoever produced them: a request that is continued
// elsewhere with its prompt and its tokens so far goes on as if nothing had
// happened.
type Model struct {
	// Seed selects the model. An adapter is another model.
	Seed uint64
	// Vocab is the number of different output tokens, whose ids begin at 3.
	// 0 means 1000; at most 1 << 20.
	Vocab int
	// StopEvery is the mean number of tokens after which an answer ends by
	// itself with EOS. 0 means never.
	StopEvery int
}

const firstWord = 3 // ids below are special

func (m Model) withDefaults() Model {
	if m.Vocab == 0 {
		m.Vocab = 1000
	}
	return m
}

func (m *Model) validate() []error {
	var errs []error
	if m.Vocab < 1 || m.Vocab > 1<<20 {
		errs = append(errs, fmt.Errorf("sim: Model.Vocab is %d, want 1 to %d", m.Vocab, 1<<20))
	}
	if m.StopEvery < 0 {
		errs = append(errs, fmt.Errorf("sim: Model.StopEvery is %d, want at least 0", m.StopEvery))
	}
	return errs
}

// start is the state before the first token.
func (m *Model) start(adapter string, seed uint64) uint64 {
	h := mix64(m.Seed^0x5851f42d4c957f2d) ^ hashString(0, adapter)
	if seed != 0 {
		h ^= mix64(seed)
	}
	return h
}

// absorb is the state after one more token.
func (m *Model) absorb(state uint64, id uint32) uint64 {
	state = (state ^ uint64(id)) * 0x9e3779b97f4a7c15
	return state ^ state>>29
}

// next is the token that follows a state.
func (m *Model) next(state uint64, ignoreEOS bool) uint32 {
	h := mix64(state)
	if m.StopEvery > 0 && !ignoreEOS && h>>32%uint64(m.StopEvery) == 0 {
		return EOS
	}
	return firstWord + uint32(uint64(uint32(h))*uint64(m.Vocab)>>32)
}

// mix64 is the finaliser of SplitMix64: a bijection without fixed structure.
func mix64(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// hashString continues h with a string and its length.
func hashString(h uint64, s string) uint64 {
	if s == "" {
		return h
	}
	h ^= uint64(len(s))
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix64(h)
}
