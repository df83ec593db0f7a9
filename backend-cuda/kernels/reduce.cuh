// Sums and maxima over a warp and over a block. Every lane gets the result; the order of the
// additions depends on the lane numbers alone.
#pragma once
#include "device.cuh"

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) value += shuffle_xor(value, apart);
  return value;
}

__device__ __forceinline__ u64 warp_sum(u64 value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) value += shuffle_xor(value, apart);
  return value;
}

// Sum of the lanes up to and with this one.
__device__ __forceinline__ u64 warp_prefix(u64 value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int apart = 1; apart < 32; apart <<= 1) {
    u64 before = shuffle_up(value, apart);
    if (lane >= apart) value += before;
  }
  return value;
}

// `scratch` has a place for each warp. Ends with all threads past their last read of it only after
// the next barrier: a second sum needs its own scratch or a barrier between.
template <int THREADS>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  value = warp_sum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) sum += scratch[i];
  return sum;
}
