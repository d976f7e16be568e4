package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// ErrMalformed means that a list of workers is not JSON of the form
//
//	{"workers": [{"name": "a", "endpoints": {"http": "http://10.0.0.1:8000"}}, ...]}
var ErrMalformed = errors.New("discovery: malformed list of workers")

// Decode reads a list of workers and validates it. Field names are those of the
// JSON tags of [Worker], exactly; an unknown field of a worker goes to Extra and
// one beside "workers" is ignored. A field that stands twice is an error: which
// one was meant cannot be known. Errors wrap [ErrMalformed] or [ErrInvalid].
func Decode(data []byte) ([]Worker, error) {
	file, err := decodeObject(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	raw, ok := file["workers"]
	if !ok {
		return nil, fmt.Errorf(`%w: no field "workers"`, ErrMalformed)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || items == nil {
		return nil, fmt.Errorf("%w: workers: not an array", ErrMalformed)
	}
	if len(items) > MaxWorkers {
		return nil, Validate(make([]Worker, len(items)))
	}
	workers := make([]Worker, len(items))
	var errs []error
	for i, item := range items {
		if err := decodeWorker(&workers[i], item); err != nil && len(errs) < maxFaults {
			errs = append(errs, fmt.Errorf("%w: worker %d: %w", ErrMalformed, i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := Validate(workers); err != nil {
		return nil, err
	}
	return workers, nil
}

// decodeWorker fills one worker from its object.
func decodeWorker(w *Worker, data []byte) error {
	fields, err := decodeObject(data)
	if err != nil {
		return err
	}
	extra := map[string]any{}
	err = takeFields(fields, extra, "", map[string]any{
		"name": &w.Name, "incarnation": &w.Incarnation, "engine": &w.Engine, "role": &w.Role, "ranks": &w.Ranks,
		"labels": &w.Labels, "models": &w.Models, "adapters": &w.Adapters, "draining": &w.Draining,
		"endpoints": map[string]any{
			"http": &w.Endpoints.HTTP, "events": &w.Endpoints.Events,
			"replay": &w.Endpoints.Replay, "transfer": &w.Endpoints.Transfer,
		},
		"capacity": map[string]any{"kv_blocks": &w.Capacity.KVBlocks, "block_size": &w.Capacity.BlockSize},
	})
	if len(extra) > 0 {
		w.Extra = extra
	}
	// Empty and absent are the same, so that two spellings of one worker are equal.
	if len(w.Labels) == 0 {
		w.Labels = nil
	}
	if len(w.Models) == 0 {
		w.Models = nil
	}
	if len(w.Adapters) == 0 {
		w.Adapters = nil
	}
	return err
}

// takeFields decodes each field into its place. A place that is itself a map
// stands for an object with places of its own. What has no place goes to extra.
func takeFields(fields map[string]json.RawMessage, extra map[string]any, prefix string, places map[string]any) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		raw := fields[name]
		switch place := places[name].(type) {
		case nil:
			d := json.NewDecoder(bytes.NewReader(raw))
			d.UseNumber()
			var v any
			if err := d.Decode(&v); err != nil {
				errs = append(errs, fmt.Errorf("%s%s: %w", prefix, name, err))
			}
			extra[name] = v
		case map[string]any:
			if string(raw) == "null" {
				continue
			}
			sub, err := decodeObject(raw)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s%s: %w", prefix, name, err))
				continue
			}
			more := map[string]any{}
			errs = append(errs, takeFields(sub, more, prefix+name+".", place))
			if len(more) > 0 {
				extra[name] = more
			}
		default:
			if err := json.Unmarshal(raw, place); err != nil {
				errs = append(errs, fmt.Errorf("%s%s: %w", prefix, name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// decodeObject splits a JSON object into its fields and refuses a field that
// stands twice, and anything behind the object.
func decodeObject(data []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil {
		return nil, noEOF(err)
	} else if t != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	fields := make(map[string]json.RawMessage)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, noEOF(err)
		}
		name, ok := t.(string)
		if !ok {
			return nil, errors.New("field name is not a string")
		}
		if _, ok := fields[name]; ok {
			return nil, fmt.Errorf("field %s stands twice", quote(name))
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("field %s: %w", quote(name), noEOF(err))
		}
		fields[name] = raw
	}
	if _, err := d.Token(); err != nil {
		return nil, noEOF(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something stands behind the object")
	}
	return fields, nil
}

// noEOF makes the end of the data read as what it is to the person who looks at
// the file.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Encode writes a list of workers in the form that [Decode] reads, Extra
// included, fields sorted, indented for people. It validates first.
func Encode(workers []Worker) ([]byte, error) {
	if err := Validate(workers); err != nil {
		return nil, err
	}
	list := make([]map[string]any, len(workers))
	for i := range workers {
		raw, err := json.Marshal(&workers[i])
		if err != nil {
			return nil, fmt.Errorf("discovery: encode: %w", err)
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&list[i]); err != nil {
			return nil, fmt.Errorf("discovery: encode: %w", err)
		}
		merge(list[i], workers[i].Extra)
	}
	out, err := json.MarshalIndent(map[string]any{"workers": list}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("discovery: encode: %w", err)
	}
	return append(out, '\n'), nil
}

// merge adds fields that are not there yet, and goes into objects that are.
func merge(dst, extra map[string]any) {
	for k, v := range extra {
		sub, ok := dst[k].(map[string]any)
		if more, isMap := v.(map[string]any); ok && isMap {
			merge(sub, more)
		} else if _, there := dst[k]; !there {
			dst[k] = v
		}
	}
}
