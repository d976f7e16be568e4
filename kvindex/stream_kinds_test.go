package kvindex

// indexKinds are the indexes that the stream tests run against: the real one,
// and sets.
var indexKinds = []struct {
	name string
	make func(tokens int) testIndex
}{
	{"index", func(tokens int) testIndex {
		x, err := New(&Options{BlockTokens: tokens})
		if err != nil {
			panic(err)
		}
		return x
	}},
	{"naive", func(tokens int) testIndex { return newNaive(tokens) }},
}
