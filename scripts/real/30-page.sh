#!/usr/bin/env bash
# Looks at the gateway's live page in a real browser: plays a small trace on
# simulated engines, opens the page in headless Chromium and checks that workers,
# decisions, request bars and the table of runs are in the DOM, and that the
# page's script reported no error. Installs Chromium where it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v chromium >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
fi

dir=$(mktemp -d)
gateway=
trap '[ -z "$gateway" ] || kill "$gateway" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
fail() { echo "page: $*" >&2; tail -n 20 "$dir/err" >&2 || true; exit 1; }

# Eighty requests over 16 s of trace time; each shares its first block with all
# and its second with one in eight.
for i in $(seq 0 79); do
  echo "{\"timestamp\": $((i * 200)), \"input_length\": 1400, \"output_length\": $((20 + i % 30)), \"hash_ids\": [0, $((1 + i % 8)), $((100 + i))]}"
done >"$dir/trace.jsonl"

go build -o "$dir/gateway" ./examples/gateway
"$dir/gateway" -listen 127.0.0.1:0 -trace "$dir/trace.jsonl" >"$dir/out" 2>"$dir/err" &
gateway=$!
for _ in $(seq 300); do
  grep -q '^expected ' <(sed 's/^ *//' "$dir/out") && break
  kill -0 "$gateway" 2>/dev/null || fail "the gateway ended early"
  sleep 0.2
done
url=$(grep -o 'http://127.0.0.1:[0-9]*/' "$dir/err" | head -n 1) || fail "the gateway did not say where its page is"

# A request after the runs, so that the last list is not empty whatever it showed before.
curl -fsS "${url}v1/completions" -H 'Content-Type: application/json' \
  -d '{"model":"sim","prompt":"hello there","max_tokens":8}' >/dev/null || fail "no answer to a request"

browse() { # size, output
  timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync \
    --user-data-dir="$dir/profile" --window-size="$1" --virtual-time-budget=4000 \
    --enable-logging=stderr --dump-dom "$url" >"$2" 2>"$dir/browser"
}
for size in 1400,1000 380,800; do
  browse "$size" "$dir/dom" || fail "the browser failed"
  ! grep -E 'CONSOLE.*(Uncaught|Refused|Error)' "$dir/browser" >&2 || fail "the page's script or policy complained"
  has() { # least, what, pattern
    n=$(grep -oE "$3" "$dir/dom" | wc -l)
    [ "$n" -ge "$1" ] || fail "$2: $n in the DOM at $size, want at least $1"
  }
  has 1 "page that was drawn" 'data-state="ready"'
  has 8 "workers that are up" 'class="dot up"'
  has 20 "decisions with a cost" 'class="bar track" role="img" aria-label="[^"]*prefill [0-9]'
  has 20 "request bars" 'class="lane track"[^>]*aria-label="control [0-9.]+ [mµ]?s, data [^"]*compute [0-9]'
  has 20 "pieces of control time" '<i class="c-control'
  has 20 "pieces of compute time" '<i class="c-compute'
  has 20 "pieces of decode time" '<i class="c-decoding'
  has 1 "run of roundrobin" '<td class="name">roundrobin</td>'
  has 1 "run of expected" '<td class="name">expected</td>'
done
echo "page: workers, decisions, requests and runs are shown"
