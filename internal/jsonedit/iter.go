package jsonedit

// Fields iterates over the members of an object:
//
//	f := jsonedit.Object(data)
//	for f.Next() {
//		if f.Is("model") { … f.Value … }
//	}
//	if err := f.Err(); err != nil { … }
//
// It is a value: copy it to go on twice from one place. It allocates nothing.
type Fields struct {
	// Key is the member's name as it stands between its quotes, escapes and
	// all. Value is the member's value without surrounding space. Both point
	// into the data.
	Key, Value []byte
	// Start is the offset of the name's opening quote and End the offset after
	// the value; ValueStart is where the value begins.
	Start, ValueStart, End int

	data []byte
	pos  int // after the last member, -1 before the first
	gap  int // after the brace or comma before the member
	err  error
	done bool
	some bool
}

// Object starts an iteration over data, which must be one object with nothing
// but space around it.
func Object(data []byte) Fields { return Fields{data: data, pos: -1} }

// Next moves to the next member. It returns false after the last one and at a
// fault; see [Fields.Err].
func (f *Fields) Next() bool {
	if f.done {
		return false
	}
	b, i := f.data, f.pos
	if i < 0 {
		i = space(b, 0)
		if i >= len(b) || b[i] != '{' {
			return f.stop(fail(i, "object expected"))
		}
		i++
		f.gap = i
	}
	i = space(b, i)
	switch {
	case i >= len(b):
		return f.stop(fail(i, "unexpected end"))
	case b[i] == '}':
		if i = space(b, i+1); i != len(b) {
			return f.stop(fail(i, "data after the object"))
		}
		return f.stop(nil)
	case f.some:
		if b[i] != ',' {
			return f.stop(fail(i, "comma or closing brace expected"))
		}
		f.gap = i + 1
		i = space(b, f.gap)
	}
	if i >= len(b) || b[i] != '"' {
		return f.stop(fail(i, "member name expected"))
	}
	f.Start = i
	i, err := str(b, i)
	if err != nil {
		return f.stop(err)
	}
	f.Key = b[f.Start+1 : i-1]
	if i = space(b, i); i >= len(b) || b[i] != ':' {
		return f.stop(fail(i, "colon expected"))
	}
	f.ValueStart = space(b, i+1)
	if f.End, err = value(b, f.ValueStart, 1); err != nil {
		return f.stop(err)
	}
	f.Value = b[f.ValueStart:f.End]
	f.pos, f.some = f.End, true
	return true
}

func (f *Fields) stop(err error) bool {
	f.done, f.err = true, err
	return false
}

// Err is the fault that ended the iteration, nil after the last member.
func (f *Fields) Err() error { return f.err }

// Is reports whether the member's name is name, whatever escapes spell it.
func (f *Fields) Is(name string) bool { return Equal(f.Key, name) }

// Elements iterates over the elements of an array, in the manner of [Fields].
type Elements struct {
	// Value is the element without surrounding space, at Start of the data.
	Value []byte
	Start int

	data []byte
	pos  int
	err  error
	done bool
	some bool
}

// Array starts an iteration over data, which must be one array with nothing
// but space around it.
func Array(data []byte) Elements { return Elements{data: data, pos: -1} }

// Next moves to the next element. It returns false after the last one and at a
// fault; see [Elements.Err].
func (e *Elements) Next() bool {
	if e.done {
		return false
	}
	b, i := e.data, e.pos
	if i < 0 {
		i = space(b, 0)
		if i >= len(b) || b[i] != '[' {
			return e.stop(fail(i, "array expected"))
		}
		i++
	}
	i = space(b, i)
	switch {
	case i >= len(b):
		return e.stop(fail(i, "unexpected end"))
	case b[i] == ']':
		if i = space(b, i+1); i != len(b) {
			return e.stop(fail(i, "data after the array"))
		}
		return e.stop(nil)
	case e.some:
		if b[i] != ',' {
			return e.stop(fail(i, "comma or closing bracket expected"))
		}
		i = space(b, i+1)
	}
	end, err := value(b, i, 1)
	if err != nil {
		return e.stop(err)
	}
	e.Start, e.Value = i, b[i:end]
	e.pos, e.some = end, true
	return true
}

func (e *Elements) stop(err error) bool {
	e.done, e.err = true, err
	return false
}

// Last reports whether no element follows the present one, as far as the next
// byte tells.
func (e *Elements) Last() bool {
	i := space(e.data, max(e.pos, 0))
	return i >= len(e.data) || e.data[i] != ','
}

// Err is the fault that ended the iteration, nil after the last element.
func (e *Elements) Err() error { return e.err }
