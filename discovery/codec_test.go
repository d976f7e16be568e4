package discovery_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stator-go/stator/discovery"
)

func TestDecode(t *testing.T) {
	got, err := discovery.Decode([]byte(`{
		"comment": "ignored",
		"workers": [
			{"name": "a", "endpoints": {"http": "http://10.0.0.1:8000"}},
			{"name": "b", "incarnation": "7", "engine": "vllm", "role": "decode", "ranks": 4, "draining": true,
			 "endpoints": {"http": "https://b/v", "events": "tcp://b:5557", "replay": "tcp://b:5600", "transfer": "b:9", "rdma": "mlx5_0"},
			 "labels": {"zone": "x"}, "models": ["m"], "adapters": [], "capacity": {"kv_blocks": 100, "block_size": 16, "cpu": 5},
			 "price": 1.25, "Name": "another field"}
		]}`))
	require.NoError(t, err)
	require.Equal(t, []discovery.Worker{
		{Name: "a", Endpoints: discovery.Endpoints{HTTP: "http://10.0.0.1:8000"}},
		{
			Name: "b", Incarnation: "7", Engine: "vllm", Role: discovery.RoleDecode, Ranks: 4, Draining: true,
			Endpoints: discovery.Endpoints{HTTP: "https://b/v", Events: "tcp://b:5557", Replay: "tcp://b:5600", Transfer: "b:9"},
			Labels:    map[string]string{"zone": "x"}, Models: []string{"m"},
			Capacity: discovery.Capacity{KVBlocks: 100, BlockSize: 16},
			Extra: map[string]any{
				"price": json.Number("1.25"), "Name": "another field",
				"endpoints": map[string]any{"rdma": "mlx5_0"},
				"capacity":  map[string]any{"cpu": json.Number("5")},
			},
		},
	}, got)
	data, err := discovery.Encode(got)
	require.NoError(t, err)
	again, err := discovery.Decode(data)
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func TestDecodeMalformed(t *testing.T) {
	worker := func(s string) string { return `{"workers":[{"name":"a","endpoints":{"http":"http://h:1"}` + s + `}]}` }
	for _, c := range []struct{ data, want string }{
		{``, "unexpected EOF"},
		{`[]`, "not an object"},
		{`{}`, `no field "workers"`},
		{`{"workers":null}`, "not an array"},
		{`{"workers":{}}`, "not an array"},
		{`{"workers":[]`, "unexpected EOF"},
		{`{"workers":[]} x`, "behind the object"},
		{`{"workers":[],"workers":[]}`, "stands twice"},
		{`{"workers":[1]}`, "worker 0: not an object"},
		{worker(`,"name":"b"`), `worker 0: field "name" stands twice`},
		{worker(`,"ranks":"2"`), "worker 0: ranks"},
		{worker(`,"ranks":1.5`), "worker 0: ranks"},
		{worker(`,"ranks":99999999999999999999`), "worker 0: ranks"},
		{worker(`,"capacity":[]`), "worker 0: capacity: not an object"},
		{worker(`,"capacity":{"kv_blocks":true}`), "worker 0: capacity.kv_blocks"},
		{worker(`,"labels":{"a":1}`), "worker 0: labels"},
	} {
		_, err := discovery.Decode([]byte(c.data))
		require.ErrorIs(t, err, discovery.ErrMalformed, c.data)
		require.ErrorContains(t, err, c.want, c.data)
	}
	require.NoError(t, errOf(discovery.Decode([]byte(worker(`,"capacity":null,"labels":null,"ranks":null`)))))
}

func errOf[T any](_ T, err error) error { return err }

func TestValidate(t *testing.T) {
	good := discovery.Worker{Name: "a", Endpoints: discovery.Endpoints{HTTP: "http://h:1"}}
	long := strings.Repeat("x", discovery.MaxValue+1)
	for _, c := range []struct {
		field, limit string
		change       func(*discovery.Worker)
	}{
		{"name", "1 to 253", func(w *discovery.Worker) { w.Name = "" }},
		{"name", "1 to 253", func(w *discovery.Worker) { w.Name = strings.Repeat("x", 254) }},
		{"name", "printable", func(w *discovery.Worker) { w.Name = "a\nb" }},
		{"name", "printable", func(w *discovery.Worker) { w.Name = "a\xff" }},
		{"incarnation", "0 to 253", func(w *discovery.Worker) { w.Incarnation = long }},
		{"engine", "0 to 253", func(w *discovery.Worker) { w.Engine = long }},
		{"role", `"prefill"`, func(w *discovery.Worker) { w.Role = "both" }},
		{"ranks", "0 to 1024", func(w *discovery.Worker) { w.Ranks = -1 }},
		{"ranks", "0 to 1024", func(w *discovery.Worker) { w.Ranks = 1025 }},
		{"capacity.kv_blocks", "0 to", func(w *discovery.Worker) { w.Capacity.KVBlocks = -1 }},
		{"capacity.block_size", "65536", func(w *discovery.Worker) { w.Capacity.BlockSize = 65537 }},
		{"endpoints.http", "1 to 1024", func(w *discovery.Worker) { w.Endpoints.HTTP = "" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "h:1" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "ftp://h:1" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://:80" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://h:" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://h:0" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://h:65536" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://h/?q=1" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http:opaque" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://h/?" }},
		{"endpoints.http", "https", func(w *discovery.Worker) { w.Endpoints.HTTP = "http://h/#part" }},
		{"endpoints.events", "tcp://", func(w *discovery.Worker) { w.Endpoints.Events = "h:1" }},
		{"endpoints.events", "tcp://", func(w *discovery.Worker) { w.Endpoints.Events = "tcp://:1" }},
		{"endpoints.events", "tcp://", func(w *discovery.Worker) { w.Endpoints.Events = "tcp://*:1" }},
		{"endpoints.replay", "each rank", func(w *discovery.Worker) { w.Ranks, w.Endpoints.Replay = 8, "tcp://h:65529" }},
		{"endpoints.transfer", "host:port", func(w *discovery.Worker) { w.Endpoints.Transfer = "h" }},
		{"models", "1 to 1024", func(w *discovery.Worker) { w.Models = []string{""} }},
		{"models", "at most 1024", func(w *discovery.Worker) { w.Models = make([]string, 1025) }},
		{"adapters", "1 to 1024", func(w *discovery.Worker) { w.Adapters = []string{long} }},
		{"labels", "key", func(w *discovery.Worker) { w.Labels = map[string]string{"": "x"} }},
		{"labels", "value", func(w *discovery.Worker) { w.Labels = map[string]string{"k": long} }},
		{"labels", "at most 1024", func(w *discovery.Worker) {
			w.Labels = map[string]string{}
			for i := range 1025 {
				w.Labels[fmt.Sprint(i)] = ""
			}
		}},
	} {
		w := good
		c.change(&w)
		err := discovery.Validate([]discovery.Worker{{Name: "first", Endpoints: good.Endpoints}, w})
		var fe *discovery.FieldError
		require.ErrorAs(t, err, &fe, "%s: %+v", c.field, w)
		require.ErrorIs(t, err, discovery.ErrInvalid)
		require.Equal(t, 1, fe.Index)
		require.Equal(t, c.field, fe.Field)
		require.Contains(t, fe.Limit, c.limit)
		require.ErrorContains(t, err, "worker 1")
		require.Less(t, len(err.Error()), 400, "a fault is one short line")
	}
	fine := good
	fine.Ranks, fine.Endpoints.Events = 8, "tcp://h:65528"
	require.NoError(t, discovery.Validate([]discovery.Worker{fine}))

	err := discovery.Validate([]discovery.Worker{good, good, {Name: "c", Role: "x"}})
	require.ErrorContains(t, err, `worker 1 (a): name: have "a", want a name of its own, worker 0 has this one`)
	require.ErrorContains(t, err, "worker 2 (c): role")
	require.ErrorContains(t, err, "worker 2 (c): endpoints.http")
	require.ErrorContains(t, discovery.Validate(make([]discovery.Worker, discovery.MaxWorkers+1)), "list: workers: have 10001, want at most 10000")
	require.Equal(t, 100, strings.Count(discovery.Validate(make([]discovery.Worker, 1000)).Error(), "\n")+1)
}

// Whatever is accepted is valid, and reads the same after it was written.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		one("a"),
		`{"workers":[]}`,
		`{"workers":[{"name":"a","endpoints":{"http":"http://h","x":1},"capacity":{"y":[]},"z":{"a":null}}]}`,
		`{"workers":[{"name":"b","ranks":2,"role":"prefill","endpoints":{"http":"https://[::1]:1/","events":"tcp://h:1"},"labels":{"a":"b"}}],"v":2}`,
		`{"workers":[{"name":"a","name":"a"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ws, err := discovery.Decode(data)
		if err != nil {
			return
		}
		if err := discovery.Validate(ws); err != nil {
			t.Fatal(err)
		}
		out, err := discovery.Encode(ws)
		if err != nil {
			t.Fatal(err)
		}
		again, err := discovery.Decode(out)
		if err != nil || !reflect.DeepEqual(ws, again) {
			t.Fatalf("%v\n%+v\n%+v", err, ws, again)
		}
	})
}
