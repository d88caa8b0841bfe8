#!/usr/bin/env bash
# library.sh [DIR]: cublasLt of CUDA 13.0 from its Python wheel, no root and no GPU needed. Prints the library's path.
# DIR defaults to target/cuda-13.0 of the workspace. 421 MB to download; a second call does nothing.
# An agent with the feature `cuda` loads it when it multiplies: it must lie where the loader looks (LD_LIBRARY_PATH).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=${1:-$here/../../target/cuda-13.0}
library=$home/cublas/nvidia/cu13/lib/libcublasLt.so.13
if [ ! -e "$library" ]; then
  rm -rf "$home/cublas"
  python3 -m venv "$home/venv"
  "$home/venv/bin/pip" install --quiet --no-deps --no-compile --target "$home/cublas" nvidia-cublas==13.0.2.14
fi
realpath -s "$library"
