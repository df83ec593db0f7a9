// Stored weights to T, value by value as ggml decodes them: plain floats and blocks of quantised
// values. Layouts: core/src/model/encoding.rs.
#include "types.cuh"

__device__ __forceinline__ float half_at(const unsigned char* at) {
  return to_float(f16{(unsigned short)(at[0] | at[1] << 8)});
}

// Each encoding: bytes of a row, and the values of one group of 8 columns (the first a multiple of 8),
// which share their scales.
struct f32_group {
  const unsigned char* at;
  static __device__ __forceinline__ u64 row_bytes(u64 columns) { return columns * 4; }
  __device__ __forceinline__ f32_group(const unsigned char* row, int column) : at(row + (u64)column * 4) {}
  __device__ __forceinline__ float value(int i) const {
    const unsigned char* b = at + i * 4;
    const unsigned bits = b[0] | b[1] << 8 | b[2] << 16 | (unsigned)b[3] << 24;
#ifdef PLIMSOLL_SHIM
    float value;
    memcpy(&value, &bits, 4);
    return value;
#else
    return __uint_as_float(bits);
#endif
  }
};

template <class S>
struct two_byte_group {
  const unsigned char* at;
  static __device__ __forceinline__ u64 row_bytes(u64 columns) { return columns * 2; }
  __device__ __forceinline__ two_byte_group(const unsigned char* row, int column) : at(row + (u64)column * 2) {}
  __device__ __forceinline__ float value(int i) const {
    return to_float(S{(unsigned short)(at[i * 2] | at[i * 2 + 1] << 8)});
  }
};
typedef two_byte_group<f16> f16_group;
typedef two_byte_group<bf16> bf16_group;

// 32 signed bytes behind a scale.
struct q8_0_group {
  const unsigned char* at;
  float scale;
  static __device__ __forceinline__ u64 row_bytes(u64 columns) { return columns / 32 * 34; }
  __device__ __forceinline__ q8_0_group(const unsigned char* row, int column) {
    const unsigned char* block = row + (u64)(column / 32) * 34;
    at = block + 2 + column % 32;
    scale = half_at(block);
  }
  __device__ __forceinline__ float value(int i) const { return (float)(signed char)at[i] * scale; }
};

// 32 nibbles behind a scale (and a minimum): the low ones are the first half of the block.
template <int BYTES, bool MINIMUM>
struct nibbles_group {
  const unsigned char* at;
  int shift;
  float scale, least;
  static __device__ __forceinline__ u64 row_bytes(u64 columns) { return columns / 32 * BYTES; }
  __device__ __forceinline__ nibbles_group(const unsigned char* row, int column) {
    const unsigned char* block = row + (u64)(column / 32) * BYTES;
    at = block + BYTES - 16 + column % 16;
    shift = column % 32 / 16 * 4;
    scale = half_at(block);
    least = MINIMUM ? half_at(block + 2) : 0.0f;
  }
  __device__ __forceinline__ float value(int i) const {
    const int nibble = at[i] >> shift & 15;
    // As the host: a product, then a sum, each rounded.
    return MINIMUM ? __fadd_rn(__fmul_rn((float)nibble, scale), least) : (float)(nibble - 8) * scale;
  }
};
typedef nibbles_group<18, false> q4_0_group;
typedef nibbles_group<20, true> q4_1_group;

// 256 nibbles; a 6-bit scale and minimum for each 32.
struct q4k_group {
  const unsigned char* at;
  int shift;
  float scale, least;
  static __device__ __forceinline__ u64 row_bytes(u64 columns) { return columns / 256 * 144; }
  __device__ __forceinline__ q4k_group(const unsigned char* row, int column) {
    const unsigned char* block = row + (u64)(column / 256) * 144;
    const unsigned char* packed = block + 4;
    const int group = column % 256 / 32;
    int own, low;
    if (group < 4) {
      own = packed[group] & 63, low = packed[group + 4] & 63;
    } else {
      own = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
      low = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
    scale = half_at(block) * (float)own;
    least = half_at(block + 2) * (float)low;
    at = block + 16 + group / 2 * 32 + column % 32;
    shift = group % 2 * 4;
  }
  __device__ __forceinline__ float value(int i) const {
    return __fadd_rn(__fmul_rn(scale, (float)(at[i] >> shift & 15)), -least);
  }
};

// 256 values of 6 bits: low nibbles, high pairs of bits, a signed scale for each 16, a half scale.
struct q6k_group {
  const unsigned char *low, *high;
  int low_shift, high_shift;
  float scale;
  static __device__ __forceinline__ u64 row_bytes(u64 columns) { return columns / 256 * 210; }
  __device__ __forceinline__ q6k_group(const unsigned char* row, int column) {
    const unsigned char* block = row + (u64)(column / 256) * 210;
    const int half = column % 256 / 128, part = column % 128 / 32, at = column % 32;
    low = block + half * 64 + part % 2 * 32 + at;
    low_shift = part / 2 * 4;
    high = block + 128 + half * 32 + at;
    high_shift = part * 2;
    scale = half_at(block + 208) * (float)(signed char)block[192 + half * 8 + part * 2 + at / 16];
  }
  __device__ __forceinline__ float value(int i) const {
    const int value = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
    return scale * (float)(value - 32);
  }
};

// out[r][c] = stored[r][first_column + c]; blocks of the same x share a row.
template <class G, class T>
__device__ __forceinline__ void dequant(T* out, const unsigned char* stored, int rows, int columns, int first_column,
                                        int width, int out_stride) {
  const int row = blockIdx.x;
  if (row >= rows) return;
  stored += offset(row, G::row_bytes(columns));
  out += offset(row, out_stride);
  const int first = blockIdx.y * DEQUANT_THREADS + threadIdx.x, step = gridDim.y * DEQUANT_THREADS;
  int whole = 0;
  if (first_column % 8 == 0 && aligned16(out)) {
    whole = width / 8;
    for (int i = first; i < whole; i += step) {
      const G group(stored, first_column + i * 8);
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; j++) values[j] = group.value(j);
      store16(out + i * 8, pack8<T>(values));
    }
  }
  for (int i = whole * 8 + first; i < width; i += step) {
    const int column = first_column + i;
    out[i] = from_float<T>(G(stored, column & ~7).value(column & 7));
  }
}

#define DEQUANT(ENC, T)                                                                                     \
  KERNEL(DEQUANT_THREADS, 1)                                                                                \
  dequant_##ENC##_##T(T* out, const unsigned char* stored, int rows, int columns, int first_column,         \
                      int width, int out_stride) {                                                          \
    dequant<ENC##_group, T>(out, stored, rows, columns, first_column, width, out_stride);                   \
  }                                                                                                         \
  REGISTER(dequant_##ENC##_##T)
#define DEQUANT_BOTH(ENC) \
  DEQUANT(ENC, bf16)      \
  DEQUANT(ENC, f16)

DEQUANT_BOTH(f32)
DEQUANT_BOTH(f16)
DEQUANT_BOTH(bf16)
DEQUANT_BOTH(q8_0)
DEQUANT_BOTH(q4_0)
DEQUANT_BOTH(q4_1)
DEQUANT_BOTH(q4k)
DEQUANT_BOTH(q6k)
