#!/usr/bin/env bash
# h200.sh OUT: everything that needs a GPU, in one go: tests, sanitizers, figures, peers. Writes logs and JSON into the folder OUT.
# With TESTS and BENCH set to binaries built elsewhere nothing is built here:
#   cargo build -p hypic-cuda --features gpu-tests --test kernels --example h200
# RACE_TESTS, built with --features gpu-tests,plain-copies, is the test binary for racecheck, which does not follow bulk copies.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?folder for the results}
mkdir -p "$out"
if [ -z "${TESTS:-}" ]; then
  cd "$here/.." || exit 1
  [ -x "${CUDA_HOME:-/nonexistent}/bin/nvcc" ] || CUDA_HOME=$(./toolchain.sh)
  export CUDA_HOME
  built() { cargo build --message-format=json-render-diagnostics "$@" | python3 -c '
import json, sys
print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])'; }
  TESTS=$(built --features gpu-tests --test kernels)
  RACE_TESTS=$(built --features gpu-tests,plain-copies --test kernels)
  BENCH=$(built --features gpu-tests --example h200)
fi
failed=0
step() { local name=$1; shift; echo "== $name"; "$@" >"$out/$name.log" 2>&1 || { failed=1; echo "FAILED"; }; tail -n "${LINES_SHOWN:-3}" "$out/$name.log"; }
quick=(attention conv_warm norm pack rotate rows compose_seam gdn_chunks recurrence::a_split recurrence::a_segment recurrence::chunks)
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/machine.txt"
step tests "$TESTS"
step memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$TESTS" --test-threads=1 "${quick[@]}"
[ -n "${RACE_TESTS:-}" ] && step racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$RACE_TESTS" --test-threads=1 conv_warm norm pack rotate rows compose_seam recurrence::a_split recurrence::chunks
LINES_SHOWN=60 step figures "$BENCH" "$out/figures.json"
LINES_SHOWN=20 step peers python3 "$here/peers.py" "$out/peers.json"
exit $failed
