# Everything a person or a build server runs. Caches go to .cache/, which git ignores.

FUZZTIME ?= 10s
BENCHTIME ?= 0.3s

.PHONY: test test-real test-vllm fuzz bench lint fmt clean

# Every module of modules.txt: gofmt, vet, staticcheck, tests with -race. The root's tests include the lint tests.
# Fetches Go modules and nothing else.
test:
	scripts/test.sh

# What needs installed parts: scripts/real/*.sh, each of which installs what it needs and fails without it.
test-real:
	scripts/real.sh

# Two real vLLM engines on this machine's CPU behind the gateway; installs some 7 GiB on first use.
test-vllm:
	scripts/real-gateway.sh

# Every fuzz target of every module, FUZZTIME each.
fuzz:
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

# Every benchmark of the root module.
bench:
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) ./...

# The rules of the tree alone.
lint:
	go test ./internal/lint/

fmt:
	gofmt -w $$(git ls-files '*.go')

clean:
	rm -rf .cache/bin .cache/blocks .cache/fuzz
