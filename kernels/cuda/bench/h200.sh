#!/usr/bin/env bash
# h200.sh OUT [PROGRAMS]: everything that needs a GPU, in one go: tests, sanitizers, figures, peers, fleets. Writes logs and JSON into
# the folder OUT, a table at the end. PROGRAMS is a folder that pack.sh filled; without it that is done first.
# STEPS chooses among: tests memcheck racecheck kernels model peers fleet two; all of them without it. What needs a second GPU, `two`
# and a part of `model` and `tests`, is left out where there is one.
# Sanitizers need compute-sanitizer of a CUDA toolkit; all of it cublasLt, which LD_LIBRARY_PATH names (library.sh). A step may take LIMIT
# seconds, 300 without it.
# The fleet needs e2e/models/hypic-tiny and its questions; the peers need PyTorch, and transformers and flash-linear-attention if they
# are to be timed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?folder for the results}"
out=$(cd "$1" && pwd)
programs=${2:-}
steps=${STEPS:-tests memcheck racecheck kernels model peers fleet two}
cd "$here/../../.."
if [ -z "$programs" ]; then
  programs=$out/programs
  "$here/pack.sh" "$programs" || exit
fi
failed=""
# step LINES NAME COMMAND: its log in OUT, its last lines here.
step() {
  local lines=$1 name=$2 begun=$SECONDS
  shift 2
  echo "== $name"
  timeout "${LIMIT:-300}" "$@" >"$out/$name.log" 2>&1 || { failed+=" $name"; echo "FAILED"; }
  tail -n "$lines" "$out/$name.log"
  echo "== $name: $((SECONDS - begun)) s"
}
wanted() { [[ " $steps " == *" $1 "* ]]; }
quick=(attention conv_warm norm pack rotate rows random draw compose_seam gdn_chunks recurrence::a_split recurrence::a_segment recurrence::chunks few fused)
raced=(conv_warm norm pack rotate rows random compose_seam recurrence::a_split recurrence::chunks)
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/machine.txt"
if wanted tests; then for test in kernels device model; do step 4 "tests-$test" "$programs/tests-$test"; done; fi
wanted memcheck && step 3 memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$programs/tests-kernels" --test-threads=1 "${quick[@]}"
wanted racecheck && step 3 racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$programs/tests-race" --test-threads=1 "${raced[@]}"
wanted kernels && step 60 kernels "$programs/bench-h200" "$out/kernels.json"
wanted model && step 60 model "$programs/bench-model" "$out/model.json"
if wanted peers; then
  step 20 peers python3 "$here/peers.py" "$out/peers.json"
  step 8 peers-model python3 "$here/peers_model.py" "$out/peers_model.json"
fi
# fleets NAME FLAGS: the same questions to fleets on the CPU and on GPUs.
fleets() {
  local name=$1
  shift
  step 20 "$name" "$programs/hypic-devices" --binaries "$programs" --dir "$out/$name-files" --model e2e/models/hypic-tiny \
    --eval e2e/eval/questions.jsonl.gz "$@"
}
wanted fleet && fleets fleet
if wanted two && [ "$gpus" -ge 2 ]; then
  step 20 ranks "$programs/bench-model" "$out/ranks.json" 40 --devices 0,1
  fleets fleet-scatter --device cuda:0 --scatter-device cuda:1 --requests 0
  fleets fleet-ranks --device cuda:0,1 --requests 0
fi
python3 "$here/table.py" "$out"
echo "$gpus GPUs; failed:${failed:- none}"
[ -z "$failed" ]
