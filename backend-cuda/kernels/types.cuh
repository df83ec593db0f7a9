// Elements: bfloat16, half and fp8 e4m3, their conversions, and vectors of eight.
#pragma once
#include "device.cuh"

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};
struct fp8 {
  unsigned char bits;
};

__device__ __forceinline__ float to_float(bf16 value) {
#ifdef PLIMSOLL_SHIM
  return shim::from_bfloat(value.bits);
#else
  return __uint_as_float((unsigned)value.bits << 16);
#endif
}

__device__ __forceinline__ float to_float(f16 value) {
#ifdef PLIMSOLL_SHIM
  return shim::from_half(value.bits);
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#endif
}

// What is beyond the largest half becomes the largest, as on the host.
__device__ __forceinline__ unsigned short saturated(unsigned short half) {
  return (half & 0x7fff) == 0x7c00 ? half - 1 : half;
}

template <class T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
#ifdef PLIMSOLL_SHIM
  return {shim::to_bfloat(value)};
#else
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {bits};
#endif
}

template <>
__device__ __forceinline__ f16 from_float<f16>(float value) {
#ifdef PLIMSOLL_SHIM
  return {saturated(shim::to_half(value))};
#else
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {saturated(bits)};
#endif
}

// e4m3, saturated at 448 either way.
template <>
__device__ __forceinline__ fp8 from_float<fp8>(float value) {
#ifdef PLIMSOLL_SHIM
  return {shim::to_e4m3(value)};
#else
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return {(unsigned char)(pair & 0xff)};
#endif
}

// Two elements in a register, the first in the low half.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<bf16>(float low, float high) {
#ifdef PLIMSOLL_SHIM
  return shim::to_bfloat(low) | (unsigned)shim::to_bfloat(high) << 16;
#else
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#endif
}

template <>
__device__ __forceinline__ unsigned pack<f16>(float low, float high) {
  return from_float<f16>(low).bits | (unsigned)from_float<f16>(high).bits << 16;
}

// The same for values from 0 to 1, which no type saturates.
template <class T>
__device__ __forceinline__ unsigned pack_weights(float low, float high) {
  return pack<T>(low, high);
}

#ifndef PLIMSOLL_SHIM
template <>
__device__ __forceinline__ unsigned pack_weights<f16>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#endif

template <class T>
__device__ __forceinline__ float low_of(unsigned pair) {
  return to_float(T{(unsigned short)(pair & 0xffff)});
}

template <class T>
__device__ __forceinline__ float high_of(unsigned pair) {
  return to_float(T{(unsigned short)(pair >> 16)});
}

// Two e4m3 (the first in the low byte) as two of T, exactly.
template <class T>
__device__ __forceinline__ unsigned widen(unsigned pair);

template <>
__device__ __forceinline__ unsigned widen<f16>(unsigned pair) {
#ifdef PLIMSOLL_SHIM
  return shim::to_half(shim::from_e4m3(pair & 0xff)) | (unsigned)shim::to_half(shim::from_e4m3(pair >> 8 & 0xff)) << 16;
#else
  unsigned wide;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"((unsigned short)(pair & 0xffff)));
  return wide;
#endif
}

// The bits of e4m3 moved into a bfloat16 are the value times 2^-120, subnormals included.
template <>
__device__ __forceinline__ unsigned widen<bf16>(unsigned pair) {
  unsigned low = pair & 0xff, high = pair >> 8 & 0xff;
  unsigned spread = low << 8 | high << 24;
  unsigned moved = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 4);
#ifdef PLIMSOLL_SHIM
  unsigned scale = 0x7b80u << 16;
  float up;
  memcpy(&up, &scale, 4);
  return pack<bf16>(low_of<bf16>(moved) * up, high_of<bf16>(moved) * up);
#else
  unsigned wide;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(wide) : "r"(moved), "r"(0x7b807b80u));
  return wide;
#endif
}

__device__ __forceinline__ unsigned word(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// Eight elements of T as floats, and back.
template <class T>
__device__ __forceinline__ void unpack8(const uint4& packed, float* values) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    values[2 * i] = low_of<T>(word(packed, i));
    values[2 * i + 1] = high_of<T>(word(packed, i));
  }
}

template <class T>
__device__ __forceinline__ uint4 pack8(const float* values) {
  return {pack<T>(values[0], values[1]), pack<T>(values[2], values[3]), pack<T>(values[4], values[5]),
          pack<T>(values[6], values[7])};
}

// Eight e4m3, narrowed from floats.
__device__ __forceinline__ uint2 narrow8(const float* values) {
  unsigned words[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    words[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) words[i] |= (unsigned)from_float<fp8>(values[i * 4 + j]).bits << 8 * j;
  }
  return {words[0], words[1]};
}

__device__ __forceinline__ bool aligned16(const void* at) { return ((u64)at & 15) == 0; }

__device__ __forceinline__ uint4 load16(const void* from) { return *(const uint4*)from; }
__device__ __forceinline__ void store16(void* to, const uint4& packed) { *(uint4*)to = packed; }
