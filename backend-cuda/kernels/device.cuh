// One source, three compilers: nvcc, NVRTC (which has no headers to include) and, for the CPU, g++
// with shim/device.h, which defines the same names.
#pragma once
#include "launch.h"

typedef unsigned long long u64;

#ifndef PLIMSOLL_SHIM
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define REGISTER(name)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define DYNAMIC_SHARED(type, name)                                  \
  extern __shared__ __align__(128) unsigned char dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)
#define shuffle_from(value, lane) __shfl_sync(0xffffffffu, value, lane)
#define shuffle_xor(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
#define shuffle_up(value, by) __shfl_up_sync(0xffffffffu, value, by)
#define warp_ballot(yes) __ballot_sync(0xffffffffu, yes)
#endif

// Rows of a tensor can be many: offsets are 64 bits wide.
__device__ __forceinline__ u64 offset(u64 row, u64 width) { return row * width; }

__device__ __forceinline__ float infinity() {
#ifdef PLIMSOLL_SHIM
  return INFINITY;
#else
  return __int_as_float(0x7f800000);
#endif
}

__device__ __forceinline__ unsigned bits_of(float value) {
#ifdef PLIMSOLL_SHIM
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
#else
  return __float_as_uint(value);
#endif
}

__device__ __forceinline__ float float_of(unsigned bits) {
#ifdef PLIMSOLL_SHIM
  float value;
  memcpy(&value, &bits, 4);
  return value;
#else
  return __uint_as_float(bits);
#endif
}

__device__ __forceinline__ int popcount(unsigned bits) {
#ifdef PLIMSOLL_SHIM
  return __builtin_popcount(bits);
#else
  return __popc(bits);
#endif
}

// 2 to the power of x, to about 2^-22; the power of minus infinity is 0.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef PLIMSOLL_SHIM
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int most(int a, int b) { return a > b ? a : b; }
