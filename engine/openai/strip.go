package openai

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stator-go/stator/internal/jsonedit"
)

// Stripped lists the body fields that clients may not set: handoffs between
// prefill and decode workers in the words of vLLM, SGLang and TensorRT-LLM, and
// the choice of a data-parallel rank. A name that ends in an asterisk stands
// for all that begin so. Names are matched after decoding escapes and without
// regard to case, since some engines read them so.
func Stripped() []string { return slices.Clone(strippedNames) }

var strippedNames = []string{
	"kv_transfer_*", "ec_transfer_*", // vLLM
	"disaggregated_params", "disagg_*", // TensorRT-LLM, SGLang
	"bootstrap_*", "data_parallel_rank*", "routed_dp_*", // SGLang
	"remote_*", "do_remote_*", // the inside of vLLM's handoff
}

// containers are the objects that engines merge into sampling parameters, where
// a connector would look for its handoff. vLLM hands vllm_xargs to it as is.
var containers = []string{"vllm_xargs", "extra_args", "sampling_params", "custom_params", "extra_body", "nvext"}

// maxContainers is how deep containers may nest before one is dropped whole.
const maxContainers = 3

// fold decodes a member's name in lower case into buf. Beside ASCII it folds
// the two letters that Go's own JSON reader takes for s and k.
func fold(buf *[192]byte, raw []byte) []byte {
	if len(raw) > len(buf) {
		// Every stripped name is recognised by its beginning.
		raw = raw[:len(buf)]
	}
	name := jsonedit.AppendName(buf[:0], raw)
	out := name[:0]
	for i := 0; i < len(name); {
		c := name[i]
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(name[i:])
			switch r {
			case 'ſ':
				out = append(out, 's')
			case '\u212a':
				out = append(out, 'k')
			default:
				out = append(out, name[i:i+n]...)
			}
			i += n
			continue
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		}
		out = append(out, c)
		i++
	}
	return out
}

// forbidden reports whether a folded name is one of strippedNames.
func forbidden(name []byte) bool {
	if len(name) == 0 || !strings.ContainsRune("kedbr", rune(name[0])) {
		return false // the usual fields, quickly
	}
	for _, s := range strippedNames {
		if p, wild := strings.CutSuffix(s, "*"); wild {
			if len(name) >= len(p) && string(name[:len(p)]) == p {
				return true
			}
		} else if string(name) == s {
			return true
		}
	}
	return false
}

// suspect reports whether a member must go, or holds one that must.
func suspect(key, value []byte, depth int) bool {
	var buf [192]byte
	name := fold(&buf, key)
	if forbidden(name) {
		return true
	}
	if jsonedit.KindOf(value) != jsonedit.ObjectKind || !slices.Contains(containers, string(name)) {
		return false
	}
	if depth >= maxContainers {
		return true
	}
	f := jsonedit.Object(value)
	for f.Next() {
		if suspect(f.Key, f.Value, depth+1) {
			return true
		}
	}
	return false
}

// strip appends to dst the object data without what clients may not set. data
// was checked before.
func strip(dst, data []byte, depth int) ([]byte, error) {
	return jsonedit.Edit(dst, data, func(f *jsonedit.Fields) ([]byte, bool) {
		if !suspect(f.Key, f.Value, depth) {
			return f.Value, true
		}
		var buf [192]byte
		if forbidden(fold(&buf, f.Key)) || depth >= maxContainers {
			return nil, false
		}
		inner, err := strip(nil, f.Value, depth+1)
		return inner, err == nil
	})
}
