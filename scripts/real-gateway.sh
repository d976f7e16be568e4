#!/usr/bin/env bash
# Two real vLLM engines (CPU build) behind the gateway, compared with the engines' own answers.
# Installs the engine into .cache/vllm on first use (some 7 GiB); takes about ten minutes. `make test-vllm` calls it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=.cache/vllm
a=${PORT_A:-18201} b=${PORT_B:-18202} g=${PORT_GATEWAY:-18280}
mkdir -p "$dir"
INSTALL_ONLY=1 scripts/real-vllm.sh "$dir"
pids=()
cleanup() {
  trap - EXIT INT TERM
  for p in "${pids[@]}"; do kill -TERM "$p" 2>/dev/null || true; done
  wait 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM
# One start a port: a start stops all its engines when one of them ends, and one is killed here on purpose.
for p in "$a" "$b"; do
  scripts/real-vllm.sh "$dir" "$p" >"$dir/start-$p.log" 2>&1 &
  pids+=($!)
done
for p in "$a" "$b"; do
  for _ in $(seq 1 600); do
    grep -q '^ready ' "$dir/start-$p.log" && break
    sleep 1
  done
  grep '^ready ' "$dir/start-$p.log" || { cat "$dir/start-$p.log" >&2; exit 1; }
done
group=$(sed -n 's/^ready .*pid=\([0-9]*\).*/\1/p' "$dir/start-$b.log")
go build -o "$dir/gateway" ./examples/gateway
"$dir/gateway" -listen "127.0.0.1:$g" -engine "vllm=http://127.0.0.1:$a" -engine "vllm=http://127.0.0.1:$b" >"$dir/gateway.log" 2>&1 &
pids+=($!)
for _ in $(seq 1 100); do
  (exec 3<>"/dev/tcp/127.0.0.1/$g") 2>/dev/null && break
  sleep 0.1
done
go run ./internal/realcheck -gateway "http://127.0.0.1:$g" -engines "http://127.0.0.1:$a,http://127.0.0.1:$b" -kill "$group" "$@"
