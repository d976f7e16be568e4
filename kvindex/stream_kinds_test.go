package kvindex

// indexKinds are the indexes that the stream tests run against.
var indexKinds = []struct {
	name string
	make func(tokens int) testIndex
}{
	{"naive", func(tokens int) testIndex { return newNaive(tokens) }},
}
