#!/usr/bin/env bash
# toolchain.sh [DIR]: a CUDA 13.0 compiler from Python wheels, no root and no GPU needed. Prints the folder that is its CUDA_HOME.
# DIR defaults to target/cuda-13.0 of the workspace, where build.rs looks for it. 104 MB to download; a second call does nothing.
# Stay on 13.0: the PTX of later compilers is refused by the drivers of CUDA 13.0.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=${1:-$here/../../target/cuda-13.0}
if [ ! -x "$home/bin/nvcc" ]; then
  mkdir -p "$home"
  python3 -m venv "$home/venv"
  "$home/venv/bin/pip" install --quiet --no-deps nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  wheels=$(echo "$home"/venv/lib/python3.*/site-packages/nvidia/cu13)
  # nvcc finds its parts relative to itself; only lib64 and unversioned library names are missing for a classic CUDA_HOME.
  mkdir -p "$home/lib64"
  for file in "$wheels"/lib/*; do ln -sfn "$(realpath "$file")" "$home/lib64/"; done
  ln -sfn libcudart.so.13 "$home/lib64/libcudart.so"
  ln -sfn lib64 "$home/lib"
  for folder in include nvvm bin; do ln -sfn "$(realpath "$wheels/$folder")" "$home/$folder"; done
fi
realpath -s "$home"
