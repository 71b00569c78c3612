#!/usr/bin/env bash
# Build the test control plane and print the path of the binary. A build is kept outside the repository,
# keyed by a hash of its sources; the first takes 9 to 14 minutes on 2 cores, the next about 15 seconds.
set -euo pipefail
sources="$(cd "$(dirname "${BASH_SOURCE[0]}")/controlplane" && pwd)"
version="$(sed -n 's/^[[:space:]]*k8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' "$sources/go.mod")"
key="$(cd "$sources" && cat go.mod go.sum ./*.go | sha256sum | cut -c1-16)"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/dtbench"
binary="$folder/controlplane-$key"
if [[ ! -x "$binary" ]]; then
  command -v go >/dev/null || { echo "build.sh: Go is missing: install Go $(sed -n 's/^go //p' "$sources/go.mod") or newer" >&2; exit 1; }
  mkdir -p "$folder"
  base=k8s.io/component-base/version
  minor="${version#v*.}"
  # The API server reports this version; clients and the scheduler compare it with their own.
  (cd "$sources" && CGO_ENABLED=0 nice go build -trimpath -o "$binary.$$" -ldflags "-s -w \
    -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor%%.*}" . ) >&2
  mv "$binary.$$" "$binary"
fi
echo "$binary"
