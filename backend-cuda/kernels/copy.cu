// Blocks of memory from one place to another.
#include "types.cuh"

// Block pairs[2i] of `from` goes to block pairs[2i + 1] of `to`; `bytes` is a multiple of 16.
KERNEL(COPY_BLOCKS_THREADS, 1)
copy_blocks(void* to, const void* from, const long long* pairs, u64 bytes) {
  const uint4* source = (const uint4*)((const char*)from + (u64)pairs[2 * (u64)blockIdx.x] * bytes);
  uint4* target = (uint4*)((char*)to + (u64)pairs[2 * (u64)blockIdx.x + 1] * bytes);
  const u64 step = (u64)gridDim.y * COPY_BLOCKS_THREADS;
  for (u64 i = (u64)blockIdx.y * COPY_BLOCKS_THREADS + threadIdx.x; i < bytes / 16; i += step) target[i] = source[i];
}
REGISTER(copy_blocks)
