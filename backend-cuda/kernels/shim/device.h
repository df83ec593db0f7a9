// What the kernels' sources use of CUDA C++, for g++.
#pragma once
#include <cmath>

#include "fibres.h"

#define __device__
#define __forceinline__ inline
#define KERNEL(threads, blocks) static void
#define REGISTER(name) \
  static shim::Registration registration_##name(shim::Caller<&name>::kernel(#name));
#define SHARED(type, name, count)                  \
  static const int name##_slot = shim::new_slot(); \
  type* const name = (type*)shim::shared_slot(name##_slot, sizeof(type) * (count))
#define DYNAMIC_SHARED(type, name) type* const name = (type*)shim::worker_now->dynamic

struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

#define threadIdx (shim::thread_now->index)
#define blockIdx (shim::worker_now->place)
#define blockDim (shim::worker_now->block)
#define gridDim (shim::worker_now->grid)
#define __syncthreads() shim::barrier(__LINE__)
#define __syncwarp() shim::meet(0xffffffffu, __LINE__, nullptr, [](void**, unsigned) {})

namespace shim {

struct Passed {
  uint64_t given, got;
  int from;
};

// Every lane gives a value and gets that of the lane `from`; from a lane outside of the mask, garbage.
template <class T>
inline T shuffle(unsigned mask, T value, int from, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a register or two");
  Passed passed{0, 0, from & 31};
  memcpy(&passed.given, &value, sizeof(T));
  meet(mask, line, &passed, [](void** all, unsigned lanes) {
    for (int lane = 0; lane < 32; lane++) {
      if (!(lanes >> lane & 1)) continue;
      auto* own = (Passed*)all[lane];
      bool there = lanes >> own->from & 1;
      own->got = there ? ((Passed*)all[own->from])->given : ~0ull;
    }
  });
  memcpy(&value, &passed.got, sizeof(T));
  return value;
}

struct Vote {
  bool yes;
  unsigned all;
};

inline unsigned ballot(unsigned mask, bool yes, int line) {
  Vote vote{yes, 0};
  meet(mask, line, &vote, [](void** all, unsigned lanes) {
    unsigned sum = 0;
    for (int lane = 0; lane < 32; lane++)
      if (lanes >> lane & 1) sum |= (unsigned)((Vote*)all[lane])->yes << lane;
    for (int lane = 0; lane < 32; lane++)
      if (lanes >> lane & 1) ((Vote*)all[lane])->all = sum;
  });
  return vote.all;
}

inline float from_half(unsigned short bits) {
  unsigned sign = (unsigned)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  unsigned shifted = magnitude << 13, up = 0x77800000u, value;
  float scaled, factor;
  memcpy(&scaled, &shifted, 4), memcpy(&factor, &up, 4);
  scaled *= factor;
  memcpy(&value, &scaled, 4);
  if (magnitude >= 0x7c00) value = 0x7f800000u | shifted;
  value |= sign;
  memcpy(&scaled, &value, 4);
  return scaled;
}

// To the nearest even; what is too large becomes infinite, as the instruction does.
inline unsigned short to_half(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  unsigned sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;
  if (magnitude < 0x38800000u) {
    float shifted;
    memcpy(&shifted, &magnitude, 4);
    shifted += 0.5f;
    unsigned rounded;
    memcpy(&rounded, &shifted, 4);
    return sign | (rounded - 0x3f000000u);
  }
  return sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13);
}

inline float from_bfloat(unsigned short bits) {
  unsigned wide = (unsigned)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

inline unsigned short to_bfloat(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float from_e4m3(unsigned char bits) {
  int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float value = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  if ((bits & 0x7f) == 0x7f) value = NAN;
  return bits & 0x80 ? -value : value;
}

// To the nearest even, at most 448 either way.
inline unsigned char to_e4m3(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  unsigned char sign = bits >> 24 & 0x80;
  if ((bits & 0x7fffffffu) > 0x7f800000u) return sign | 0x7f;
  float magnitude = fabsf(value);
  if (magnitude >= 448) return sign | 0x7e;
  if (magnitude < 0.015625f) return sign | (unsigned char)rintf(magnitude * 512);
  bits &= 0x7fffffffu;
  bits += 0x7ffff + (bits >> 20 & 1);
  return sign | (unsigned char)((bits >> 20) - (120 << 3));
}

// d += a · b of m16n8k16. What each lane holds is as PTX lays it down for the instruction.
struct Product {
  float* d;
  const unsigned *a, *b;
};

template <float (*widen)(unsigned short)>
inline void multiply(float* d, const unsigned* a, const unsigned* b, int line) {
  Product product{d, a, b};
  meet(0xffffffffu, line, &product, [](void** all, unsigned) {
    float left[16][16], right[16][8], sum[16][8];
    for (int lane = 0; lane < 32; lane++) {
      auto& own = *(Product*)all[lane];
      int g = lane >> 2, t = lane & 3;
      for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++) left[g + (i & 1) * 8][t * 2 + h + (i >> 1) * 8] = widen(own.a[i] >> h * 16);
      for (int i = 0; i < 2; i++)
        for (int h = 0; h < 2; h++) right[t * 2 + h + i * 8][g] = widen(own.b[i] >> h * 16);
      for (int i = 0; i < 4; i++) sum[g + (i >> 1) * 8][t * 2 + (i & 1)] = own.d[i];
    }
    for (int row = 0; row < 16; row++)
      for (int k = 0; k < 16; k++)
        for (int column = 0; column < 8; column++) sum[row][column] += left[row][k] * right[k][column];
    for (int lane = 0; lane < 32; lane++) {
      int g = lane >> 2, t = lane & 3;
      for (int i = 0; i < 4; i++) ((Product*)all[lane])->d[i] = sum[g + (i >> 1) * 8][t * 2 + (i & 1)];
    }
  });
}

// Four 8x8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8.
struct Matrices {
  unsigned* to;
  const void* row;
};

inline void load_matrices(unsigned* to, const void* row, bool transposed, int line) {
  Matrices mine{to, row};
  auto gather = [transposed](void** all, unsigned) {
    auto element = [all](int matrix, int r, int c) {
      unsigned short value;
      memcpy(&value, (const char*)((Matrices*)all[matrix * 8 + r])->row + c * 2, 2);
      return (unsigned)value;
    };
    for (int lane = 0; lane < 32; lane++) {
      int g = lane >> 2, t = (lane & 3) * 2;
      for (int m = 0; m < 4; m++)
        ((Matrices*)all[lane])->to[m] = transposed ? element(m, t, g) | element(m, t + 1, g) << 16
                                                   : element(m, g, t) | element(m, g, t + 1) << 16;
    }
  };
  meet(0xffffffffu, line, &mine, gather);
}

// Until it is waited for, the target of a copy is garbage.
inline void copy_later(void* to, const void* from, unsigned bytes, unsigned kept) {
  memset(to, 0xff, bytes);
  thread_now->copies.push_back({to, from, bytes, kept, thread_now->group});
}

inline void wait_copies(int open) {
  Thread& me = *thread_now;
  size_t left = 0;
  for (auto& copy : me.copies) {
    if (copy.group >= me.group - open) {
      me.copies[left++] = copy;
      continue;
    }
    memcpy(copy.to, copy.from, copy.kept);
    memset((char*)copy.to + copy.kept, 0, copy.bytes - copy.kept);
  }
  me.copies.resize(left);
}

}  // namespace shim

#define shuffle_from(value, lane) shim::shuffle(0xffffffffu, value, lane, __LINE__)
#define shuffle_xor(value, mask) shim::shuffle(0xffffffffu, value, shim::thread_now->lane ^ (mask), __LINE__)
#define shuffle_up(value, by) \
  shim::shuffle(0xffffffffu, value, std::max(shim::thread_now->lane - (int)(by), 0), __LINE__)
#define warp_ballot(yes) shim::ballot(0xffffffffu, yes, __LINE__)

template <class T>
inline T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

// Products and sums that must not be contracted: g++ is told so for all of them.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
