#!/usr/bin/env bash
# Compiles the CUDA kernels for all devices, without a GPU or a toolkit: the compiler comes as wheels.
# Writes backend-cuda/kernels/plimsoll.fatbin and its table; with --check it compares with what is
# there, and compiles the same sources by NVRTC too. --ceilings writes the table of ceilings anew.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${PLIMSOLL_CUDA_WHEELS:-${CARGO_TARGET_DIR:-target}/cuda-wheels}
# 13.0: its PTX is 9.0, the newest that drivers of release 580 take. Each is pinned, since the compiler's
# own wheel takes the newest of the others.
pins=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-cuobjdump==13.2.51)

if ! { test -x "$wheels/bin/python" && printf '%s\n' "${pins[@]}" | cmp -s - "$wheels/pins"; }; then
  python3 -m venv "$wheels"
  "$wheels/bin/pip" install --quiet --disable-pip-version-check "${pins[@]}"
  printf '%s\n' "${pins[@]}" >"$wheels/pins"
fi
exec "$wheels/bin/python" scripts/build-kernels.py "$@"
