#!/usr/bin/env bash
# gofmt, vet, staticcheck and tests with -race for every module of modules.txt but
# those that need installed parts.
# Goes on after a fault, so that one run shows all of them, and fails at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
step() { # name, command...
  echo "--- $1"
  shift
  "$@" || failed+=("$*")
}

format() {
  local bad
  bad=$(git ls-files --cached --others --exclude-standard -- '*.go' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done | xargs gofmt -l)
  [ -z "$bad" ] || { echo "gofmt would change:" >&2; echo "$bad" >&2; return 1; }
}

in_dir() { (cd "$1" && shift && "$@"); }

# A module may hold nothing but tool requirements and one file of comments.
has_tests() { [ -n "$(git ls-files --cached --others --exclude-standard -- "$1" | grep _test.go)" ]; }

bin=$PWD/.cache/bin
mkdir -p "$bin"
step "build staticcheck" in_dir internal/tools go build -o "$bin/staticcheck" honnef.co/go/tools/cmd/staticcheck
step gofmt format

while read -r dir _ needs; do
  [[ -n $dir && $dir != \#* ]] || continue
  if [ "$needs" = real ]; then
    echo "--- $dir: needs installed parts, see make test-real"
    continue
  fi
  step "$dir: modules" in_dir "$dir" go mod verify
  step "$dir: vet" in_dir "$dir" go vet ./...
  step "$dir: staticcheck" in_dir "$dir" "$bin/staticcheck" ./...
  if has_tests "$dir"; then
    step "$dir: test" in_dir "$dir" go test -race -timeout 12m ./...
  fi
done <modules.txt

if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "all modules pass"
