#!/usr/bin/env bash
# Derives the block vectors in Python, with the packages blake3 and xxhash in an
# environment of their own under .cache/.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=.cache/blocks
if ! "$venv/bin/python" -c 'import blake3, xxhash' 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'blake3==1.0.*' 'xxhash==3.*'
fi
"$venv/bin/python" kvindex/block/testdata/check_vectors.py --need-xxhash
