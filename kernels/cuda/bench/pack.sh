#!/usr/bin/env bash
# pack.sh DIR: builds everything that h200.sh runs on a GPU and copies it, stripped, into the folder DIR. Needs no GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
into=$(mkdir -p "${1:?folder for the programs}" && cd "$1" && pwd)
cd "$here/../../.."
[ -x "${CUDA_HOME:-/nonexistent}/bin/nvcc" ] || CUDA_HOME=$(kernels/cuda/toolchain.sh)
export CUDA_HOME
# pack NAME CARGO-ARGUMENTS: the last program that this builds.
pack() {
  local name=$1 built
  shift
  built=$(cargo build --locked --message-format=json-render-diagnostics "$@" | python3 -c '
import json, sys
print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')
  strip --strip-debug -o "$into/$name" "$built"
  echo "$into/$name"
}
for test in kernels device model; do pack "tests-$test" -p hypic-cuda --features gpu-tests --test "$test"; done
for example in h200 model; do pack "bench-$example" -p hypic-cuda --features gpu-tests --example "$example"; done
pack tests-race -p hypic-cuda --features gpu-tests,plain-copies --test kernels
for program in hypic-router hypic-node-agent; do
  pack "$program" --workspace --features hypic-node-agent/cuda --bin "$program"
done
pack hypic-devices --workspace --features hypic-node-agent/cuda --bin hypic-devices
