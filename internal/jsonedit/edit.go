package jsonedit

// Get returns the value of the member called name, the last one if there are
// several, as a slice of data. The whole object is checked.
func Get(data []byte, name string) (v []byte, ok bool, err error) {
	f := Object(data)
	for f.Next() {
		if f.Is(name) {
			v, ok = f.Value, true
		}
	}
	if f.err != nil {
		return nil, false, f.err
	}
	return v, ok, nil
}

// Set appends to dst the object data with the member called name set to value,
// which must be JSON. An existing member keeps its place, and of several only
// the last stays; a new one goes to the end. On an error dst is returned as it
// was. dst and data must not overlap.
func Set(dst, data []byte, name string, value []byte) ([]byte, error) {
	count, last := 0, 0
	f := Object(data)
	for f.Next() {
		if f.Is(name) {
			count++
			last = f.Start
		}
	}
	if f.err != nil {
		return dst, f.err
	}
	if count == 0 {
		end := len(data) - 1
		for data[end] != '}' {
			end--
		}
		dst = append(dst, data[:end]...)
		if f.some {
			dst = append(dst, ',')
		}
		dst = AppendQuoted(dst, name)
		dst = append(dst, ':')
		dst = append(dst, value...)
		return append(dst, data[end:]...), nil
	}
	return rewrite(dst, data, func(f *Fields) ([]byte, bool) {
		switch {
		case !f.Is(name):
			return f.Value, true
		case f.Start == last:
			return value, true
		}
		return nil, false
	})
}

// Delete appends to dst the object data without the members called by any of
// names. On an error dst is returned as it was.
func Delete(dst, data []byte, names ...string) ([]byte, error) {
	return DeleteFunc(dst, data, func(f *Fields) bool {
		for _, n := range names {
			if f.Is(n) {
				return true
			}
		}
		return false
	})
}

// DeleteFunc appends to dst the object data without the members that drop
// names. On an error dst is returned as it was.
func DeleteFunc(dst, data []byte, drop func(f *Fields) bool) ([]byte, error) {
	return rewrite(dst, data, func(f *Fields) ([]byte, bool) { return f.Value, !drop(f) })
}

// Edit appends to dst the object data with each member's value replaced by what
// edit returns, or left out when edit returns false. Space and order stay. On
// an error dst is returned as it was.
func Edit(dst, data []byte, edit func(f *Fields) (value []byte, keep bool)) ([]byte, error) {
	return rewrite(dst, data, edit)
}

func rewrite(dst, data []byte, edit func(f *Fields) ([]byte, bool)) ([]byte, error) {
	out, kept := dst, false
	f := Object(data)
	for f.Next() {
		v, keep := edit(&f)
		if !keep {
			continue
		}
		if kept {
			out = append(out, ',')
		} else {
			out = append(out, data[:space(data, 0)+1]...)
		}
		kept = true
		// The space before the name, the name, the colon, then the value.
		out = append(out, data[f.gap:f.ValueStart]...)
		out = append(out, v...)
	}
	if f.err != nil {
		return dst, f.err
	}
	if !kept {
		out = append(out, data[:space(data, 0)+1]...)
	}
	if f.some {
		return append(out, data[f.End:]...), nil
	}
	return append(out, data[f.gap:]...), nil
}
