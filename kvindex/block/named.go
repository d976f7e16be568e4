package block

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Named is a chain of hashes on its way out of the process or into it. It says
// how the hashes were made, so that a reader who makes them otherwise gets an
// error and not a chain that never matches.
//
// As text it is the scheme, "/", the tokens per block, ":" and the hashes as 16
// hexadecimal digits each, joined by ",". As JSON it is an object with members
// scheme, block_tokens and hashes; hashes are strings, since JSON numbers lose
// bits above 2^53.
type Named struct {
	Scheme      Scheme
	BlockTokens int
	Hashes      []Hash
}

// Name labels hashes that this Hasher made. The slice is not copied.
func (h *Hasher) Name(hashes []Hash) Named {
	return Named{Scheme: h.scheme, BlockTokens: h.tokens, Hashes: hashes}
}

// Accept returns the hashes when this Hasher would have made them the same way.
// Otherwise the error wraps [ErrScheme] or [ErrBlockTokens].
func (h *Hasher) Accept(n Named) ([]Hash, error) {
	var errs []error
	if n.Scheme != h.scheme {
		errs = append(errs, fmt.Errorf("%w: have %q, want %q", ErrScheme, string(n.Scheme), string(h.scheme)))
	}
	if n.BlockTokens != h.tokens {
		errs = append(errs, fmt.Errorf("%w: have %d, want %d", ErrBlockTokens, n.BlockTokens, h.tokens))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return n.Hashes, nil
}

// validate reports what makes a Named unfit to be written or read.
func (n *Named) validate() error {
	var errs []error
	if !n.Scheme.Known() {
		errs = append(errs, fmt.Errorf("%w: unknown scheme %q", ErrScheme, string(n.Scheme)))
	}
	if n.BlockTokens < 1 || n.BlockTokens > MaxBlockTokens {
		errs = append(errs, fmt.Errorf("%w: %d, from 1 to %d", ErrBlockTokens, n.BlockTokens, MaxBlockTokens))
	}
	return errors.Join(errs...)
}

// MarshalText implements [encoding.TextMarshaler].
func (n Named) MarshalText() ([]byte, error) {
	if err := n.validate(); err != nil {
		return nil, err
	}
	b := append([]byte(n.Scheme), '/')
	b = strconv.AppendInt(b, int64(n.BlockTokens), 10)
	for i, h := range n.Hashes {
		sep := byte(',')
		if i == 0 {
			sep = ':'
		}
		b = append(append(b, sep), h.String()...)
	}
	if len(n.Hashes) == 0 {
		b = append(b, ':')
	}
	return b, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. It takes only what
// MarshalText writes. The error wraps [ErrScheme], [ErrBlockTokens] or
// [ErrMalformed], and n is then unchanged.
func (n *Named) UnmarshalText(text []byte) error {
	head, tail, ok := strings.Cut(string(text), ":")
	scheme, size, ok2 := strings.Cut(head, "/")
	if !ok || !ok2 {
		return fmt.Errorf("%w: not of the form scheme/tokens:hashes", ErrMalformed)
	}
	tokens, err := strconv.Atoi(size)
	if err != nil || strconv.Itoa(tokens) != size {
		return fmt.Errorf("%w: tokens per block are not a number", ErrMalformed)
	}
	out := Named{Scheme: Scheme(scheme), BlockTokens: tokens}
	if tail != "" {
		out.Hashes = make([]Hash, 0, len(tail)/17+1)
		for part := range strings.SplitSeq(tail, ",") {
			h, err := parseHash(part)
			if err != nil {
				return err
			}
			out.Hashes = append(out.Hashes, h)
		}
	}
	if err := out.validate(); err != nil {
		return err
	}
	*n = out
	return nil
}

// namedJSON is the JSON form.
type namedJSON struct {
	Scheme      Scheme   `json:"scheme"`
	BlockTokens int      `json:"block_tokens"`
	Hashes      []string `json:"hashes"`
}

// MarshalJSON implements [json.Marshaler].
func (n Named) MarshalJSON() ([]byte, error) {
	if err := n.validate(); err != nil {
		return nil, err
	}
	v := namedJSON{n.Scheme, n.BlockTokens, make([]string, len(n.Hashes))}
	for i, h := range n.Hashes {
		v.Hashes[i] = h.String()
	}
	return json.Marshal(v)
}

// UnmarshalJSON implements [json.Unmarshaler]. The error wraps [ErrScheme],
// [ErrBlockTokens] or [ErrMalformed], and n is then unchanged. Members that are
// not known are ignored.
func (n *Named) UnmarshalJSON(data []byte) error {
	var v namedJSON
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	out := Named{Scheme: v.Scheme, BlockTokens: v.BlockTokens}
	if len(v.Hashes) > 0 {
		out.Hashes = make([]Hash, len(v.Hashes))
	}
	for i, s := range v.Hashes {
		h, err := parseHash(s)
		if err != nil {
			return err
		}
		out.Hashes[i] = h
	}
	if err := out.validate(); err != nil {
		return err
	}
	*n = out
	return nil
}

// parseHash reads 16 lower-case hexadecimal digits.
func parseHash(s string) (Hash, error) {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || Hash(v).String() != s {
		return 0, fmt.Errorf("%w: hash %q is not 16 hexadecimal digits", ErrMalformed, s[:min(len(s), 24)])
	}
	return Hash(v), nil
}
