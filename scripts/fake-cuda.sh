#!/usr/bin/env bash
# Builds the fake CUDA driver, cuBLASLt and NCCL of backend-cuda/fake into a folder (half a minute, with g++ alone); a
# program that is started with LD_LIBRARY_PATH on it finds a device that computes on the CPU: scripts/fake-cuda.sh FOLDER
set -euo pipefail
out="$(mkdir -p "${1:?a folder}" && cd "$1" && pwd)"
cd "$(dirname "$0")/../backend-cuda"

mark="$(find fake kernels -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)"
if [ "$(cat "$out/sources" 2>/dev/null || true)" = "$mark" ]; then
    exit 0
fi
shared=(-std=c++17 -Wall -fPIC -pthread -O1 -shared)
g++ -std=c++17 -O2 -fno-strict-aliasing -fPIC -pthread -c -o "$out/kernels.o" kernels/shim/kernels.cpp &
g++ -std=c++17 -Wall -Wno-psabi -fPIC -O3 -c -o "$out/product.o" fake/libraries/product.cpp
wait $!
g++ "${shared[@]}" -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" fake/*.cpp "$out/kernels.o"
g++ "${shared[@]}" -Wl,-soname,libcublasLt.so.13 -o "$out/libcublasLt.so.13" \
    fake/libraries/cublaslt.cpp "$out/product.o" "$out/libcuda.so.1"
g++ "${shared[@]}" -Wl,-soname,libnccl.so.2 -o "$out/libnccl.so.2" fake/libraries/nccl.cpp "$out/libcuda.so.1"
ln -sf libcuda.so.1 "$out/libcuda.so"
ln -sf libcuda.so.1 "$out/libnvidia-ml.so.1"
echo "$mark" > "$out/sources"
