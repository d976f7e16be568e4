#!/usr/bin/env bash
# Runs our ZeroMQ sockets against libzmq's, both ways. Installs the library where
# it is missing.
set -euo pipefail
cd "$(dirname "$0")/../../internal/integration"

if ! pkg-config --exists libzmq 2>/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libzmq3-dev pkg-config gcc libc6-dev >/dev/null
fi
CGO_ENABLED=1 go test -count=1 ./...
