package discovery_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stator-go/stator/discovery"
)

func ExampleStatic() {
	src, err := discovery.Static(
		discovery.Worker{Name: "b", Endpoints: discovery.Endpoints{HTTP: "http://10.0.0.2:8000"}},
		discovery.Worker{Name: "a", Endpoints: discovery.Endpoints{HTTP: "http://10.0.0.1:8000"}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	var state discovery.State
	for u, err := range src.Watch(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		state.Apply(u)
		break // a program goes on until its context ends
	}
	for _, w := range state.Workers() {
		fmt.Println(w.Name, w.Endpoints.HTTP)
	}
	// Output:
	// a http://10.0.0.1:8000
	// b http://10.0.0.2:8000
}

func ExampleFile() {
	dir, err := os.MkdirTemp("", "stator")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "workers.json")
	text := `{"workers": [{"name": "a", "endpoints": {"http": "http://10.0.0.1:8000"}, "rack": "r7"}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	src, err := discovery.File(path, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for u, err := range src.Watch(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(u.Snapshot, u.Put[0].Name, u.Put[0].Extra["rack"])
		break
	}
	// Output:
	// true a r7
}

func ExampleValidate() {
	err := discovery.Validate([]discovery.Worker{
		{Name: "a", Role: "both", Endpoints: discovery.Endpoints{HTTP: "10.0.0.1:8000"}},
	})
	fmt.Println(err)
	// Output:
	// discovery: worker 0 (a): role: have "both", want "prefill", "decode" or nothing for both
	// discovery: worker 0 (a): endpoints.http: have "10.0.0.1:8000", want http://host[:port][/path] or https, without query
}
