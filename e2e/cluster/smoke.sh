#!/usr/bin/env bash
# Brings a cluster of its own up, tries it and takes it down: needs root and build/bin/cluster. Two minutes.
set -eu
cd "$(dirname "$0")"
exec env CGO_ENABLED=0 go test -tags smoke -count=1 -v ./smoke "$@"
