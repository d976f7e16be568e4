package slice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlice(t *testing.T) {
	reqs, err := Requests()
	require.NoError(t, err)
	require.Len(t, reqs, 2093)
	input, output := 0, 0
	for _, r := range reqs {
		require.GreaterOrEqual(t, r.At, time.Duration(0))
		require.Less(t, r.At, To-From)
		input += r.Input
		output += r.Output
	}
	require.Equal(t, 11205, input/len(reqs))
	require.Equal(t, 349, output/len(reqs))
}
