module github.com/stator-go/stator

go 1.26.0

require (
	github.com/cockroachdb/datadriven v1.0.2
	github.com/hashicorp/golang-lru/v2 v2.0.3
	github.com/stretchr/testify v1.8.0
	github.com/zeebo/xxh3 v1.0.2
	go.uber.org/goleak v1.1.12
	lukechampine.com/blake3 v1.3.0
	pgregory.net/rapid v1.1.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/klauspost/cpuid/v2 v2.0.9 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
