#!/usr/bin/env bash
# Runs the checks that need installed parts: scripts/real/*.sh in order, or those
# named as arguments. A missing part is installed by its check; what cannot be
# installed fails.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -eq 0 ]; then
  set -- scripts/real/*.sh
fi
failed=()
for check in "$@"; do
  echo "--- $check"
  began=$SECONDS
  if bash "$check"; then
    echo "ok $check ($((SECONDS - began)) s)"
  else
    echo "FAIL $check ($((SECONDS - began)) s)" >&2
    failed+=("$check")
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
