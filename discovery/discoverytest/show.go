package discoverytest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/stator-go/stator/discovery"
)

// show is an update on one line, its workers as JSON. Fields that say nothing are
// left out.
func show(u discovery.Update) string {
	var parts []string
	if u.Snapshot {
		parts = append(parts, "snapshot")
	}
	if len(u.Put) > 0 {
		parts = append(parts, "put "+text(u.Put))
	}
	if len(u.Gone) > 0 {
		parts = append(parts, fmt.Sprintf("gone %q", u.Gone))
	}
	if u.Age != 0 {
		parts = append(parts, fmt.Sprintf("age %v", u.Age))
	}
	if u.Err != nil {
		parts = append(parts, fmt.Sprintf("err %q", u.Err))
	}
	if len(parts) == 0 {
		return "an empty update"
	}
	return strings.Join(parts, ", ")
}

// text is a value as JSON, or as Go prints it when it has no JSON form.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(b)
}

// difference says how two lists differ: the names when they are not the same, else
// each field that is another.
func difference(got, want []discovery.Worker) string {
	if a, b := names(got), names(want); !reflect.DeepEqual(a, b) {
		return fmt.Sprintf("workers are %s, want %s", text(a), text(b))
	}
	var parts []string
	for i := range got {
		a, b := reflect.ValueOf(got[i]), reflect.ValueOf(want[i])
		for f := range a.NumField() {
			x, y := a.Field(f).Interface(), b.Field(f).Interface()
			if !reflect.DeepEqual(x, y) {
				parts = append(parts, fmt.Sprintf("worker %q: %s is %s, want %s", got[i].Name, a.Type().Field(f).Name, text(x), text(y)))
			}
		}
	}
	return strings.Join(parts, "\n")
}

func names(list []discovery.Worker) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].Name
	}
	return out
}
