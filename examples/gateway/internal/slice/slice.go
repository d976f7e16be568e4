// Package slice holds the trace that the gateway plays when it is given none:
// seconds 1500 to 2100 of Mooncake's public conversation trace, 2,093 requests
// of an average of 11,205 prompt and 349 output tokens. See README.md beside it
// for origin and licence.
package slice

import (
	"bytes"
	_ "embed"
	"time"

	"github.com/stator-go/stator/internal/trace"
)

//go:embed conversation-1500-2100.jsonl.gz
var data []byte

// From and To bound the slice in the time of the whole trace.
const (
	From = 1500 * time.Second
	To   = 2100 * time.Second
)

// Requests is the slice with its times counted from From.
func Requests() ([]trace.Request, error) {
	reqs, err := trace.Read(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return trace.Slice(reqs, From, To), nil
}
